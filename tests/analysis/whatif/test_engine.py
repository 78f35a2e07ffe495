"""Simulated steps against makespans computed by hand."""

from __future__ import annotations

from dataclasses import replace

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from keras_matrix.analysis.whatif import engine
from keras_matrix.analysis.whatif.engine import Pick, simulate
from keras_matrix.analysis.whatif.graph import Collective, Graph, NodeKind
from keras_matrix.analysis.whatif.program import program_of
from tests.analysis.whatif.hand_made import LINK, Nodes, chain, data_parallel, link

SHARED = settings(deadline=None, max_examples=40, database=None)


def step_ns(graph: Graph, steps: int = 3) -> float:
    return pytest.approx(simulate(graph, steps=steps).step_time_ns)  # type: ignore[no-any-return]


def test_a_chain_takes_the_sum_of_its_durations_and_gaps() -> None:
    assert step_ns(chain([10, 20, 30], gaps=1)) == 63


def test_two_lanes_of_one_rank_run_at_the_same_time() -> None:
    nodes = Nodes()
    nodes.add(10)
    nodes.add(30, lane="other")
    assert step_ns(nodes.graph()) == 30


def test_a_node_waits_for_all_its_dependencies_and_then_for_its_gap() -> None:
    nodes = Nodes()
    first, second = nodes.add(10), nodes.add(25, lane="other")
    nodes.add(5, lane="third", depends=(first, second), gaps=7)
    assert step_ns(nodes.graph(), steps=1) == 25 + 7 + 5


def test_a_wait_takes_no_time_of_its_own() -> None:
    nodes = Nodes()
    slow = nodes.add(50, lane="device")
    nodes.add(10)
    nodes.add(1000, kind=NodeKind.WAIT, depends=(slow,))
    nodes.add(5)
    assert step_ns(nodes.graph(), steps=1) == 55


def test_steps_overlap_where_only_a_lane_couples_them() -> None:
    """A device of 100 and a host of 30 that runs ahead: a steady step takes 100, a single one 130."""
    nodes = Nodes()
    host = nodes.add(30)
    nodes.add(100, lane="device", depends=(host,))
    assert step_ns(nodes.graph(), steps=1) == 130
    assert step_ns(nodes.graph()) == 100


def test_a_dependency_on_the_step_before_couples_steps() -> None:
    nodes = Nodes()
    nodes.add(30, depends_before=(1,))
    nodes.add(100, lane="device", depends=(0,))
    assert step_ns(nodes.graph()) == 130


def test_a_collective_starts_with_its_last_rank_and_ends_for_all_at_once() -> None:
    nodes = Nodes()
    ready = [nodes.add(10, 0), nodes.add(40, 1)]
    members = nodes.collective(0, [55, 25], ready)
    schedule = simulate(nodes.graph(), steps=1)
    assert [schedule.ends_ns[node] for node in members] == [65, 65]
    assert [schedule.starts_ns[node] for node in members] == [40, 40]
    assert [schedule.steps[-1].ready_ns[node] for node in members] == [10, 40]


def test_the_duration_of_a_collective_is_that_of_the_rank_that_came_last() -> None:
    """The other rank's duration of 55 contains its wait of 30."""
    nodes = Nodes()
    ready = [nodes.add(10, 0), nodes.add(40, 1)]
    nodes.collective(0, [55, 25], ready)
    graph = nodes.graph()
    assert step_ns(graph, steps=1) == 65
    assert simulate(graph, steps=1, pick=engine.of_step(graph, 0)).step_time_ns == 65


def test_nodes_that_need_more_cores_than_there_are_slow_down_equally() -> None:
    """Three of 10, 20 and 30 on two cores: two thirds of the speed until 15, then all have a core."""
    nodes = Nodes()
    for lane, duration in enumerate((10, 20, 30)):
        nodes.add(duration, lane=f"thread {lane}", cores=1.0)
    schedule = simulate(nodes.graph(cores=2), steps=1)
    assert pytest.approx(list(schedule.ends_ns)) == [15, 25, 35]


def test_nodes_of_two_ranks_share_the_cores_of_their_machine() -> None:
    nodes = Nodes()
    nodes.add(100, 0, cores=2.0)
    nodes.add(100, 1, cores=2.0)
    assert step_ns(nodes.graph(cores=2)) == 200
    assert step_ns(nodes.graph(cores=2, machine={"hosts": [0, 1]})) == 100
    assert step_ns(nodes.graph(cores=4)) == 100
    assert step_ns(nodes.graph(cores=None)) == 100


def test_nodes_without_cores_do_not_slow_down_others() -> None:
    nodes = Nodes()
    nodes.add(100, cores=1.0)
    nodes.add(100, lane="sleeper", cores=0.0)
    nodes.add(100, lane="other", cores=1.0)
    assert step_ns(nodes.graph(cores=1)) == 200


def two_collectives(durations: tuple[int, int], **fields: object) -> Graph:
    nodes = Nodes()
    ready = [nodes.add(10, rank) for rank in range(2)]
    for ordinal, duration in enumerate(durations):
        nodes.collective(ordinal, [duration] * 2, ready, lane=f"{LINK} {ordinal}")
    return nodes.graph(**fields)


def test_collectives_at_the_same_time_share_the_link() -> None:
    """100 and 200 begin at 10: the first has half the rate until 210, the second the whole rate from then on."""
    schedule = simulate(two_collectives((100, 200)), steps=1)
    assert pytest.approx(list(schedule.ends_ns[2:])) == [210, 210, 310, 310]


@pytest.mark.parametrize("ready_ns", [(10, 40), (40, 10)])
def test_collectives_that_may_share_a_link_wait_for_the_last_rank_too(ready_ns: tuple[int, int]) -> None:
    nodes = Nodes()
    ready = [nodes.add(duration, rank) for rank, duration in enumerate(ready_ns)]
    first = nodes.collective(0, [100] * 2, ready, lane="a")
    nodes.collective(1, [100] * 2, first, lane="b")
    schedule = simulate(nodes.graph(), steps=1)
    assert list(schedule.starts_ns[2:]) == [40, 40, 140, 140]


def test_the_latency_of_a_collective_does_not_use_the_link() -> None:
    """Both have a latency of 60 at the same time; what remains, 40 and 140, is shared."""
    schedule = simulate(two_collectives((100, 200), link=link(60e-9, 1e-9)), steps=1)
    assert pytest.approx(list(schedule.ends_ns[2:])) == [150, 150, 250, 250]


def test_collectives_without_a_common_rank_do_not_share_a_link() -> None:
    """Groups 0-1 and 2-3 have links of their own; a later one of 1-2 shares with both."""
    nodes = Nodes()
    groups = {"a": (0, 1), "b": (2, 3)}
    ready = [nodes.add(10, rank) for rank in range(4)]
    for group, ranks in groups.items():
        one = Collective(group, 0, "all_reduce", ranks, 0)
        for rank in ranks:
            nodes.add(100, rank, LINK, collective=one, depends=(ready[rank],))
    assert step_ns(nodes.graph(), steps=1) == 110
    for rank in (1, 2):
        one = Collective("c", 0, "all_reduce", (1, 2), 0)
        nodes.add(30, rank, "link 2", collective=one, depends=(ready[rank],))
    assert step_ns(nodes.graph(), steps=1) == 140


def test_one_lane_runs_its_collectives_one_by_one() -> None:
    nodes = Nodes()
    ready = [nodes.add(10, rank) for rank in range(2)]
    for ordinal, duration in enumerate((100, 200)):
        nodes.collective(ordinal, [duration] * 2, ready)
    schedule = simulate(nodes.graph(), steps=1)
    assert list(schedule.ends_ns[2:]) == [110, 110, 310, 310]


def test_a_lane_of_two_threads_starts_a_third_collective_when_one_has_ended() -> None:
    """100 and 400 share until 210 (100 of 400 done); the third of 100 then shares with the second until 410."""
    nodes = Nodes()
    ready = [nodes.add(10, rank) for rank in range(2)]
    for ordinal, duration in enumerate((100, 400, 100)):
        nodes.collective(ordinal, [duration] * 2, ready)
    schedule = simulate(nodes.graph(parallel_lanes={LINK: 2}), steps=1)
    assert pytest.approx(list(schedule.ends_ns[2:])) == [210, 210, 610, 610, 410, 410]
    assert pytest.approx(list(schedule.steps[-1].ready_ns[6:])) == [210, 210]


def test_a_lane_of_two_threads_starts_nodes_in_their_order() -> None:
    """The second waits for its dependency until 50, so that the third does not start before, though it could."""
    nodes = Nodes()
    late = nodes.add(50)
    nodes.add(100, lane="pool")
    nodes.add(10, lane="pool", depends=(late,))
    nodes.add(10, lane="pool")
    schedule = simulate(nodes.graph(parallel_lanes={"pool": 2}), steps=1)
    assert list(schedule.starts_ns[1:]) == [0, 50, 60]


def test_a_rank_whose_trace_is_missing_needs_no_node_of_a_collective() -> None:
    nodes = Nodes()
    ready = nodes.add(10, 0)
    nodes.add(10, 1)
    one = Collective("default", 0, "all_reduce", (0, 1), 0)
    nodes.add(30, 0, LINK, collective=one, depends=(ready,))
    assert step_ns(nodes.graph(missing_ranks=(1,)), steps=1) == 40


def test_a_caller_may_choose_the_durations_and_gaps() -> None:
    graph = chain([10, 20])
    assert simulate(graph, pick=Pick([1.0, 2.0], [0.5, 0.0])).step_time_ns == 3.5


def test_a_traced_step_is_replayed_with_its_own_durations() -> None:
    nodes = Nodes()
    nodes.add((10, 20, 30), gaps=(1, 2, 3))
    nodes.add((5, 5, 9))
    graph = nodes.graph()
    steps = [simulate(graph, pick=engine.of_step(graph, step)).step_time_ns for step in range(3)]
    assert steps == [16, 27, 42]
    assert step_ns(graph) == (27 + 42) / 2


def test_the_mean_of_a_collective_is_that_of_its_shortest_node_in_each_step() -> None:
    """The ranks are last in turn: every step has 100 from its last rank on, though each rank's own mean is 200."""
    nodes = Nodes()
    one = Collective("default", 0, "all_reduce", (0, 1), 0)
    for rank, durations in enumerate(((100, 100, 300), (300, 300, 100))):
        nodes.add(durations, rank, LINK, collective=one)
    assert step_ns(nodes.graph()) == 100


def test_a_data_parallel_step_hides_all_but_the_last_collective() -> None:
    """Backward ends at 1200; collectives of 300 start at 600 and follow one another until 1800; then the update."""
    assert step_ns(data_parallel()) == 1850


@SHARED
@given(st.lists(st.integers(0, 1000), min_size=1, max_size=20), st.integers(0, 50))
def test_replay_of_any_chain_is_its_sum(durations: list[int], gap: int) -> None:
    assert step_ns(chain(durations, gaps=gap)) == sum(durations) + gap * len(durations)


lanes = st.lists(st.lists(st.integers(1, 100), min_size=1, max_size=5), min_size=1, max_size=4)


def threads(lanes: list[list[int]], **fields: object) -> Graph:
    nodes = Nodes()
    for number, durations in enumerate(lanes):
        for duration in durations:
            nodes.add(duration, lane=f"thread {number}", cores=1.0)
    return nodes.graph(**fields)


@SHARED
@given(lanes, st.integers(1, 4))
def test_one_more_core_never_makes_a_step_slower(lanes: list[list[int]], cores: int) -> None:
    fewer, more = (simulate(threads(lanes, cores=count), steps=1).step_time_ns for count in (cores, cores + 1))
    assert more <= fewer * (1 + 1e-9)


@SHARED
@given(lanes, st.integers(1, 4))
def test_cores_do_no_work_that_does_not_exist_and_none_twice(lanes: list[list[int]], cores: int) -> None:
    """The makespan lies between the bounds of work and of the longest lane, and the sum of both."""
    step = simulate(threads(lanes, cores=cores), steps=1).step_time_ns
    work, longest = sum(map(sum, lanes)) / cores, max(map(sum, lanes))
    assert max(work, longest) <= step * (1 + 1e-9)
    assert step <= (work + longest) * (1 + 1e-9)


@SHARED
@given(lanes)
def test_the_event_queue_agrees_with_the_order_of_dependencies_where_nothing_is_short(lanes: list[list[int]]) -> None:
    graph = threads(lanes, cores=len(lanes))
    program = program_of(graph)
    queued = replace(program, hosts=[0] * len(graph.nodes))
    assert (program.is_static, queued.is_static) == (True, False)
    alone, with_queue = (engine.run(one, [engine.typical(program)] * 3) for one in (program, queued))
    assert list(alone.ends_ns) == pytest.approx(list(with_queue.ends_ns))

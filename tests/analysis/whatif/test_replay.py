"""Replay of hand-made steps: time, spread, exposed communication, critical path, shares, held-out steps."""

from __future__ import annotations

import pytest

from keras_matrix.analysis.whatif import replay as module
from keras_matrix.analysis.whatif.graph import Graph, NodeKind
from keras_matrix.analysis.whatif.replay import Share, held_out, replay, step_time_s
from tests.analysis.whatif.hand_made import LINK, Nodes, chain, data_parallel, link


def varying() -> Graph:
    """Two nodes that are slow in the same steps: 900 (the start of the program), 30, 60, 90."""
    nodes = Nodes()
    nodes.add((300, 10, 20, 30))
    nodes.add((600, 20, 40, 60))
    return nodes.graph(step_times_s=(9e-7, 3e-8, 6e-8, 9e-8))


def test_the_step_time_is_the_mean_of_the_steps_after_the_first() -> None:
    assert replay(varying()).step_time_s == pytest.approx(60e-9)


def test_a_single_traced_step_counts() -> None:
    assert replay(chain([10, 20])).step_time_s == pytest.approx(30e-9)


def test_what_varies_together_in_a_step_stays_together_in_its_spread() -> None:
    """Nodes drawn one by one would give sums such as 10 + 60."""
    found = replay(varying(), resamples=400)
    assert (found.low_s, found.high_s) == (pytest.approx(30e-9), pytest.approx(90e-9))


def test_the_spread_is_the_same_for_the_same_seed() -> None:
    nodes = Nodes()
    nodes.add(tuple(range(1, 40)))
    graph = nodes.graph()
    first, again, other = (replay(graph, resamples=20, seed=seed) for seed in (1, 1, 2))
    assert (first.low_s, first.high_s) == (again.low_s, again.high_s)
    assert (first.low_s, first.high_s) != (other.low_s, other.high_s)


def test_a_large_graph_has_fewer_resamples(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "MOST_OPERATIONS", 60)
    found = replay(varying())
    assert found.resamples == 10


def test_a_replay_of_a_trace_removes_its_contention_first() -> None:
    """Two of 100 and 50 on one core were measured as 150 and 100: the step takes 150, not 250."""
    nodes = Nodes()
    nodes.add(150, cores=1.0, starts_ns=(0,))
    nodes.add(100, lane="other", cores=1.0, starts_ns=(0,), depends_before=(0,))
    assert replay(nodes.graph(cores=1, exclusive=False)).step_time_s == pytest.approx(150e-9)


def test_exposed_communication_is_what_no_work_of_its_rank_hides() -> None:
    """Collectives run from 600 to 1800, the backward pass until 1200, the update from 1800."""
    assert replay(data_parallel()).exposed_communication_s == pytest.approx(600e-9)


def test_waiting_for_another_rank_is_exposed_too() -> None:
    nodes = Nodes()
    ready = [nodes.add(10, 0, depends_before=(2,)), nodes.add(40, 1, depends_before=(3,))]
    nodes.collective(0, [55, 25], ready)
    found = replay(nodes.graph())
    assert found.exposed_communication_s == pytest.approx(55e-9)


def test_work_of_the_next_step_hides_communication() -> None:
    """A transfer of 60 that no node of its own step waits for, while the main lane of 100 goes on."""
    nodes = Nodes()
    last = nodes.add(100)
    nodes.add(60, lane="copy", depends=(last,), kind=NodeKind.COMMUNICATION)
    assert replay(nodes.graph()).exposed_communication_s == 0


def test_work_of_the_host_hides_communication_on_a_cpu_but_not_on_a_gpu() -> None:
    nodes = Nodes()
    first = nodes.add(100)
    nodes.add(60, lane="copy", depends=(first,), kind=NodeKind.COMMUNICATION)
    nodes.add(60, kind=NodeKind.HOST)
    cpu, gpu = (replay(nodes.graph(device=device)).exposed_communication_s for device in ("cpu", "gpu"))
    assert (cpu, gpu) == (0, pytest.approx(60e-9))


def test_the_critical_path_ends_with_the_step_and_adds_up_to_it() -> None:
    found = replay(data_parallel())
    names = [part.node.name for part in found.critical_path]
    forward = [f"layer_{at} forward" for at in range(4)]
    assert names == [*forward, "layer_3 backward", *["all_reduce"] * 4, "update"]
    assert sum(part.end_ns - part.start_ns + part.gap_ns for part in found.critical_path) == pytest.approx(1850)


def test_the_critical_path_goes_through_the_rank_that_came_last() -> None:
    nodes = Nodes()
    ready = [nodes.add(10, 0), nodes.add(40, 1)]
    nodes.collective(0, [55, 25], ready)
    found = replay(nodes.graph())
    assert [part.node.number for part in found.critical_path] == [1, 2]


def test_the_critical_path_contains_gaps_and_what_sharing_adds() -> None:
    nodes = Nodes()
    nodes.add(100, cores=1.0, gaps=20)
    nodes.add(30, lane="other", cores=1.0, gaps=20, depends_before=(0,))
    (part,) = replay(nodes.graph(cores=1)).critical_path
    assert (part.gap_ns, part.end_ns - part.start_ns, part.shared_ns) == pytest.approx((20, 130, 30))


def test_the_critical_path_contains_the_gap_before_a_node_that_takes_no_time() -> None:
    nodes = Nodes()
    nodes.add(100)
    nodes.add(0, gaps=20)
    nodes.add(30)
    found = replay(nodes.graph())
    assert [(part.node.number, part.gap_ns) for part in found.critical_path] == [(0, 0), (1, 20), (2, 0)]


def test_the_critical_path_of_overlapping_steps_begins_in_the_step_before() -> None:
    """The device runs without a pause, so that the host that runs ahead is not on the path."""
    nodes = Nodes()
    host = nodes.add(30)
    device = nodes.add(100, lane="device", depends=(host,))
    (part,) = replay(nodes.graph()).critical_path
    assert (part.node.number, part.end_ns - part.start_ns) == (device, pytest.approx(100))


def test_shares_are_parts_of_the_critical_path() -> None:
    found = replay(data_parallel())
    communication, compute = 1200 / 1850, 650 / 1850
    assert [(one.name, one.share) for one in found.by_kind] == [
        ("communication", pytest.approx(communication)),
        ("compute", pytest.approx(compute)),
    ]
    assert found.by_phase[0] == Share("communication", pytest.approx(1200e-9), pytest.approx(communication))
    layers = {one.name: one.time_s for one in found.by_layer}
    assert layers["layer_3"] == pytest.approx(300e-9)
    assert layers["unassigned"] == pytest.approx(1250e-9)


def test_gaps_and_sharing_have_shares_of_their_own() -> None:
    nodes = Nodes()
    nodes.add(100, cores=1.0, gaps=20)
    nodes.add(30, lane="other", cores=1.0, gaps=20, depends_before=(0,))
    found = replay(nodes.graph(cores=1))
    assert [(one.name, one.time_s) for one in found.by_kind] == [
        ("compute", pytest.approx(100e-9)),
        ("sharing", pytest.approx(30e-9)),
        ("gap", pytest.approx(20e-9)),
    ]


def test_held_out_steps_are_predicted_from_the_step_before() -> None:
    found = held_out(varying())
    assert [(one.step, one.predicted_s, one.measured_s) for one in found] == [
        (1, pytest.approx(900e-9), 3e-8),
        (2, pytest.approx(30e-9), 6e-8),
        (3, pytest.approx(60e-9), 9e-8),
    ]
    assert found[1].error == pytest.approx(-0.5)
    assert found[1].repeated_error == pytest.approx(-0.5)


def test_the_first_step_predicts_nothing_if_enough_remain() -> None:
    nodes = Nodes()
    nodes.add([30, 10, 20, 10, 20])
    found = held_out(nodes.graph(step_times_s=(3e-8, 1e-8, 2e-8, 1e-8, 2e-8)))
    assert [one.step for one in found] == [2, 3, 4]


def test_the_step_time_of_means_is_that_of_all_steps() -> None:
    """In each step another node is delayed: every step takes 90, the sum of medians would be 30."""
    nodes = Nodes()
    for at in range(3):
        nodes.add([10, *(70 if step == at else 10 for step in range(3))])
    assert step_time_s(nodes.graph()) == pytest.approx(90e-9)
    assert step_time_s(varying()) == pytest.approx(60e-9)
    assert step_time_s(data_parallel()) == pytest.approx(1850e-9)


def test_the_critical_path_ends_where_two_empty_sums_of_a_parallel_lane_start_together() -> None:
    """Neither of them made room for the other."""
    nodes = Nodes()
    ready = [nodes.add(100, rank) for rank in range(2)]
    sums = [nodes.collective(at, [0, 0], ready) for at in range(2)]
    for rank in range(2):
        nodes.add(50, rank, depends=tuple(one[rank] for one in sums))
    found = replay(nodes.graph(parallel_lanes={LINK: 2}, link=link(0.0, 0.2e-9)))
    assert found.step_time_s == pytest.approx(150e-9)
    assert sum(part.end_ns - part.start_ns for part in found.critical_path) == pytest.approx(150)

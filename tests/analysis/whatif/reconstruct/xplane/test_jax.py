"""Trace graphs of JAX's files."""

from __future__ import annotations

from pathlib import Path

import pytest

from keras_matrix.analysis.whatif import engine
from keras_matrix.analysis.whatif.graph import Graph, NodeKind
from keras_matrix.analysis.whatif.program import program_of
from tests.analysis.whatif.reconstruct.xplane.profiles import Op, before, find, graph, host, names, step, us, write_jax


def replayed_us(made: Graph) -> list[float]:
    """The time of each traced step, replayed with its own durations."""
    program = program_of(made)
    steps = range(len(made.header.step_times_s))
    return [engine.run(program, [engine.of_step(made, one)] * 3).step_time_ns / 1000 for one in steps]


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "epoch2.worker0.xplane.pb"


def single(path: Path, second: float = 100) -> Graph:
    """Two steps of one device: a launch, two operations that overlap, and an update."""
    marks = [
        step(1, 0, 50),
        host("launch it", 0, 8),
        step(2, second, second + 52),
        host("launch it", second, second + 9),
    ]
    ops = [Op("dot.1", 10, 20), Op("copy.1", 15, 30), Op("sub.1", 34, 40)]
    later = [Op("dot.1", 110, 121, 2), Op("copy.1", 114, 130, 2), Op("sub.1", 133, 141, 2)]
    shift = second - 100
    return graph(
        write_jax(path, marks, [*ops, *(one._replace(begin=one.begin + shift, end=one.end + shift) for one in later)])
    )


def test_a_device_is_one_sequence_between_launch_and_return(path: Path) -> None:
    made = single(path)
    assert names(made) == ["launch", "dot.1", "copy.1", "sub.1", "return"]
    assert (made.header.backend, made.header.device, made.header.world_size) == ("jax", "cpu", 1)


def test_durations_are_the_device_time_of_each_step(path: Path) -> None:
    made = single(path)
    assert us(find(made, "dot.1").durations_ns) == [10, 11]
    assert us(find(made, "copy.1").durations_ns) == [10, 9]
    assert us(find(made, "sub.1").durations_ns) == [6, 8]


def test_a_step_lasts_from_the_end_of_the_one_before(path: Path) -> None:
    assert [round(one * 1e6, 6) for one in single(path).header.step_times_s] == [50, 102]


def test_the_host_has_the_time_that_the_device_waits_for_it(path: Path) -> None:
    made = single(path)
    launch = find(made, "launch")
    assert (launch.kind, us(launch.durations_ns), us(launch.gaps_ns)) == (NodeKind.HOST, [8, 9], [2, 51])


def test_idle_time_without_a_reason_is_a_gap(path: Path) -> None:
    assert us(find(single(path), "sub.1").gaps_ns) == [4, 3]


def test_gaps_count_against_coverage(path: Path) -> None:
    gaps = [2 + 4 + 10, 51 + 3 + 11]
    assert single(path).header.coverage == pytest.approx(1 - (gaps[0] / 50 + gaps[1] / 102) / 2)


def test_each_step_replays_to_its_own_time(path: Path) -> None:
    assert replayed_us(single(path, second=50)) == pytest.approx([50, 52])


def test_the_program_says_shape_bytes_and_flops(path: Path) -> None:
    dot = find(single(path), "dot.1")
    assert (dot.shape, dot.dtype, dot.bytes, dot.flops) == ((4, 4), "float32", 3 * 64, 2 * 4 * 4 * 4)
    assert (dot.phase, dot.layer) == ("forward", "dense")


def test_steps_that_are_only_dispatched_last_as_long_as_their_work(path: Path) -> None:
    marks = [step(1, 0, 2), step(2, 3, 5), step(3, 6, 8)]
    ops = [Op("dot.1", 10 * run, 10 * run + 9, run) for run in (1, 2, 3)]
    made = graph(write_jax(path, marks, ops))
    assert [round(one * 1e6, 6) for one in made.header.step_times_s] == [19, 10, 10]
    assert us(find(made, "dot.1").durations_ns) == [9, 9, 9]
    assert us(find(made, "return").durations_ns) == [0, 0, 0]


def test_work_that_begins_in_the_step_before_counts_once(path: Path) -> None:
    marks = [step(1, 0, 2), step(2, 3, 5)]
    ops = [Op("dot.1", 10, 20, 1), Op("dot.2", 20, 30, 1), Op("dot.1", 24, 40, 2), Op("dot.2", 40, 44, 2)]
    made = graph(write_jax(path, marks, ops))
    assert [round(one * 1e6, 6) for one in made.header.step_times_s] == [30, 14]
    assert us(find(made, "dot.1").durations_ns) == [10, 10]
    assert replayed_us(made) == pytest.approx([30, 14])


def test_the_fetch_of_a_batch_is_input(path: Path) -> None:
    marks = [
        *(host("kbm:phase:input", 0, 7), step(1, 8, 30), host("kbm:phase:input", 32, 36), step(2, 37, 60)),
    ]
    made = graph(write_jax(path, marks, [Op("dot.1", 10, 28, 1), Op("dot.1", 40, 58, 2)]))
    fetch = find(made, "input")
    assert (fetch.kind, us(fetch.durations_ns)) == (NodeKind.INPUT, [7, 4])
    assert names(made) == ["input", "launch", "dot.1", "return"]


def test_steps_share_the_order_of_the_median_ends(path: Path) -> None:
    marks = [step(1, 0, 30), step(2, 30, 60), step(3, 60, 90)]
    ops = []
    for number, order in ((1, ("dot.2", "dot.1")), (2, ("dot.1", "dot.2")), (3, ("dot.1", "dot.2"))):
        begin = 30 * (number - 1)
        ops += [Op(name, begin + 10 * at, begin + 10 * at + 9, number) for at, name in enumerate(order)]
    made = graph(write_jax(path, marks, [one._replace(name=one.name.replace("dot.2", "sub.1")) for one in ops]))
    assert names(made) == ["launch", "dot.1", "sub.1", "return"]
    assert us(find(made, "dot.1").durations_ns) == [9, 9, 9]
    assert replayed_us(made) == pytest.approx([30, 30, 30])


def test_an_operation_that_runs_several_times_has_as_many_nodes(path: Path) -> None:
    marks = [step(1, 0, 30), step(2, 30, 60)]
    ops = [Op("dot.1", 30 * one + at, 30 * one + at + 5, one + 1) for one in (0, 1) for at in (2, 10, 20)]
    assert names(graph(write_jax(path, marks, ops))) == ["launch", "dot.1", "dot.1 #2", "dot.1 #3", "return"]


def test_an_operation_in_few_steps_is_left_out_and_reported(path: Path) -> None:
    marks = [step(one, 30 * one - 30, 30 * one) for one in (1, 2, 3)]
    ops = [Op(f"dot.{at}", 30 * one + at, 30 * one + at + 1, one + 1) for one in (0, 1, 2) for at in range(1, 10)]
    made = graph(write_jax(path, marks, [*ops, Op("once", 45, 50, 2)]))
    assert "once" not in names(made)
    assert (
        "rank 0: 1 operations (0.002 ms a step) are in less than half of the steps and are left out: 'once'"
        in made.header.caveats
    )


@pytest.mark.parametrize("done", [0, 1, 5])
@pytest.mark.parametrize("steps", [1, 3])
def test_a_last_step_in_which_the_profiler_stopped_is_left_out_and_named(path: Path, steps: int, done: int) -> None:
    """Of the last step a part of the operations was recorded. Mutation: with two steps it is the usual one."""
    marks = [step(one + 1, 30 * one, 30 * one + 30) for one in range(steps + 1)]
    ops = [Op(f"dot.{at}", 30 * one + at, 30 * one + at + 1, one) for one in range(steps) for at in range(1, 10)]
    ops += [Op(f"dot.{at}", 30 * steps + at, 30 * steps + at + 1, steps) for at in range(1, 1 + done)]
    made = graph(write_jax(path, marks, ops))
    assert [round(one * 1e6, 6) for one in made.header.step_times_s] == [30] * steps
    assert any(f"step {steps + 1} is left out: the profiler stopped" in text for text in made.header.caveats)


def test_a_step_that_does_something_else_is_left_out(path: Path) -> None:
    marks = [step(one, 30 * one - 30, 30 * one) for one in (1, 2, 3)]
    ops = [Op(f"start.{at}", at, at + 2, 1) for at in range(3, 20, 3)]
    ops += [Op(f"dot.{at}", 30 * one + at, 30 * one + at + 1, one + 1) for one in (1, 2) for at in range(1, 10)]
    made = graph(write_jax(path, marks, ops))
    assert [round(one * 1e6, 6) for one in made.header.step_times_s] == [30, 30]
    assert any("step 1 is left out" in text for text in made.header.caveats)


def test_without_collectives_the_last_operation_of_the_backward_pass_completes_a_gradient(path: Path) -> None:
    marks = [step(1, 0, 30), step(2, 30, 60)]
    ops = [Op("dot.1", 1, 9), Op("dot.2", 9, 20), Op("dot.1", 31, 39, 2), Op("dot.2", 39, 50, 2)]
    made = graph(write_jax(path, marks, ops))
    assert [find(made, name).gradient_of for name in ("dot.1", "dot.2")] == [None, "dense"]


# Collectives of two devices of one process.


def pair(path: Path) -> Graph:
    """Two steps of two devices; the first device comes to the sum 5 us before the second one."""
    marks = [step(1, 0, 40), step(2, 40, 80)]
    ops = []
    for number in (1, 2):
        at = 40 * (number - 1)
        for device, wait in ((0, 0), (1, 5)):
            ops += [
                Op("dot.1", at + 1, at + 5, number, device),
                Op("dot.2", at + 5, at + 9, number, device),
                Op("dot.3", at + 9, at + 15 + wait, number, device),
                Op("all-reduce", at + 15 + wait, at + 30, number, device),
                Op("sub.1", at + 31, at + 38, number, device),
            ]
    return graph(write_jax(path, marks, ops), cores=2)


def test_a_collective_of_all_ranks_is_one_with_its_bytes_and_gradients(path: Path) -> None:
    made = pair(path)
    found = find(made, "all-reduce", 1).collective
    assert found is not None
    assert (found.operation, found.group, found.ordinal, found.ranks) == ("all_reduce", "all", 0, (0, 1))
    assert (found.bytes, found.tensors, found.tensor_layers) == (128, (64, 64), ("dense", "head"))
    assert find(made, "all-reduce", 0).collective == found


def test_a_collective_waits_for_its_operands_and_its_users_for_it(path: Path) -> None:
    made = pair(path)
    assert before(made, "all-reduce") == {(0, "dot.2"), (0, "dot.3")}
    assert before(made, "sub.1") == {(0, "all-reduce")}


def test_a_collective_lasts_from_when_the_last_rank_has_come(path: Path) -> None:
    made = pair(path)
    assert us(find(made, "all-reduce", 0).durations_ns) == [10, 10]
    assert us(find(made, "all-reduce", 1).durations_ns) == [10, 10]
    assert find(made, "all-reduce").cores == 0


def test_waiting_for_a_collective_is_not_a_gap(path: Path) -> None:
    made = pair(path)
    assert us(find(made, "sub.1", 0).gaps_ns) == [1, 1]


def test_two_devices_replay_to_their_own_steps(path: Path) -> None:
    assert replayed_us(pair(path)) == pytest.approx([40, 40])


def test_devices_of_one_process_share_its_cores(path: Path) -> None:
    made = pair(path)
    assert (find(made, "dot.1", 0).cores, find(made, "dot.1", 1).cores) == (1, 1)


def test_a_step_ends_when_all_devices_have_ended(path: Path) -> None:
    assert (1, "sub.1") in before(pair(path), "return", 0)


def blocked(path: Path, other: float) -> Graph:
    """Two devices whose only thread runs a collective; an operation that does not need it waits for the thread.

    In the second of three steps `copy.2` runs before the collective.
    """
    marks = [step(1, 0, 50), step(2, 50, 100), step(3, 100, 150)]
    ops = []
    for number, at in ((1, 0), (2, 50), (3, 100)):
        late = number != 2
        for device in (0, 1):
            ops += [
                Op("dot.2", at + 1, at + 9, number, device),
                Op("copy.2", *((at + 40, at + 42) if late else (at + 9, at + 11)), number, device),
                Op("all-reduce", at + (9 if late else 11), at + 30, number, device),
                Op("copy.1", at + 31, at + other, number, device),
            ]
    return graph(write_jax(path, marks, ops))


def test_a_collective_that_blocks_the_device_is_one_of_its_operations(path: Path) -> None:
    made = blocked(path, 40)
    assert names(made) == ["launch", "dot.2", "all-reduce", "copy.1", "copy.2", "return"]
    assert before(made, "all-reduce") == {(0, "dot.2")}


def test_waiting_for_a_collective_is_explained_also_where_threads_race(path: Path) -> None:
    made = blocked(path, 40)
    assert us(find(made, "copy.1").gaps_ns) == [1, 0, 1]
    assert replayed_us(made) == pytest.approx([50, 50, 50], abs=2)


def test_a_blocking_collective_has_the_time_that_another_thread_does_not_use(path: Path) -> None:
    marks = [step(1, 0, 60), step(2, 60, 120)]
    ops = []
    for number, at in ((1, 0), (2, 60)):
        for device in (0, 1):
            ops += [
                Op("dot.2", at + 1, at + 9, number, device),
                Op("copy.1", at + 9, at + 20, number, device),
                Op("all-reduce", at + 9, at + 49, number, device),
                Op("sub.1", at + 50, at + 58, number, device),
            ]
    made = graph(write_jax(path, marks, ops))
    assert names(made) == ["launch", "dot.2", "copy.1", "all-reduce", "sub.1", "return"]
    assert us(find(made, "all-reduce").durations_ns) == [29, 29]
    assert replayed_us(made) == pytest.approx([60, 60])


def test_a_collective_during_which_the_device_works_does_not_block_it(path: Path) -> None:
    marks = [step(1, 0, 50), step(2, 50, 100)]
    ops = []
    for number, at in ((1, 0), (2, 50)):
        for device in (0, 1):
            ops += [
                Op("dot.2", at + 1, at + 9, number, device),
                Op("all-reduce", at + 9, at + 30, number, device),
                Op("copy.1", at + 2, at + 40, number, device),
            ]
    made = graph(write_jax(path, marks, ops))
    assert (names(made, "link"), names(made)) == (["all-reduce"], ["launch", "dot.2", "copy.1", "return"])
    assert before(made, "copy.1") == set()


def test_a_late_end_event_does_not_outlast_what_needs_the_result(path: Path) -> None:
    marks = [step(1, 0, 40), step(2, 40, 80)]
    ops = []
    for number in (1, 2):
        at = 40 * (number - 1)
        for device in (0, 1):
            ops += [
                Op("dot.2", at + 1, at + 2, number, device, late=at + 35),
                Op("all-reduce", at + 11, at + 30, number, device),
                Op("sub.1", at + 30, at + 38, number, device),
            ]
    made = graph(write_jax(path, marks, ops))
    assert us(find(made, "dot.2").durations_ns) == [10, 10]
    assert us(find(made, "sub.1").durations_ns) == [8, 8]


def test_a_rank_without_one_of_the_collectives_is_an_error(path: Path) -> None:
    marks = [step(1, 0, 40), step(2, 40, 80)]
    ops = [Op("dot.1", 40 * run - 39, 40 * run - 30, run, device) for run in (1, 2) for device in (0, 1)]
    ops += [Op("all-reduce", 40 * run - 20, 40 * run - 10, run, 0) for run in (1, 2)]
    with pytest.raises(Exception, match="rank 1 has no collective 'all-reduce' of group 'all', which rank 0 has"):
        graph(write_jax(path, marks, ops))

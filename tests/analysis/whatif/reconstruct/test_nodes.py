"""Nodes have the durations of all steps, the dependencies of most, and gaps only for what nothing explains."""

from __future__ import annotations

from keras_matrix.analysis.whatif.graph import Node
from keras_matrix.analysis.whatif.reconstruct import nodes
from keras_matrix.analysis.whatif.reconstruct.pieces import Lane, RankTrace
from tests.analysis.whatif.reconstruct.pieces import after, all_reduce, together, trace, wait, work


def two_steps(lanes: dict[str, tuple[Lane, Lane]]) -> RankTrace:
    """A rank whose steps last 100 us and follow each other."""
    for steps in lanes.values():
        for piece in steps[1]:
            piece.step = 1
    return trace(lanes, [(0, 100), (100, 200)])


def made(*traces: RankTrace, offsets: tuple[int, ...] = (0, 0)) -> nodes.Made:
    return nodes.make(traces, offsets[: len(traces)], threads=1)


def by_name(found: nodes.Made) -> dict[str, Node]:
    return {node.name: node for node in found.nodes}


def test_node_has_the_durations_starts_and_gaps_of_all_steps() -> None:
    found = made(
        two_steps({"host": ([work("a", 10, 30), work("b", 40, 90)], [work("a", 105, 120), work("b", 120, 199)])})
    )
    a, b = found.nodes
    assert (a.durations_ns, a.starts_ns) == ((20_000, 15_000), (10_000, 5_000))
    assert (b.durations_ns, b.gaps_ns) == ((50_000, 79_000), (10_000, 0))


def test_time_before_the_first_and_after_the_last_operation_of_a_step_is_the_gap_of_the_first() -> None:
    found = made(two_steps({"host": ([work("a", 10, 90)], [work("a", 105, 199)])}))
    assert found.nodes[0].gaps_ns == (10_000 + 10_000, 5_000 + 1_000)


def test_gap_begins_at_the_end_of_the_last_dependency() -> None:
    kernels = [work("k", 30, 70, "stream"), work("k", 130, 170, "stream")]
    first, second = work("a", 0, 20), work("a", 100, 120)
    host = (
        [first, after(work("b", 75, 95), kernels[0])],
        [second, after(work("b", 180, 195), kernels[1])],
    )
    for kernel, start in zip(kernels, (first, second), strict=True):
        after(kernel, start)
    found = by_name(made(two_steps({"host": host, "stream": ([kernels[0]], [kernels[1]])})))
    assert found["b"].gaps_ns == (5_000, 10_000)
    assert found["k"].gaps_ns == (10_000, 10_000)
    assert found["b"].depends == (found["k"].number,)


def test_wait_has_no_duration_and_its_return_is_its_gap() -> None:
    kernels = [work("k", 10, 70, "stream"), work("k", 110, 170, "stream")]
    steps = ([after(wait("sync", 72), kernels[0])], [after(wait("sync", 175), kernels[1])])
    found = by_name(made(two_steps({"host": steps, "stream": ([kernels[0]], [kernels[1]])})))
    assert (found["sync"].durations_ns, found["sync"].gaps_ns) == ((0, 0), (2_000, 5_000))


def test_dependency_of_the_step_before_is_kept_apart() -> None:
    early = work("k", 50, 90, "stream")
    late = work("k", 150, 190, "stream", step=1)
    steps = ([work("a", 0, 20)], [after(work("a", 100, 120), early)])
    found = by_name(made(two_steps({"host": steps, "stream": ([early], [late])})))
    assert (found["a"].depends, found["a"].depends_before) == ((), (found["k"].number,))


def test_dependency_of_few_steps_is_left_out() -> None:
    kernels = [work("k", 10, 30, "stream"), work("k", 110, 130, "stream")]
    steps = ([after(work("a", 40, 90), kernels[0])], [work("a", 140, 190)])
    found = by_name(made(two_steps({"host": steps, "stream": ([kernels[0]], [kernels[1]])})))
    assert found["a"].depends == ()


def test_dependency_that_the_times_contradict_is_left_out_and_reported() -> None:
    kernels = [work("k", 10, 95, "stream"), work("k", 110, 195, "stream")]
    steps = ([after(work("a", 40, 60), kernels[0])], [after(work("a", 140, 160), kernels[1])])
    found = made(two_steps({"host": steps, "stream": ([kernels[0]], [kernels[1]])}))
    assert by_name(found)["a"].depends == ()
    assert found.caveats == [
        "rank 0: 1 expected dependencies contradict the measured times and are left out, such as a after k"
    ]


def test_operations_of_some_steps_are_left_out_with_their_time_and_pass_on_what_they_wait_for() -> None:
    kernels = [work("k", 10, 30, "stream"), work("k", 110, 130, "stream")]
    extra = after(work("x", 40, 44), kernels[0])
    steps = ([extra, work("a", 50, 90)], [after(work("a", 150, 190), kernels[1])])
    found = made(two_steps({"host": steps, "stream": ([kernels[0]], [kernels[1]])}))
    assert by_name(found)["a"].depends == (by_name(found)["k"].number,)
    assert found.caveats == [
        "rank 0: 1 operations (0.002 ms a step) are only in some steps, or in another order, and are left out: x"
    ]


def test_waiting_for_the_last_rank_is_not_part_of_a_collectives_duration() -> None:
    def rank(number: int, joined: float, ended: float) -> RankTrace:
        start = work("a", 0, joined - 5)
        one = after(together("sum", joined, ended, all_reduce(8)), start)
        return trace({"host": [[start]], "link": [[one]]}, [(0, 100)], number)

    found = made(rank(0, 20, 80), rank(1, 50, 81))
    sums = [node for node in found.nodes if node.name == "sum"]
    assert [node.durations_ns for node in sums] == [(30_000,), (30_000,)]
    assert [node.starts_ns for node in sums] == [(50_000,), (50_000,)]
    assert [node.gaps_ns for node in sums] == [(5_000,), (5_000,)]


def test_times_of_another_rank_are_shifted_to_its_clock() -> None:
    def rank(number: int, begin: float) -> RankTrace:
        one = together("sum", begin + 20 + number * 10, begin + 60, all_reduce(8))
        return trace({"host": [[work("a", begin, begin + 10)]], "link": [[one]]}, [(begin, begin + 100)], number)

    found = made(rank(0, 0), rank(1, 5000), offsets=(0, -5_000_000))
    assert [node.durations_ns for node in found.nodes if node.name == "sum"] == [(30_000,), (30_000,)]


def test_gap_on_a_lane_that_runs_several_begins_when_one_of_its_threads_is_free() -> None:
    start = work("a", 0, 10)
    sums = [together(name, begin, end, all_reduce(8, at)) for at, (name, begin, end) in enumerate(SUMS)]
    one = trace({"host": [[start]], "link": [[after(piece, start) for piece in sums]]}, [(0, 100)])
    one.parallel["link"] = 2
    assert {node.name: node.gaps_ns for node in made(one).nodes if node.collective} == {
        "first": (0,),
        "second": (2_000,),
        "third": (3_000,),
    }


SUMS = [("first", 10, 60), ("second", 12, 40), ("third", 43, 70)]


def test_lane_without_dependencies_follows_its_own_end_in_the_step_before() -> None:
    lanes = {
        "host": ([work("a", 0, 99)], [work("a", 100, 199)]),
        "other": ([work("b", 20, 40, "other")], [work("b", 130, 150, "other")]),
    }
    assert by_name(made(two_steps(lanes)))["b"].gaps_ns == (90_000, 90_000)


def test_large_operations_use_all_threads() -> None:
    large, small = work("large", 0, 50), work("small", 50, 90)
    large.shape, small.shape = (256, 256), (2, 2)
    found = nodes.make([trace({"host": [[large, small]]}, [(0, 100)])], [0], threads=4)
    assert [node.cores for node in found.nodes] == [4.0, 1.0]

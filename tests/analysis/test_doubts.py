"""What is doubtful about a cell is said with advice, and what is not is silent."""

from __future__ import annotations

import random
from collections.abc import Sequence
from dataclasses import replace

from analysis.compare import summarise
from analysis.doubts import doubts
from records.schema import Record, Resolved, Status, Times
from tests.conftest import make_record


def cell(processes: Sequence[Sequence[float]]) -> list[Record]:
    """One record a process, with these epochs of one step each."""
    return [
        make_record(repeat=repeat, times=Times(step_time_s=sum(epochs) / len(epochs), epoch_times_s=list(epochs)))
        for repeat, epochs in enumerate(processes)
    ]


def epochs(seed: int, count: int = 10, scatter: float = 0.01) -> list[float]:
    generator = random.Random(seed)
    return [0.01 * generator.gauss(1, scatter) for _ in range(count)]


def test_a_quiet_cell_has_no_doubts() -> None:
    assert doubts(cell([epochs(seed) for seed in range(8)])) == ()
    assert doubts([]) == ()


def test_processes_still_warming_up_are_told_with_the_discard_to_set() -> None:
    warm = [[time_s * (1 + 2 * 0.4**i) for i, time_s in enumerate(epochs(seed, 16, 0.03))] for seed in range(5)]
    line = doubts(cell([*warm, epochs(9, 16)]))[0]
    assert line.startswith("still warming up in ")
    assert "of 6 processes: set discard: " in line


def test_outliers_are_counted() -> None:
    spoiled = [*epochs(1), 0.5]
    assert doubts(cell([spoiled, epochs(2), epochs(3)])) == (
        "outliers: 1 of 31 epochs lie beyond ten robust deviations; they count",
    )


def test_slow_processes_are_told_from_quick_ones() -> None:
    slow = [[2 * time_s for time_s in epochs(seed)] for seed in (20, 21, 22)]
    (line,) = doubts(cell([*(epochs(seed) for seed in range(7)), *slow]))
    assert line.startswith("two kinds of processes: 7 at 9.99 ms and 3 at 20 ms a step (p 0.0001)")


def test_what_was_not_measured_raises_no_doubt() -> None:
    failed = make_record(None, status=Status.CRASH, times=Times(epoch_times_s=[1.0] * 9 + [99.0]))
    assert doubts([failed]) == ()


def test_recompiles_in_the_timed_region_and_graph_breaks_are_told() -> None:
    def process(recompiles: int | None, breaks: int | None) -> Resolved:
        return Resolved(50, 32, "fork", "float32", recompiles_timed=recompiles, graph_breaks=breaks)

    made = [
        replace(record, resolved=process(*counts))
        for record, counts in zip(cell([epochs(1), epochs(2), epochs(3)]), [(2, 1), (0, 3), (None, None)], strict=True)
    ]
    recompiles, breaks = doubts(made)
    assert recompiles.startswith("recompiles in the timed region: 2 in 1 of 3 processes")
    assert breaks.startswith("graph breaks: torch.compile cut the step's program in 3 places")


def test_a_summary_holds_the_doubts_of_its_cell() -> None:
    made = cell([[*epochs(1), 0.5]])
    assert summarise(made).doubts == doubts(made)

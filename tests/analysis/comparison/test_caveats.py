"""Caveats of a cell, each with advice; no caveat for unremarkable cells."""

from __future__ import annotations

import random
from collections.abc import Sequence
from dataclasses import replace

from keras_matrix.analysis.comparison.caveats import measurement_caveats
from keras_matrix.analysis.comparison.table import summarise
from keras_matrix.analysis.stats.memory_growth import WARNING
from keras_matrix.records.instruments.usage import Usage
from keras_matrix.records.schema import Record, Resolved, Status, Surroundings, Times
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


def growing(slopes: Sequence[int]) -> list[Record]:
    """One record a process, whose host memory grows by so many bytes a step, with its warning if it does."""
    return [
        make_record(
            repeat=repeat,
            usage=Usage(1, 0.1, "processes", host_growth_bytes_per_step=slope),
            warnings=[f"{WARNING}: host memory grows by {slope} B a step; look for tensors"] if slope else [],
        )
        for repeat, slope in enumerate(slopes)
    ]


def test_memory_grows_if_it_does_over_all_processes() -> None:
    (caveat,) = measurement_caveats(growing([8 << 20, 9 << 20, 8 << 20, 0, 8 << 20, 8 << 20, 9 << 20, 8 << 20]))
    assert caveat.startswith("memory_grows: host memory grows by 7.25 MiB a step [")
    assert ", in 7 of 8 processes: longer training" in caveat
    (of_few,) = measurement_caveats(growing([8 << 20, 0, 8 << 20]))
    assert "in 2 of 3 processes" in of_few


def test_memory_that_grew_in_one_process_of_eight_is_no_caveat_of_the_cell() -> None:
    """Mutation: the interval is not looked at."""
    assert measurement_caveats(growing([8 << 20, *[0] * 7])) == ()


def test_quiet_cell_has_no_caveats() -> None:
    assert measurement_caveats(cell([epochs(seed) for seed in range(8)])) == ()
    assert measurement_caveats([]) == ()


def test_warming_up_caveat_advises_the_discard() -> None:
    warm = [[time_s * (1 + 2 * 0.4**i) for i, time_s in enumerate(epochs(seed, 16, 0.03))] for seed in range(5)]
    line = measurement_caveats(cell([*warm, epochs(9, 16)]))[0]
    assert line.startswith("still warming up in ")
    assert "of 6 processes: set discard: " in line


def test_outliers_are_counted() -> None:
    spoiled = [*epochs(1), 0.5]
    assert measurement_caveats(cell([spoiled, epochs(2), epochs(3)])) == (
        "outliers: 1 of 31 epochs are beyond ten robust deviations; they are included",
    )


def test_slow_and_fast_processes_are_reported_as_two_modes() -> None:
    slow = [[2 * time_s for time_s in epochs(seed)] for seed in (20, 21, 22)]
    (line,) = measurement_caveats(cell([*(epochs(seed) for seed in range(7)), *slow]))
    assert line.startswith("two modes of processes: 7 at 9.99 ms and 3 at 20.0 ms a step (p 0.0001)")


def test_unmeasured_records_have_no_caveats() -> None:
    failed = make_record(None, status=Status.CRASH, times=Times(epoch_times_s=[1.0] * 9 + [99.0]))
    assert measurement_caveats([failed]) == ()


def test_recompiles_and_graph_breaks_of_the_timed_region_are_caveats() -> None:
    def process(recompiles: int | None, breaks: int | None) -> Resolved:
        return Resolved(50, 32, "fork", "float32", recompiles_timed=recompiles, graph_breaks=breaks)

    made = [
        replace(record, resolved=process(*counts))
        for record, counts in zip(cell([epochs(1), epochs(2), epochs(3)]), [(2, 1), (0, 3), (None, None)], strict=True)
    ]
    recompiles, breaks = measurement_caveats(made)
    assert recompiles.startswith("recompiles in the timed region: 2 in 1 of 3 processes")
    assert breaks.startswith("graph breaks: torch.compile cut the step's program in 3 places")


def test_graph_breaks_of_measured_epochs_are_counted_separately() -> None:
    resolved = Resolved(50, 32, "fork", "float32", graph_breaks=3, graph_breaks_timed=2)
    (line,) = measurement_caveats([replace(record, resolved=resolved) for record in cell([epochs(1)])])
    assert "in 3 places, 2 of them during the measured epochs; " in line


def test_cell_slowed_down_by_waiting_cells_names_them() -> None:
    busy = [["jax:a (40.0 % of the CPUs)"], ["jax:a (20.0 % of the CPUs)", "torch:a (4.0 % of the CPUs)"], []]
    made = cell([epochs(1), epochs(2), epochs(3)])
    (line,) = measurement_caveats(
        [replace(r, surroundings=Surroundings(busy_neighbours=b)) for r, b in zip(made, busy, strict=True)]
    )
    assert line.startswith("busy neighbour: jax:a, torch:a computed while waiting for its turn, in 2 of 3 processes: ")


def test_cell_that_computes_while_it_waits_is_named_with_its_largest_share() -> None:
    shares = (0.5, 0.2, 0.03, None)
    made = cell([epochs(seed) for seed in range(4)])
    around = [Surroundings(waiting_cpu_share=share) for share in shares]
    (line,) = measurement_caveats([replace(r, surroundings=one) for r, one in zip(made, around, strict=True)])
    assert line.startswith("computes while it waits: up to 50.0 % of the CPUs, in 2 of 4 processes: ")


def test_summary_has_the_caveats_of_its_cell() -> None:
    made = cell([[*epochs(1), 0.5]])
    assert summarise(made).caveats == measurement_caveats(made)

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
from tests.golden import Golden
from tests.messages import check_messages


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


def test_memory_that_grew_in_one_process_of_eight_is_no_caveat_of_the_cell() -> None:
    """Mutation: the interval is not looked at."""
    assert measurement_caveats(growing([8 << 20, *[0] * 7])) == ()


def test_quiet_cell_has_no_caveats() -> None:
    assert measurement_caveats(cell([epochs(seed) for seed in range(8)])) == ()
    assert measurement_caveats([]) == ()


def test_unmeasured_records_have_no_caveats() -> None:
    failed = make_record(None, status=Status.CRASH, times=Times(epoch_times_s=[1.0] * 9 + [99.0]))
    assert measurement_caveats([failed]) == ()


def resolved(counts: Sequence[dict[str, int]]) -> list[Record]:
    """One record a process, with these counts of what its backend did."""
    records = cell([epochs(seed) for seed in range(1, 1 + len(counts))])
    return [
        replace(record, resolved=Resolved(50, 32, "fork", "float32", **count))
        for record, count in zip(records, counts, strict=True)
    ]


def disturbed(*surroundings: Surroundings) -> list[Record]:
    """One record a process, in these surroundings."""
    records = cell([epochs(seed) for seed in range(1, 1 + len(surroundings))])
    return [replace(record, surroundings=around) for record, around in zip(records, surroundings, strict=True)]


def test_every_caveat_has_its_text_with_advice(golden: Golden) -> None:
    warm = [[time_s * (1 + 2 * 0.4**i) for i, time_s in enumerate(epochs(seed, 16, 0.03))] for seed in range(5)]
    slow = [[2 * time_s for time_s in epochs(seed)] for seed in (20, 21, 22)]
    neighbours = (["jax:a (40.0 % of the CPUs)"], ["jax:a (20.0 % of the CPUs)", "torch:a (4.0 % of the CPUs)"], [])
    cells = {
        "memory that grows in seven processes of eight": growing([mib << 20 for mib in (8, 9, 8, 0, 8, 8, 9, 8)]),
        "memory that grows in two processes of three": growing([8 << 20, 0, 8 << 20]),
        "five processes of six still warm up": cell([*warm, epochs(9, 16)]),
        "an outlier": cell([[*epochs(1), 0.5], epochs(2), epochs(3)]),
        "seven fast processes and three slow ones": cell([*(epochs(seed) for seed in range(7)), *slow]),
        "recompiles and graph breaks": resolved(
            [{"recompiles_timed": 2, "graph_breaks": 1}, {"recompiles_timed": 0, "graph_breaks": 3}, {}]
        ),
        "graph breaks of the measured epochs": resolved([{"graph_breaks": 3, "graph_breaks_timed": 2}]),
        "neighbours that compute while they wait": disturbed(
            *(Surroundings(busy_neighbours=names) for names in neighbours)
        ),
        "a cell that computes while it waits": disturbed(
            *(Surroundings(waiting_cpu_share=share) for share in (0.5, 0.2, 0.03, None))
        ),
    }
    check_messages(golden, "caveats.txt", {title: measurement_caveats(records) for title, records in cells.items()})


def test_summary_has_the_caveats_of_its_cell() -> None:
    made = cell([[*epochs(1), 0.5]])
    assert summarise(made).caveats == measurement_caveats(made)

"""The summary of a run, and a night's projection."""

from __future__ import annotations

import sys
from collections import Counter
from dataclasses import replace
from statistics import fmean
from typing import Any

import numpy as np
import pytest

from keras_matrix.analysis.comparison import run_summary
from keras_matrix.analysis.comparison.table import Row, table
from keras_matrix.analysis.stats.blocks import blocks_needed
from keras_matrix.analysis.stats.sequential import LOOKS
from keras_matrix.analysis.views.result_table import result_table
from keras_matrix.records.schema import Harness, Record, Status, Times
from tests.analysis.comparison.test_table import APART, records_of
from tests.conftest import make_record, make_settings

WALL_S, IMPORT_S = 9.0, 1.0
MOST_CALLS_PER_EPOCH = 13


def rows(noise: float = 0.04, repeats: int = 5, **more: Any) -> list[Row]:
    """Return the table of three backends whose processes cost ten seconds each."""
    found = records_of(APART, noise=noise, repeats=repeats, harness=Harness(wall_time_s=WALL_S), **more)
    return table([_imported(record) for record in found])


def _imported(record: Record) -> Record:
    times = replace(record.times, import_time_s=IMPORT_S)
    return replace(record, times=times)


def test_detectable_comparisons_are_counted() -> None:
    assert run_summary.detectable(rows(noise=0.001), 0.05) == run_summary.Fraction(2, 2)
    assert run_summary.detectable(rows(noise=0.2), 0.05) == run_summary.Fraction(0, 2)


@pytest.mark.parametrize(
    ("status", "of", "remark"), [(Status.CRASH, 4, " (1 not compared)"), (Status.UNSUPPORTED, 3, "")]
)
def test_failed_cells_count_as_not_shown_and_unsupported_ones_not_at_all(status: Status, of: int, remark: str) -> None:
    failed = [
        replace(r, status=status, reason="a reason", times=Times()) if r.settings.backend == "torch" else r
        for r in records_of(APART, noise=0.001, workload="gru", harness=Harness(wall_time_s=WALL_S))
    ]
    both = [*rows(noise=0.001), *table(failed)]
    assert run_summary.detectable(both, 0.05) == run_summary.Fraction(3, of)
    assert run_summary.projected(both, 1e9) == run_summary.Fraction(3, of)
    assert result_table(both).summary[-1] == f"a difference of 5.0 % would have shown in 3 of {of} comparisons{remark}"


def test_rows_that_are_not_comparable_count_as_not_shown() -> None:
    elsewhere = [
        replace(r, machine=replace(r.machine, host_id=f"{len(r.settings.backend):016}")) for r in records_of(APART)
    ]
    assert run_summary.detectable(table(elsewhere), 0.05) == run_summary.Fraction(0, 2)
    assert result_table(table(elsewhere)).summary == []


def test_budget_includes_a_comparison_only_if_it_reaches_its_look() -> None:
    found = rows()
    needed = max(blocks_needed(ratio.scatter or 0.0, 0.05) or 0 for ratio in found[0].ratios)
    look = next(at for at in LOOKS.blocks if at >= needed)
    cost_s = look * 3 * (WALL_S + IMPORT_S)
    assert run_summary.projected(found, cost_s) == run_summary.Fraction(2, 2)
    assert run_summary.projected(found, cost_s - 1) == run_summary.Fraction(0, 2)


def test_undetectable_comparison_gets_no_blocks() -> None:
    assert run_summary.projected(rows(noise=0.3), 1e9) == run_summary.Fraction(0, 2)


def test_cheapest_comparisons_come_first() -> None:
    both = [*rows(noise=0.001), *rows(noise=0.04, workload="gru")]
    cheap_s = 5 * 3 * (WALL_S + IMPORT_S)
    assert run_summary.projected(both, cheap_s) == run_summary.Fraction(2, 4)


def test_rows_of_a_block_share_its_servers() -> None:
    both = [*rows(noise=0.001), *rows(noise=0.001, workload="gru")]
    cost_s = 5 * 3 * (2 * WALL_S + IMPORT_S)
    assert run_summary.projected(both, cost_s) == run_summary.Fraction(4, 4)
    assert run_summary.projected(both, cost_s - 1) == run_summary.Fraction(2, 4)


@pytest.mark.parametrize("found", [[], rows(repeats=1)], ids=["nothing", "one repeat"])
def test_too_little_data_gives_no_projection(found: list[Row]) -> None:
    assert run_summary.projected(found, 1e9) is None


def test_projection_is_reported_only_if_it_adds_comparisons() -> None:
    assert "in 2 after --repeats auto --budget 7200" in result_table(rows()).summary[-1]
    assert result_table(rows(noise=0.001)).summary[-1] == "a difference of 5.0 % would have shown in 2 of 2 comparisons"
    assert result_table([]).summary == []


def test_statistics_of_a_hundred_thousand_epochs_call_few_functions() -> None:
    """A hundred works of one workload, on two backends, in five processes of a hundred epochs each: under a second.

    Mutation: a process's mean is computed by a Python function of each epoch.
    """
    noise = np.random.default_rng(1)
    made = []
    for size in range(1, 101):
        for backend in ("jax", "torch"):
            settings = make_settings(backend=backend, batch_size=size)
            for repeat in range(5):
                epochs_s = noise.lognormal(0, 0.02, 100).tolist()
                record = make_record(fmean(epochs_s) / 50, repeat, settings=settings)
                made.append(replace(record, times=replace(record.times, epoch_times_s=epochs_s)))
    table(made[:10])  # what is imported late is not the statistics
    calls = Counter[str]()
    sys.setprofile(lambda frame, event, argument: calls.update([event]))
    try:
        rows = table(made)
        lines = result_table(rows).summary
    finally:
        sys.setprofile(None)
    assert (len(rows), sum(len(r.times.epoch_times_s) for r in made)) == (100, 100_000)
    assert lines[-1].endswith("of 100 comparisons")
    assert 10_000 < calls["call"] < 100_000 * MOST_CALLS_PER_EPOCH, calls

"""Figures across cells of the FC modes: efficiency, communication, data against model parallelism."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import pytest

from keras_matrix.analysis.comparison.table import CellSummary, summarise
from keras_matrix.analysis.fc import FcFigure, data_versus_model, fc_figures
from keras_matrix.analysis.roofline import PeakShare
from keras_matrix.records.fc import spec
from keras_matrix.records.fc.communication import Communication, TimingMethod
from keras_matrix.records.fc.spec import FcProblem
from keras_matrix.records.schema import Memory, Record
from tests.synthetic_fc import fc_cells, fc_records


def of_tasks(*tasks: tuple[FcProblem, Sequence[float]], backend: str = "jax") -> list[CellSummary]:
    return fc_cells([record for task, times_s in tasks for record in fc_records(task, backend, times_s)])


def figure(cells: Sequence[CellSummary], mode: str = "fc_data", workers: int = 2) -> FcFigure:
    found = [f for f in fc_figures(cells, {}) if (f.task.mode, f.task.workers) == (mode, workers)]
    assert len(found) == 1
    return found[0]


ONE, TWO = FcProblem(mode="fc_data"), FcProblem(mode="fc_data", workers=2)


def test_efficiency_is_throughput_over_that_of_one_worker_times_the_workers() -> None:
    found = figure(of_tasks((ONE, [0.8]), (TWO, [0.5]))).efficiency
    assert found is not None
    assert (found.centre, found.low) == (pytest.approx(0.8 / 0.5 / 2), None)


def test_efficiency_is_paired_by_block_and_has_an_interval_from_five_on() -> None:
    # Blocks differ in speed; within a block two workers are always faster by the same factor.
    alone = [0.8, 1.6, 0.4, 3.2, 0.1]
    found = figure(of_tasks((ONE, alone), (TWO, [s / 1.5 for s in alone]))).efficiency
    assert found is not None
    assert (found.centre, found.low, found.high, found.count) == (*[pytest.approx(0.75)] * 3, 5)


def test_block_of_only_one_cell_does_not_count() -> None:
    found = figure(of_tasks((ONE, [0.8, 0.8]), (TWO, [0.5]))).efficiency
    assert found is not None
    assert found.count == 1


def test_physics_takes_more_samples_with_more_workers() -> None:
    physics = FcProblem(mode="fc_phy")
    found = figure(of_tasks((physics, [0.5]), (physics.changed(workers=2), [0.625])), "fc_phy").efficiency
    assert found is not None
    assert found.centre == pytest.approx(0.8)


@pytest.mark.parametrize(
    "other", [ONE.changed(batch_size=64), ONE.changed(mode="fc_data_manual"), ONE.changed(weight_size=512), TWO]
)
def test_without_the_same_cell_on_one_worker_there_is_no_efficiency(other: FcProblem) -> None:
    cells = of_tasks((TWO, [0.5])) + ([] if other == TWO else of_tasks((other, [0.8])))
    assert figure(cells).efficiency is None


def test_one_worker_of_another_backend_is_not_used() -> None:
    cells = of_tasks((TWO, [0.5])) + of_tasks((ONE, [0.8]), backend="torch")
    assert figure(cells).efficiency is None


def watched(records: Sequence[Record], *timings: tuple[float, float]) -> list[Record]:
    """Return the records with collectives of this share of this step, one repeat after another."""
    return [
        replace(
            r, parallel=replace(r.parallel, communication=Communication(TimingMethod.TIMED, [s], [s * (1 - share)]))
        )
        for r, (s, share) in zip(records, timings, strict=True)
        if r.parallel
    ]


def test_time_in_communication_is_the_median_over_the_repeats() -> None:
    records = watched(fc_records(TWO, "torch", [0.5, 0.5, 0.5]), (1.0, 0.1), (2.0, 0.3), (9.0, 0.2))
    found = figure([summarise(records)])
    assert found.spent is not None
    assert (found.communication_share, found.spent.method) == (pytest.approx(0.2), TimingMethod.TIMED)
    assert found.spent.step_time_s == 2.0


def test_throughput_and_bytes_are_those_of_all_workers() -> None:
    physics = FcProblem(mode="fc_phy", workers=4, phy_blocks=2, shared_ratio=0.5)
    found = figure(of_tasks((physics, [0.5])), "fc_phy", 4)
    assert found.samples_per_s == pytest.approx(8 * 128 / 0.5)
    assert found.bytes_per_step == 2 * 3 * 512 * (10 * 1024 + 1) * 4


def test_unwatched_communication_is_none_and_no_collective_is_zero() -> None:
    assert figure(of_tasks((TWO, [0.5]))).communication_share is None
    silent = FcProblem(mode="fc_data_ff", workers=2)
    assert figure(of_tasks((silent, [0.5])), "fc_data_ff").communication_share == 0.0


def test_communication_of_keras_own_path_is_unknown() -> None:
    records = [replace(record, parallel=None) for record in fc_records(FcProblem(mode="fc_keras"), "jax", [0.5])]
    assert figure([summarise(records)], "fc_keras", 1).communication_share is None


def test_shares_of_the_machine_are_those_of_the_roofline() -> None:
    cells = of_tasks((TWO, [0.5]))
    (cell,) = cells
    none: dict[str, Any] = dict.fromkeys(PeakShare.__dataclass_fields__)
    share = PeakShare(**none | {"share_of_peak": 0.6, "share_of_own_gemm": 0.9})
    (found,) = fc_figures(cells, {cell.cell_id: share})
    assert (found.share_of_best, found.share_of_own) == (0.6, 0.9)
    assert found.flop_per_s == pytest.approx(spec.flops_per_step(TWO) / 0.5)
    (bare,) = fc_figures(cells, {})
    assert (bare.share_of_best, bare.share_of_own) == (None, None)


def test_memory_is_the_largest_workers() -> None:
    records = [
        replace(r, parallel=replace(r.parallel, peak_worker_memory_bytes=peaks))
        for r, peaks in zip(fc_records(TWO, "torch", [0.5, 0.5]), ([300, 310], [305, 290]), strict=True)
        if r.parallel
    ]
    found = figure([summarise(records)])
    assert (found.worker_memory_bytes, found.processes) == (310, 2)


def test_memory_of_keras_own_path_is_that_of_its_process() -> None:
    keras = FcProblem(mode="fc_keras")
    records = [
        replace(r, parallel=None, memory=Memory(peak_host_memory_bytes=peak))
        for r, peak in zip(fc_records(keras, "torch", [0.5, 0.5]), (300, 310), strict=True)
    ]
    found = figure([summarise(records)], "fc_keras", 1)
    assert (found.worker_memory_bytes, found.processes) == (310, 1)
    untold = [replace(record, memory=Memory()) for record in records]
    assert figure([summarise(untold)], "fc_keras", 1).worker_memory_bytes is None


def duel_of(*tasks: tuple[FcProblem, Sequence[float]]) -> list[tuple[float, bool]]:
    cells = of_tasks(*tasks)
    found = data_versus_model(fc_figures(cells, {}), {cell.cell_id: cell for cell in cells})
    return [(duel.ratio.centre, duel.settled) for duel in found]


MODEL = TWO.changed(mode="fc_model")


def test_data_parallelism_is_compared_with_model_parallelism_of_the_same_work() -> None:
    assert duel_of((TWO, [0.2] * 5), (MODEL, [0.3] * 5)) == [(pytest.approx(1.5), True)]
    assert duel_of((TWO, [0.2]), (MODEL, [0.3])) == [(pytest.approx(1.5), False)]


@pytest.mark.parametrize(
    "other",
    [
        MODEL.changed(batch_size=64),
        MODEL.changed(workers=4),
        MODEL.changed(mode="fc_model_manual"),
        MODEL.changed(mode="fc_model_ff"),
    ],
)
def test_different_work_is_not_compared(other: FcProblem) -> None:
    assert duel_of((TWO, [0.2]), (other, [0.3])) == []


def test_one_worker_has_no_comparison_of_parallelism() -> None:
    assert duel_of((ONE, [0.2]), (MODEL.changed(workers=1), [0.3])) == []

"""Figures across the cells of the FC modes: rates and shares of the peak, communication, the efficiency of workers, and
data against model parallelism.

Guarantee: pure; None if a part was not measured. Throughputs are compared block by block, in the repeats that both
cells have, and only between cells of one backend whose settings are otherwise equal.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace

from keras_matrix.analysis.comparison.table import CellSummary, log_ratios
from keras_matrix.analysis.hardware.roofline import PeakShare
from keras_matrix.analysis.scaling.step_breakdown import StepBreakdown, step_breakdown
from keras_matrix.analysis.stats.blocks import Estimate, of_logs
from keras_matrix.records.codec import canonical
from keras_matrix.records.fc import rules, spec
from keras_matrix.records.fc.spec import FcProblem
from keras_matrix.records.schema import Record
from keras_matrix.records.settings import Settings

# The modes of data parallelism and those of model parallelism for the same work.
RIVALS = {"fc_data_ff": "fc_model_ff", "fc_data": "fc_model", "fc_data_manual": "fc_model_manual"}


@dataclass(frozen=True, slots=True)
class FcFigure:
    """One cell of the FC modes over its repeats.

    Shares of the machine's best measured product and of the backend's own are of 1; `communication_share` is 0 if
    no collective was called. `bytes_per_step` is the payload by formula, `wire_bytes_per_step` what processes send for
    it (None if workers share a process). `efficiency` is throughput over that of one worker times the workers, with
    its interval. `worker_memory_bytes` is the largest peak of a process with workers, `processes` their number.
    """

    cell_id: str
    settings: Settings
    task: FcProblem
    step_time_s: float
    samples_per_s: float
    flop_per_s: float
    share_of_best: float | None
    share_of_own: float | None
    bytes_per_step: int
    communication_share: float | None
    spent: StepBreakdown | None
    efficiency: Estimate | None
    worker_memory_bytes: int | None
    processes: int
    wire_bytes_per_step: int | None


@dataclass(frozen=True, slots=True)
class DataVersusModel:
    """Data against model parallelism at one size: the ratio of the model-parallel step's time to the other's."""

    data: FcFigure
    model: FcFigure
    ratio: Estimate

    @property
    def settled(self) -> bool:
        """Return whether the interval separates the two; False without an interval."""
        return self.ratio.excludes(1.0)


def figures(cells: Iterable[CellSummary], shares: Mapping[str, PeakShare]) -> list[FcFigure]:
    """Return the figures of the measured cells of the FC modes; `shares` are by cell_id."""
    found = [cell for cell in cells if cell.settings.workload == spec.WORKLOAD and cell.step_time]
    alone = {work_of(cell.settings): cell for cell in found if spec.problem_of(cell.settings).workers == 1}
    return [_figure(cell, shares.get(cell.cell_id), alone.get(work_of(cell.settings))) for cell in found]


def work_of(settings: Settings) -> str:
    """Return the identity of a cell's backend and work, independent of the number of its workers."""
    return canonical(rules.one_worker(settings))


def data_versus_model(figures: Sequence[FcFigure], cells: Mapping[str, CellSummary]) -> list[DataVersusModel]:
    """Return data against model parallelism wherever both were measured on more than one worker.

    `cells` are those of the figures, by cell_id.
    """
    found = []
    for figure in figures:
        rival = RIVALS.get(figure.task.mode) if figure.task.workers > 1 else None
        other = with_mode(figure, rival, figures) if rival else None
        if other and (ratio := ratio_of(other, figure, cells)):
            found.append(DataVersusModel(figure, other, ratio))
    return found


def with_mode(figure: FcFigure, mode: str, figures: Iterable[FcFigure]) -> FcFigure | None:
    """Return the figure whose settings differ from this one's only by this mode."""
    settings = replace(figure.settings, params={**figure.settings.params, "mode": mode})
    return next((one for one in figures if one.settings == settings), None)


def ratio_of(one: FcFigure, other: FcFigure, cells: Mapping[str, CellSummary]) -> Estimate | None:
    """Return the ratio one / other of the time of a step over their common blocks; `cells` are by cell_id."""
    return of_logs(list(log_ratios(cells[one.cell_id], cells[other.cell_id]).values()))


def _figure(cell: CellSummary, share: PeakShare | None, alone: CellSummary | None) -> FcFigure:
    assert cell.step_time is not None
    task, step_time_s = spec.problem_of(cell.settings), cell.step_time.centre
    peaks = [_peaks_bytes(record) for record in cell.measured]
    counted = [record.parallel for record in cell.measured]
    spent = step_breakdown(one.communication for one in counted if one)
    silent = bool(counted) and all(one is not None and not one.counted_bytes_per_step for one in counted)
    return FcFigure(
        cell_id=cell.cell_id,
        settings=cell.settings,
        task=task,
        step_time_s=step_time_s,
        samples_per_s=task.samples_per_step / step_time_s,
        flop_per_s=spec.flops_per_step(task) / step_time_s,
        share_of_best=share.share_of_peak if share else None,
        share_of_own=share.share_of_own_gemm if share else None,
        bytes_per_step=spec.traffic_per_step(task).sent_bytes(task.workers),
        communication_share=0.0 if silent else spent.share if spent else None,
        spent=spent,
        efficiency=_efficiency(cell, alone),
        worker_memory_bytes=max((peak for own in peaks for peak in own), default=None),
        processes=max((len(own) for own in peaks), default=1) or 1,
        wire_bytes_per_step=spec.wire_bytes_of(record.parallel for record in cell.measured),
    )


def _peaks_bytes(record: Record) -> list[int]:
    """Return the peak of each process with workers; Keras's own path has one, the cell's."""
    if record.parallel is not None:
        return record.parallel.peak_worker_memory_bytes
    own = record.memory.peak_host_memory_bytes
    return [] if own is None else [own]


def _efficiency(cell: CellSummary, alone: CellSummary | None) -> Estimate | None:
    """Return throughput over that of one worker times the workers; None for one worker, or without its cell."""
    task = spec.problem_of(cell.settings)
    if alone is None or task.workers == 1:
        return None
    # For fc_phy more workers take more samples a step; for the others this is 1 / workers.
    gained = task.samples_per_step / spec.problem_of(alone.settings).samples_per_step / task.workers
    speed_up = of_logs(list(log_ratios(alone, cell).values()))
    return speed_up.scaled(gained) if speed_up else None

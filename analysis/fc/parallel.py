"""What the cells of the FC modes say together: rates and their shares, communication, what more workers gained, and
whether the data or the model is better divided.

Promise: pure; None where a part was not measured. Throughputs are compared block by block, in the repeats that both
cells have, and only between cells of one backend whose settings are otherwise equal.
"""

from __future__ import annotations

import math
import statistics
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace

from keras_matrix.analysis.comparison.table import CellSummary, by_repeat
from keras_matrix.analysis.hardware.roofline import Share
from keras_matrix.analysis.stats.blocks import Estimate, of_logs, paired_logs
from keras_matrix.records.codec import canonical
from keras_matrix.records.fc import rules, spec
from keras_matrix.records.fc.communication import Method
from keras_matrix.records.fc.spec import FcProblem
from keras_matrix.records.schema import Record
from keras_matrix.records.settings import Settings

# What is set against what: the same work, its data divided or its model.
RIVALS = {
    "fc_data_ff": "fc_model_ff",
    "fc_data": "fc_model",
    "fc_data_manual": "fc_model_manual",
}


@dataclass(frozen=True, slots=True)
class Spent:
    """Where a step's time went, in the epochs in which its collectives were watched: medians over the repeats.

    Seconds; `share` is of 1, and below 0 where a difference drowned in noise.
    """

    method: Method
    step_time_s: float
    share: float


@dataclass(frozen=True, slots=True)
class Figure:
    """One cell of the FC modes over its repeats.

    Shares of the machine's best measured product and of the backend's own are of 1; `communication_share` is 0 where
    no collective was called. `bytes_per_step` is the payload by formula, `wire_bytes_per_step` what processes send for
    it (None where workers share a process). `efficiency` is throughput over that of one worker times the workers, with
    its interval. `worker_memory_bytes` is the largest peak of a process that holds workers, `processes` how many.
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
    spent: Spent | None
    efficiency: Estimate | None
    worker_memory_bytes: int | None
    processes: int
    wire_bytes_per_step: int | None


@dataclass(frozen=True, slots=True)
class Duel:
    """Data against model parallelism at one size: how many times longer a step of the model's takes."""

    data: Figure
    model: Figure
    ratio: Estimate

    @property
    def settled(self) -> bool:
        """Return whether the interval tells which is faster; not where there is none."""
        return self.ratio.excludes(1.0)


def figures(cells: Iterable[CellSummary], shares: Mapping[str, Share]) -> list[Figure]:
    """Return the figures of those cells that are of the FC modes and were measured; `shares` are by cell_id."""
    found = [cell for cell in cells if cell.settings.workload == spec.WORKLOAD and cell.step_time]
    alone = {work_of(cell.settings): cell for cell in found if spec.problem_of(cell.settings).workers == 1}
    return [_figure(cell, shares.get(cell.cell_id), alone.get(work_of(cell.settings))) for cell in found]


def work_of(settings: Settings) -> str:
    """Return what identifies a cell's backend and work, whatever the number of its workers."""
    return canonical(rules.one_worker(settings))


def duels(figures: Sequence[Figure], cells: Mapping[str, CellSummary]) -> list[Duel]:
    """Return data against model parallelism wherever both were measured on more than one worker.

    `cells` are those of the figures, by cell_id.
    """
    by_settings = {canonical(figure.settings): figure for figure in figures}
    return list(_duels(figures, by_settings, cells))


def _duels(
    figures: Sequence[Figure], by_settings: Mapping[str, Figure], cells: Mapping[str, CellSummary]
) -> Iterator[Duel]:
    for figure in figures:
        rival = RIVALS.get(figure.task.mode)
        if rival is None or figure.task.workers == 1:
            continue
        asked = replace(figure.settings, params={**figure.settings.params, "mode": rival})
        other = by_settings.get(canonical(asked))
        if other is None:
            continue
        logs = paired_logs(by_repeat(cells[other.cell_id]), by_repeat(cells[figure.cell_id]))
        if ratio := of_logs(list(logs.values())):
            yield Duel(figure, other, ratio)


def _figure(cell: CellSummary, share: Share | None, alone: CellSummary | None) -> Figure:
    assert cell.step_time is not None
    task, step_time_s = spec.problem_of(cell.settings), cell.step_time.centre
    peaks = [_peaks_bytes(record) for record in cell.measured]
    spent = _spent(cell.measured)
    return Figure(
        cell_id=cell.cell_id,
        settings=cell.settings,
        task=task,
        step_time_s=step_time_s,
        samples_per_s=task.samples_per_step / step_time_s,
        flop_per_s=spec.flops_per_step(task) / step_time_s,
        share_of_best=share.share_of_peak if share else None,
        share_of_own=share.share_of_own_gemm if share else None,
        bytes_per_step=spec.traffic_per_step(task).sent_bytes(task.workers),
        communication_share=0.0 if _silent(cell.measured) else spent.share if spent else None,
        spent=spent,
        efficiency=_efficiency(cell, alone),
        worker_memory_bytes=max((peak for own in peaks for peak in own), default=None),
        processes=max((len(own) for own in peaks), default=1) or 1,
        wire_bytes_per_step=spec.wire_bytes_of(record.parallel for record in cell.measured),
    )


def _peaks_bytes(record: Record) -> list[int]:
    """Return the peak of each process that holds workers; Keras's own path has one, the cell's."""
    if record.parallel is not None:
        return record.parallel.peak_worker_memory_bytes
    own = record.memory.peak_host_memory_bytes
    return [] if own is None else [own]


def _silent(records: Sequence[Record]) -> bool:
    """Return whether these cells were seen to call no collective at all."""
    told = [record.parallel for record in records]
    return bool(told) and all(one is not None and not one.counted_bytes_per_step for one in told)


def _spent(records: Sequence[Record]) -> Spent | None:
    seen = [r.parallel.communication for r in records if r.parallel and r.parallel.communication]
    if not seen:
        return None
    return Spent(
        seen[0].method,
        statistics.median(one.step_time_s for one in seen),
        statistics.median(one.share for one in seen),
    )


def _efficiency(cell: CellSummary, alone: CellSummary | None) -> Estimate | None:
    """Return throughput against that of one worker times the workers; None for one worker, or without its cell."""
    task = spec.problem_of(cell.settings)
    if alone is None or task.workers == 1:
        return None
    # For fc_phy more workers take more samples a step; for the others this is 1 / workers.
    gained = task.samples_per_step / spec.problem_of(alone.settings).samples_per_step / task.workers
    logs = [math.log(gained) + log for log in paired_logs(by_repeat(alone), by_repeat(cell)).values()]
    return of_logs(logs)

"""What a Keras workload gains from several devices: speed-up over one device, efficiency, and communication share.

A cell is compared with that of the same backend on one device, all other settings equal, in the repeats that both have
at one machine; of GPUs that were used at the same time, the one device's must be among the several. Guarantee: pure; a
speed-up is known only for equal work, and without one the reason is. Limit: what `jit: auto` chooses, and where batches
are, may differ between one device and several; this is part of the speed-up, and stated with it.

The communication share of a step, of the FC modes' workers and of a Keras workload's devices. Pure.
"""

from __future__ import annotations

import statistics
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace

from keras_matrix.analysis.comparison.machines import noun
from keras_matrix.analysis.comparison.ratios import BackendRatio, at_each, bracketed, ratio_of, too_few
from keras_matrix.analysis.comparison.same_work import differing
from keras_matrix.analysis.comparison.table import CellSummary, Row, paired_at_machines, work_id
from keras_matrix.analysis.stats.blocks import Estimate
from keras_matrix.records.backends import TABLE
from keras_matrix.records.codec import canonical
from keras_matrix.records.fc.communication import Communication, TimingMethod
from keras_matrix.records.instruments.gpu_place import gpus_of_place, host_of_place
from keras_matrix.records.replicas import FED_FROM_HOST, Replicas
from keras_matrix.records.schema import Record
from keras_matrix.records.settings import DATA, Settings
from keras_matrix.records.text import percentage

FASTER = "faster than one device"
NOT_MEASURED = "one device not measured"
NO_SUCH_CELL = f"{NOT_MEASURED}: set devices: [1, {{}}]"
# Their shares are not comparable (docs/devices.md).
HOW = {TimingMethod.TIMED: "each collective timed, with waiting", TimingMethod.PROFILED: "by the profiler"}


@dataclass(frozen=True, slots=True)
class DeviceScaling:
    """A measured cell on several devices against the one on one device.

    `ratio` is the time of a step on one device over that on all; without it `missing` says why. `spent` is None if the
    collectives were not timed. `compiled` says how the steps were compiled, and `fed` where batches are, if that
    differs. `work` is the title of the row on one device; without such a row, that of this one, the devices removed.
    `work_id` is the identity of that work, whatever its backend.
    """

    cell_id: str
    settings: Settings
    work: str
    work_id: str
    replicas: Replicas
    ratio: BackendRatio | None
    missing: str
    spent: StepBreakdown | None
    compiled: str
    fed: str

    @property
    def devices(self) -> int:
        """The number of devices."""
        return self.settings.devices

    @property
    def speed_up(self) -> Estimate | None:
        """The time of a step on one device over that on all; None if they are not compared."""
        return self.ratio.estimate if self.ratio else None

    @property
    def efficiency(self) -> Estimate | None:
        """The speed-up divided by the number of devices; None without a speed-up."""
        return self.speed_up.scaled(1 / self.devices) if self.speed_up else None

    @property
    def verdict(self) -> str:
        """The result in words; the interval decides between faster and slower."""
        if self.ratio is None:
            return "not known"
        speed_up = self.ratio.estimate
        if self.ratio.machines_disagree:
            return (
                f"the {noun([machine_ratio.machine for machine_ratio in self.ratio.by_machine])} disagree: "
                f"{at_each(self.ratio)}"
            )
        if speed_up.bounds is None:
            return too_few([self.ratio])
        if not speed_up.excludes(1.0):
            return "not separable from no gain"
        return FASTER if speed_up.centre > 1 else "slower than one device"

    @property
    def text(self) -> str:
        """The result as one line, such as `torch 1.62x [1.55 1.70] on 2 devices, efficiency 81 %`."""
        devices_text = f"on {self.devices} devices"
        communication_note = f"communication {self.spent.share_text} ({self.spent.how})" if self.spent else ""
        if self.speed_up is None or self.efficiency is None:
            texts = [f"{self.settings.backend} {devices_text}: {self.missing}", communication_note]
        else:
            verdict_text = "" if self.verdict == FASTER else f" ({self.verdict})"
            gain_text = f"{self.settings.backend} {bracketed(self.speed_up)} {devices_text}{verdict_text}"
            figures = (gain_text, f"efficiency {percentage(self.efficiency.centre)}", communication_note)
            texts = [", ".join(figure for figure in figures if figure), self.compiled, self.fed]
        return "; ".join(text for text in texts if text)


def device_scalings(rows: Sequence[Row]) -> list[DeviceScaling]:
    """Return the scaling of each measured cell on several devices, in the order of the table."""
    pair_by_settings = {canonical(cell.settings): (row, cell) for row in rows for cell in row.cells.values()}
    return [
        _scaling(row, cell, replicas, pair_by_settings)
        for row in rows
        for cell in row.cells.values()
        if cell.step_time and (replicas := next((r.replicas for r in cell.measured if r.replicas), None))
    ]


def on_one_device(settings: Settings) -> Settings:
    """Return the settings of the same cell on one device."""
    return replace(settings, devices=1, distribution=DATA)


def _scaling(
    row: Row, cell: CellSummary, replicas: Replicas, cells: Mapping[str, tuple[Row, CellSummary]]
) -> DeviceScaling:
    base, one_device_cell = cells.get(canonical(on_one_device(cell.settings)), (row, None))
    missing_reason = _missing(cell, one_device_cell)
    logs: Mapping[str, Sequence[float]] = {}
    if one_device_cell is not None and not missing_reason:
        logs, missing_reason = _paired(one_device_cell, cell)
    return DeviceScaling(
        cell_id=cell.cell_id,
        settings=cell.settings,
        work=str(base.labels.without("devices", "distribution")) if base.labels else base.title,
        work_id=work_id(on_one_device(cell.settings)),
        replicas=replicas,
        ratio=ratio_of(cell.settings.backend, logs, row.looks) if logs else None,
        missing=missing_reason,
        spent=step_breakdown(r.replicas.communication for r in cell.measured if r.replicas),
        compiled=_compiled(cell, one_device_cell) if one_device_cell and logs else "",
        fed=_fed(cell.settings.devices, replicas) if logs else "",
    )


def _paired(one_device_cell: CellSummary, cell: CellSummary) -> tuple[Mapping[str, Sequence[float]], str]:
    """Return the log ratios of the blocks in which both ran, by place of the one device; without any, why not.

    Without `parallel_devices` records name no GPUs: they are the first ones that the matrix allows, the one among them.
    """
    single_records, several_records = (
        {(host_of_place(r.place), r.repeat): r for r in side.measured} for side in (one_device_cell, cell)
    )
    why_by_block = {
        block: _apart(record, several_records[block])
        for block, record in single_records.items()
        if block in several_records
    }
    if logs := paired_at_machines(
        {block: single_records[block] for block, why in why_by_block.items() if not why}, several_records
    ):
        return logs, ""
    return {}, next(filter(None, why_by_block.values()), "no repeat in common with one device")


def _apart(record: Record, several_record: Record) -> str:
    """Return why the GPU of one device is not one of several's; empty if it is, or if no session gave them GPUs."""
    gpus, group = set(gpus_of_place(record.place)), set(gpus_of_place(several_record.place))
    if bool(gpus) != bool(group):
        return "a part of the run began without parallel_devices, and names no GPU"
    return "" if gpus <= group else "one device was measured on another GPU"


def _missing(cell: CellSummary, one_device_cell: CellSummary | None) -> str:
    """Return why a cell has no speed-up; empty if the cell on one device did the same work."""
    if one_device_cell is None:
        return NO_SUCH_CELL.format(cell.settings.devices)
    if one_device_cell.step_time is None:
        return f"{NOT_MEASURED}: " + ", ".join(sorted({str(status) for status, _ in one_device_cell.failures}))
    reason = differing(
        {"one device": one_device_cell.measured, f"{cell.settings.devices} devices": cell.measured}, apart=True
    )
    return f"not comparable with one device: {reason}" if reason else ""


def _compiled(cell: CellSummary, one_device_cell: CellSummary) -> str:
    """Return how the steps were compiled, if one device's differs; else an empty text."""
    single_jits, several_jits = (
        {r.resolved.jit_compile for r in side.measured if r.resolved} for side in (one_device_cell, cell)
    )
    if single_jits == several_jits or single_jits != {True}:
        return ""
    why = TABLE[cell.settings.backend].not_compiled
    return f"one device runs a compiled step, {cell.settings.devices} devices do not" + (f" ({why})" if why else "")


def _fed(devices: int, replicas: Replicas) -> str:
    """Return where batches are, if several devices get them from host memory and one does not; else an empty text."""
    if FED_FROM_HOST not in replicas.semantics:
        return ""
    return f"one device has its batches in its memory, {devices} devices get theirs from host memory"


@dataclass(frozen=True, slots=True)
class StepBreakdown:
    """The communication share of a step's time, in the epochs with timed collectives: medians over the repeats.

    Seconds; `share` is of 1, and negative if noise exceeds a difference.
    """

    method: TimingMethod
    step_time_s: float
    share: float

    @property
    def how(self) -> str:
        """How the share was measured, in a few words."""
        return HOW[self.method]

    @property
    def share_text(self) -> str:
        """The share as a percentage."""
        return communication_text(self.share)


def communication_text(share: float) -> str:
    """Return a communication share as a percentage; below zero it is noise, whose value says nothing."""
    return percentage(share) if share >= 0 else "below 0 %"


def step_breakdown(all_communications: Iterable[Communication | None]) -> StepBreakdown | None:
    """Return the medians over the repeats in which collectives were timed; None if they were in none."""
    known_communications = [communication for communication in all_communications if communication is not None]
    if not known_communications:
        return None
    step_time_s, share = (
        statistics.median(getattr(communication, name) for communication in known_communications)
        for name in ("step_time_s", "share")
    )
    return StepBreakdown(known_communications[0].method, step_time_s, share)

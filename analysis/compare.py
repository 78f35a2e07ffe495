"""From a run's records to its table: one row a piece of work, one column a backend, and what may be said of them.

A comparison is drawn only between cells that did the same work in the same league. The fastest is named only where the
intervals of the ratios, paired by block, separate it from every other; otherwise the row says that it does not.
"""

from __future__ import annotations

import statistics
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace

from analysis.statistics import (
    CONFIDENCE,
    MIN_PROCESSES,
    Estimate,
    geometric,
    paired_ratio,
    smallest_difference,
    spread,
)
from records.codec import canonical, to_json
from records.schema import MEASURED, Record, Status
from records.settings import BACKENDS, Scalar, Settings

Usual = Mapping[str, Mapping[str, Scalar]]


@dataclass(frozen=True, slots=True)
class CellSummary:
    """One cell over its processes. Times in seconds, memory in bytes; None where not measured."""

    cell_id: str
    settings: Settings
    records: tuple[Record, ...]
    step_time: Estimate | None
    spread: float | None
    smallest_difference: float | None
    samples_per_s: float | None
    first_epoch_time_s: float | None
    first_step_time_s: float | None
    epoch_time_s: float | None
    fixed_time_per_epoch_s: float | None
    seed_total_time_s: float | None
    call_time_p50_s: float | None
    call_time_p99_s: float | None
    peak_host_memory_bytes: int | None
    peak_device_memory_bytes: int | None
    failures: tuple[tuple[Status, str], ...]
    warnings: tuple[str, ...]

    @property
    def measured(self) -> tuple[Record, ...]:
        """The records that hold figures."""
        return tuple(record for record in self.records if record.status in MEASURED)


@dataclass(frozen=True, slots=True)
class Ratio:
    """How much longer a step takes on `backend` than on the quickest one."""

    backend: str
    estimate: Estimate


@dataclass(frozen=True, slots=True)
class Row:
    """One piece of work on several backends, and the verdict."""

    title: str
    cells: dict[str, CellSummary]
    fastest: str | None
    verdict: str
    ratios: tuple[Ratio, ...] = ()


def table(records: Iterable[Record], usual: Usual | None = None) -> list[Row]:
    """Return the rows of a run, in the order of their titles.

    `usual` gives, per workload, the values that go without saying; a title names what differs from them.
    """
    by_cell: dict[str, list[Record]] = {}
    for record in records:
        by_cell.setdefault(record.cell_id, []).append(record)
    works: dict[str, dict[str, CellSummary]] = {}
    for cell_records in by_cell.values():
        summary = summarise(cell_records)
        works.setdefault(work_key(summary.settings), {})[summary.settings.backend] = summary
    titles = _titles([next(iter(cells.values())).settings for cells in works.values()], usual or {})
    rows = [_row(title, cells) for title, cells in zip(titles, works.values(), strict=True)]
    return sorted(rows, key=lambda row: row.title)


def work_key(settings: Settings) -> str:
    """Return what names the work itself: the settings without the backend."""
    return canonical(replace(settings, backend=""))


def summarise(records: Sequence[Record]) -> CellSummary:
    """Summarise one cell's records: of each repeat, the latest attempt."""
    latest: dict[int, Record] = {}
    for record in sorted(records, key=lambda record: record.key):
        latest[record.repeat] = record
    kept = tuple(latest.values())
    measured = [record for record in kept if record.status in MEASURED]
    times = [record.times for record in measured]
    step_times = [t.step_time_s for t in times if t.step_time_s]
    return CellSummary(
        cell_id=kept[0].cell_id,
        settings=kept[0].settings,
        records=kept,
        step_time=geometric(step_times),
        spread=spread(step_times),
        smallest_difference=smallest_difference(step_times),
        samples_per_s=_median(t.samples_per_s for t in times),
        first_epoch_time_s=_median(t.first_epoch_time_s for t in times),
        first_step_time_s=_median(t.first_step_time_s for t in times),
        epoch_time_s=_median(t.epoch_time_median_s for t in times),
        fixed_time_per_epoch_s=_median(t.fixed_time_per_epoch_s for t in times),
        seed_total_time_s=_median(t.seed_total_time_s for t in times),
        call_time_p50_s=_median(t.call_time_p50_s for t in times),
        call_time_p99_s=_median(t.call_time_p99_s for t in times),
        peak_host_memory_bytes=_maximum(record.memory.peak_host_memory_bytes for record in measured),
        peak_device_memory_bytes=_maximum(record.memory.peak_device_memory_bytes for record in measured),
        failures=tuple(sorted({(r.status, r.reason or "") for r in kept if r.status not in MEASURED})),
        warnings=tuple(sorted({warning for record in kept for warning in record.warnings})),
    )


def incomparable(cells: dict[str, CellSummary]) -> str | None:
    """Return why these cells did not do the same work, or None when they did."""
    facts: dict[str, Callable[[Record], object]] = {
        "parameters": lambda record: record.resolved and record.resolved.parameters,
        "precisions": lambda record: record.resolved and record.resolved.precision,
        "TF32 settings": lambda record: record.resolved and record.resolved.tf32,
        "CPUs": lambda record: record.resolved and record.resolved.cpus,
        "kinds of data": lambda record: record.resolved and record.resolved.data_is_real,
        "steps per epoch": lambda record: record.resolved and record.resolved.steps_per_epoch,
        "devices": lambda record: record.device and record.device.platform,
        "hosts": lambda record: record.machine.host_id,
    }
    for name, fact in facts.items():
        found = {b: sorted({str(fact(r)) for r in cell.measured}) for b, cell in cells.items() if cell.measured}
        if len({tuple(texts) for texts in found.values()}) > 1:
            told = ", ".join(f"{backend} {'/'.join(texts)}" for backend, texts in sorted(found.items()))
            return f"{name} differ: {told}"
    return None


def _row(title: str, cells: dict[str, CellSummary]) -> Row:
    cells = {backend: cells[backend] for backend in BACKENDS if backend in cells}
    running = {backend: cell for backend, cell in cells.items() if cell.step_time}
    if len(running) < 2:
        return Row(title, cells, None, "nothing to compare")
    if reason := incomparable(running):
        return Row(title, cells, None, f"not comparable: {reason}")
    quickest = min(running, key=lambda backend: _centre(running[backend]))
    others = [backend for backend in running if backend != quickest]
    # Bonferroni: all ratios hold together with the stated confidence.
    confidence = 1 - (1 - CONFIDENCE) / len(others)
    ratios = tuple(
        Ratio(backend, estimate)
        for backend in others
        if (estimate := paired_ratio(_by_repeat(running[backend]), _by_repeat(running[quickest]), confidence))
    )
    fastest = quickest if len(ratios) == len(others) and all((r.estimate.low or 0) > 1 for r in ratios) else None
    return Row(title, cells, fastest, _verdict(quickest, fastest, ratios, len(others)), ratios)


def _verdict(quickest: str, fastest: str | None, ratios: Sequence[Ratio], others: int) -> str:
    if fastest:
        told = ", ".join(f"{r.estimate.centre:.2f}x {r.backend}" for r in ratios)
        return f"{fastest} is fastest: {told}"
    if any(ratio.estimate.low is None for ratio in ratios):
        return f"not separable: fewer than {MIN_PROCESSES} repeats"
    if len(ratios) < others:
        return "not separable: some cells have no repeat in common"
    open_ = [ratio for ratio in ratios if (ratio.estimate.low or 0) <= 1]
    told = ", ".join(f"{r.backend} {r.estimate.low:.2f}-{r.estimate.high:.2f}x" for r in open_)
    return f"not separable: {quickest} against {told}"


def _titles(works: Sequence[Settings], usual: Usual) -> list[str]:
    """Name each work by its workload, by what is unusual about it, and by what tells it from the workload's others."""
    return [_title(one, [w for w in works if w.workload == one.workload], usual.get(one.workload)) for one in works]


def _title(settings: Settings, same: Sequence[Settings], usual: Mapping[str, Scalar] | None) -> str:
    details = []
    for key, value in _flat(settings).items():
        varies = any(_flat(other).get(key) != value for other in same)
        unusual = usual is not None and key in usual and usual[key] != value
        if varies or unusual:
            details.append(f"{key}={value}")
    return " ".join([settings.workload, *details])


def _flat(settings: Settings) -> dict[str, Scalar]:
    plain = to_json(settings)
    params = plain.pop("params")
    return {**params, **{key: value for key, value in plain.items() if key not in ("backend", "workload")}}


def _by_repeat(cell: CellSummary) -> dict[int, float]:
    return {r.repeat: r.times.step_time_s for r in cell.measured if r.times.step_time_s}


def _centre(cell: CellSummary) -> float:
    assert cell.step_time is not None
    return cell.step_time.centre


def _median(values: Iterable[float | None]) -> float | None:
    found = [value for value in values if value is not None]
    return statistics.median(found) if found else None


def _maximum(values: Iterable[int | None]) -> int | None:
    return max((value for value in values if value is not None), default=None)

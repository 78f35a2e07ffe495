"""The stall analyses of a run: for each the bottleneck, advice with predicted and measured speed-ups, and caveats.

A module of its own: a section that only runs with stall analyses have.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from keras_matrix.analysis.comparison.ratios import bracketed, share_text
from keras_matrix.analysis.comparison.table import Row
from keras_matrix.analysis.stalls.report import Advice, BottleneckKind, StallPart, StallReport, VerifiedAdvice
from keras_matrix.dashboards.charts import input_workers, stalls
from keras_matrix.dashboards.charts.dot_plots import StripPicture
from keras_matrix.dashboards.charts.figure_table import Grid, GridRow
from keras_matrix.dashboards.charts.picture import slot_of
from keras_matrix.dashboards.charts.stalls import span
from keras_matrix.records.text import NOTHING, number, percentage, plural, seconds


@dataclass(frozen=True, slots=True)
class InputSheet:
    """One analysis in words; `reason` says why there is none, `bound` is false if the input costs nothing."""

    title: str
    backend: str
    slot: int
    where: str
    bottleneck: str = ""
    why: str = ""
    bound: bool = True
    without_advice: str = ""
    facts: tuple[GridRow, ...] = ()
    advice: Grid | None = None
    parts: Grid | None = None
    caveats: tuple[str, ...] = ()
    reason: str = ""


@dataclass(frozen=True, slots=True)
class Inputs:
    """The content of the section: its pictures, and a sheet for each analysis."""

    split: StripPicture | None
    left_out: str | None
    workers: input_workers.WorkerPanels
    queue: StripPicture | None
    sheets: list[InputSheet]

    @property
    def any(self) -> bool:
        """Whether there is anything to show."""
        return bool(self.workers.panels or self.sheets)


def inputs(rows: Sequence[Row], reports: Sequence[StallReport]) -> Inputs:
    """Return the section of a run's table and its stall analyses."""
    reports = sorted(reports, key=lambda report: (report.settings.workload, slot_of(report.settings.backend)))
    return Inputs(
        stalls.splits(reports),
        stalls.left_out(reports),
        input_workers.pictures(rows, reports),
        stalls.queues(reports),
        [_sheet(report, label) for report, label in zip(reports, stalls.labels(reports), strict=True)],
    )


def _sheet(report: StallReport, label: str) -> InputSheet:
    backend = report.settings.backend
    title = label or report.settings.workload
    if report.bottleneck is None:
        return InputSheet(title, backend, slot_of(backend), "", reason=report.reason or "no analysis")
    return InputSheet(
        title,
        backend,
        slot_of(backend),
        _where(report),
        bottleneck=str(report.bottleneck),
        why=report.explanation,
        bound=report.bottleneck not in (BottleneckKind.NONE, BottleneckKind.UNDECIDED),
        without_advice=report.without_advice,
        facts=tuple(_facts(report)),
        advice=_advice(report),
        parts=_parts(report.parts),
        caveats=tuple(report.all_caveats),
    )


def _where(report: StallReport) -> str:
    facts = report.facts
    prefetch = f"prefetch {facts.prefetch}" if facts and facts.prefetch is not None else None
    decoder = facts.decoder if facts else None
    return " · ".join(part for part in (plural(report.blocks, "block"), report.page_cache, decoder, prefetch) if part)


def _facts(report: StallReport) -> Iterator[GridRow]:
    """Yield the figures of an analysis that were measured."""
    rates, step_time = report.rates, report.observed_arm.step_time
    if step_time is not None:
        yield GridRow("time of a step", [seconds(step_time.centre)])
    if report.stall is not None:
        yield GridRow("input stall", [share_text(report.stall)])
    if report.input_bound is not None:
        yield GridRow("input-bound, by timers", [share_text(report.input_bound)])
    if report.ceiling is not None:
        yield GridRow("ceiling", [bracketed(report.ceiling)])
    if rates.fetch_wall_s is not None:
        yield GridRow("fetch, a sample", [f"{seconds(rates.fetch_wall_s)}, CPU {seconds(rates.fetch_cpu_s)}"])
    if rates.prepare_wall_s is not None:
        yield GridRow("prepare, a sample", [f"{seconds(rates.prepare_wall_s)}, CPU {seconds(rates.prepare_cpu_s)}"])
    if rates.prepared_per_cpu_s is not None:
        yield GridRow("prepared", [f"{number(rates.prepared_per_cpu_s)} samples per CPU-second"])
    if rates.concurrency is not None:
        yield GridRow("CPUs of the pipeline", [f"{number(rates.concurrency)} of {rates.cores}"])
    if rates.storage_text:
        yield GridRow("storage", [rates.storage_text])
    if rates.cache_hit_share is not None:
        yield GridRow("from the page cache", [percentage(rates.cache_hit_share)])
    if rates.timers_cpu_share is not None:
        yield GridRow("cost of the timers", [f"{percentage(rates.timers_cpu_share)} of their own arm"])


def _advice(report: StallReport) -> Grid | None:
    """Return the changes with their predicted speed-ups, and with the measured ones if any was applied."""
    if not report.advice:
        return None
    columns = ["predicted", "measured", "verdict"] if report.verified else ["predicted", "step"]
    rows = []
    for advice in report.advice:
        verified = report.applied(advice)
        more_cells = _applied(verified) if report.verified else [seconds(advice.step_time_s)]
        rows.append(GridRow(_advice_text(advice, verified), [bracketed(advice.speed_up), *more_cells]))
    return Grid("What would help, by its speed-up", columns, rows)


def _applied(verified: VerifiedAdvice | None) -> list[str]:
    if verified is None:
        return [NOTHING, "not applied"]
    return [bracketed(verified.measured) if verified.measured else NOTHING, str(verified.verdict)]


def _advice_text(advice: Advice, verified: VerifiedAdvice | None) -> str:
    remarks = [text for text in (advice.note, verified.reason if verified else None) if text]
    return f"{advice.text} ({'; '.join(remarks)})" if remarks else advice.text


def _parts(parts: Sequence[StallPart]) -> Grid:
    rows = [
        GridRow(
            f"{part.name}: {part.meaning}" if part.meaning else part.name,
            [part.share_text, span(part.share) if part.share else NOTHING, part.time_text],
        )
        for part in parts
    ]
    return Grid("The parts of a step", ["share", "interval", "time a step"], rows)

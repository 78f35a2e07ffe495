"""Pictures of stall analyses: where an epoch goes, and the queue over time.

Pure functions from the reports of `analysis.stalls`. A part that its interval does not separate from zero is named and
not drawn: what a bar lacks up to 100 % is such parts, and one that is below zero makes a bar end above 100 %.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import replace

from keras_matrix.analysis.comparison.titles import titled
from keras_matrix.analysis.stalls.bottleneck import COMPUTE, COPY, FETCH, INTERFERENCE, PREPARATION
from keras_matrix.analysis.stalls.report import StallPart, StallReport
from keras_matrix.analysis.stats.blocks import Estimate
from keras_matrix.dashboards.charts import axes
from keras_matrix.dashboards.charts.axes import Axis
from keras_matrix.dashboards.charts.dot_plots import Strip, StripPicture, bar_part, level, strip_picture
from keras_matrix.dashboards.charts.picture import CURVE_HEIGHT, CURVE_WIDTH, TO_MIDDLE, Curves, Picture, Word, slot_of
from keras_matrix.records.instruments.input_use import InputFacts
from keras_matrix.records.settings import Settings
from keras_matrix.records.text import (
    NOTHING,
    PERCENT,
    number,
    percentage,
    percentage_interval,
    plural,
    quantity,
    unit_for,
)

PARTS = (COMPUTE, FETCH, PREPARATION, COPY, INTERFERENCE)
OPEN = "not resolved"
BAR_HEIGHT = 34
LEAST_LABELLED = 0.12  # of the bar: less has no space for its share on a narrow screen
LEAST_OPEN = 0.005
QUEUE_HEIGHT, MARGIN = 76, 6
MOST_REPORTS = 40
SHOWN_BY_FACTS = ("input_workers", "worker_kind", "pipeline", "dataset_path")


def css_class(part_name: str) -> str:
    """Return the class in the style sheet of a part, or of what is not resolved."""
    return f"stall-{part_name.replace(' ', '-')}"


def span(estimate: Estimate) -> str:
    """Return the interval of a share as text."""
    return percentage_interval(estimate.low, estimate.high) if estimate.bounds else "no interval"


def workers_text(workers: int | None, kind: str | None) -> str:
    """Return the workers of a pipeline as text, '' if they are not known."""
    if workers is None:
        return ""
    if workers == 0:
        return "training thread"
    return plural(workers, kind or "worker", "processes" if kind == "process" else None)


def pipeline_text(facts: InputFacts | None) -> str:
    """Return what distinguishes a pipeline, such as `grain, 2 threads, folder`."""
    if facts is None:
        return ""
    stored_text = facts.stored_as.replace("_", " ") if facts.stored_as else ""
    return ", ".join(
        part for part in (facts.pipeline, workers_text(facts.workers, facts.worker_kind), stored_text) if part
    )


def labels(reports: Sequence[StallReport]) -> list[str]:
    """Return a label for each report: its pipeline, and the settings that differ between the reports."""
    labelled: list[str] = []
    for omitted_names, has_names in ((SHOWN_BY_FACTS, False), ((), False), ((), True)):
        labelled = _labels(reports, omitted_names, names=has_names)
        count_by_label = Counter(
            (report.settings.backend, label) for report, label in zip(reports, labelled, strict=True)
        )
        if max(count_by_label.values(), default=1) == 1:
            break
    return labelled


def splits(reports: Sequence[StallReport]) -> StripPicture | None:
    """Return where an epoch goes: a bar for each report that has one, None without any."""
    shown_reports = [
        (report, label) for report, label in zip(reports, labels(reports), strict=True) if _resolved(report)
    ]
    if not shown_reports:
        return None
    ends = [sum(_drawn(part) for part in _resolved(report)) for report, _ in shown_reports]
    axis = axes.from_zero([1.0, *ends], "share of the time of a step, %", PERCENT)
    return StripPicture("", "", axis, [_bar(report, label, axis) for report, label in shown_reports[:MOST_REPORTS]])


def queues(reports: Sequence[StallReport]) -> StripPicture | None:
    """Return the batches ready over the measured epochs: a curve for each report that has one, None without any."""
    shown_reports = [
        (report, label) for report, label in zip(reports, labels(reports), strict=True) if report.queue_sizes
    ]
    if not shown_reports:
        return None
    axis = Axis("part of the measured epochs, %", 0.0, 1.0, log=False, unit=PERCENT)
    return StripPicture("", "", axis, [_queue(report, label, axis) for report, label in shown_reports[:MOST_REPORTS]])


def left_out(reports: Sequence[StallReport]) -> str | None:
    """Return how many reports have no bar for lack of space; None if all have one."""
    count = len([report for report in reports if _resolved(report)]) - MOST_REPORTS
    return f"{plural(count, 'more configuration')} left out; stalls.json has all" if count > 0 else None


def _labels(reports: Sequence[StallReport], omitted_names: Sequence[str], *, names: bool) -> list[str]:
    """Return a label for each report; `names`: with the workload also where it is one of the catalog."""
    works = titled([_without(report.settings, omitted_names) for report in reports], {})
    texts = []
    for report, title in zip(reports, works, strict=True):
        # A user's own workload has a name of its own; a workload of the catalog is mostly the same in all bars.
        name, differing = title.workload if names or ":" in title.workload else "", title.differing
        texts.append(", ".join(part for part in (name, pipeline_text(report.facts), differing) if part))
    return texts


def _without(settings: Settings, names: Sequence[str]) -> Settings:
    return replace(settings, params={key: value for key, value in settings.params.items() if key not in names})


def _resolved(report: StallReport) -> list[StallPart]:
    """Return the parts to draw, in their order."""
    part_by_name = {part.name: part for part in report.parts if part.share is not None and part.resolved}
    return [part_by_name[name] for name in PARTS if name in part_by_name]


def _drawn(part: StallPart) -> float:
    return max(0.0, part.share.centre) if part.share else 0.0


def _bar(report: StallReport, label: str, axis: Axis) -> Strip:
    step_time = report.observed_arm.step_time
    unit = unit_for([step_time.centre]) if step_time else unit_for([])
    figure = quantity(step_time.centre, unit) if step_time else NOTHING
    part_texts = [f"{part.name} {_share(part)}" for part in _resolved(report)]
    name = f"{report.settings.backend}, {label}" if label else report.settings.backend
    notes = [_stall_note(report), *_open_notes(report, spans=False)]
    summary = f"{name}: {figure} a step; {'; '.join([*part_texts, _stall_note(report), *_open_notes(report)])}"
    picture = strip_picture(slot_of(report.settings.backend), BAR_HEIGHT, summary)
    begin = 0.0
    for stall in _resolved(report):
        _add(
            picture, axis, (begin, begin + _drawn(stall)), stall.name, f"{stall.name}: {_share(stall)}; {stall.meaning}"
        )
        begin += _drawn(stall)
    if 1 - begin > LEAST_OPEN:
        _add(picture, axis, (begin, 1.0), OPEN, "; ".join(_open_notes(report)) or OPEN)
    return Strip(name, f"{figure} a step", notes, picture)


def _add(picture: Picture, axis: Axis, ends: tuple[float, float], name: str, tip: str) -> None:
    start, end = (axis.share(value) for value in ends)
    picture.marks.append(bar_part(start, end, BAR_HEIGHT, css_class(name), tip))
    if name != OPEN and ends[1] - ends[0] >= LEAST_LABELLED:
        text = percentage(ends[1] - ends[0])
        picture.marks.append(Word(f"{(start + end) / 2:.2f}%", BAR_HEIGHT / 2 + TO_MIDDLE, text, anchor="middle"))


def _share(part: StallPart) -> str:
    if part.share is None:
        return NOTHING
    return percentage(part.share.centre, part.share.low, part.share.high) + (
        "" if part.share.bounds else " (no interval)"
    )


def _stall_note(report: StallReport) -> str:
    if report.stall is None:
        return "no share of input"
    return f"input stall {percentage(report.stall.centre, report.stall.low, report.stall.high)}"


def _open_notes(report: StallReport, *, spans: bool = True) -> list[str]:
    """Return which parts are not resolved, with their intervals if `spans`, and which were not measured."""
    unclear = [(part.name, part.share) for part in report.parts if part.share and not part.resolved]
    names = [f"{name} {span(share)}" if spans else name for name, share in unclear]
    unknown_names = [part.name for part in report.parts if part.share is None]
    notes = [f"{OPEN}: {', '.join(names)}"] if names else []
    return notes + ([f"not measured: {', '.join(unknown_names)}"] if unknown_names else [])


def _queue(report: StallReport, label: str, axis: Axis) -> Strip:
    sizes, most = report.queue_sizes, report.queue_capacity
    top = float(max(most or 0, *sizes)) or 1.0
    mean = number(report.mean_queue)
    figure = f"{mean} of {most}" if most else mean
    notes = ["batches ready on average", f"fewer than one in {percentage(report.short_queue_share)} of the time"]
    backend = report.settings.backend
    name = f"{backend}, {label}" if label else backend
    picture = strip_picture(slot_of(backend), QUEUE_HEIGHT, f"{name}: {figure} {', '.join(notes)}")
    inner = QUEUE_HEIGHT - 2 * MARGIN
    for value in (0.0, top):
        picture.axes.extend(level(round(MARGIN + (1 - value / top) * inner, 1), f"{value:g}"))
    point_texts = [
        f"{axis.share((place + 0.5) / len(sizes)) * CURVE_WIDTH / 100:.0f} {(1 - size / top) * CURVE_HEIGHT:.1f}"
        for place, size in enumerate(sizes)
    ]
    picture.marks.append(Curves(MARGIN, inner, (("M" + "L".join(point_texts), f"{name}: {figure} {notes[0]}"),)))
    return Strip(name, figure, notes, picture)

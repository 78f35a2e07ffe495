"""A comparison of base and new as text, as Markdown for a comment, and for machines."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from keras_matrix.analysis.comparison.primary_metric import STEP_TIME, primary_value
from keras_matrix.analysis.comparison.ratios import bracketed
from keras_matrix.analysis.comparison.titles import titles
from keras_matrix.analysis.comparison.versus import ACROSS_UNKNOWN, CellComparison, Versus
from keras_matrix.analysis.history.sessions import LEAST_PROCESSES, LEAST_SESSIONS
from keras_matrix.analysis.regression.gate import GateOutcome
from keras_matrix.analysis.stats.blocks import Estimate
from keras_matrix.analysis.stats.suite import SuiteRatio
from keras_matrix.records.codec import to_json
from keras_matrix.records.text import amount, count, percent_change, percentage_interval, printable
from keras_matrix.runner.cli.render.format import columns, document
from keras_matrix.runner.matrix.settings_text import title_defaults

Names = Mapping[str, str]
FACETS = ["workload", "backend", "median", "p95", "first epoch", "scatter between", "scatter within"]
FACETS += ["unstable", "recompiles", "forward FLOPs"]
SOONEST = "; to decide soonest, measure both interleaved: --base-env"
ACROSS_ADVICE = (
    f"an interval across sessions needs {LEAST_PROCESSES} processes on each side and {LEAST_SESSIONS} other stored "
    f"sessions of the cell{SOONEST}"
)
ACROSS_WIDE = (
    "the interval across these sessions is too wide to decide; more stored sessions of the cell narrow it, no further "
    f"than sessions differ{SOONEST}"
)
CAVEATS_SHOWN = 12
HEAD = ["workload", "backend", "base", "new", "new / base", "95 % interval", "blocks", "verdict"]


def names(found: Versus) -> Names:
    """Return a title for each cell: its workload, and the settings that are unusual or distinguish it from others."""
    cells = [one.either for one in found.comparisons]
    texts = titles([cell.settings for cell in cells], title_defaults())
    return {cell.cell_id: title for cell, title in zip(cells, texts, strict=True)}


def text(found: Versus, names: Names) -> str:
    """Return the findings for a terminal; `names` gives the title of each cell by its cell_id."""
    tables = [_rows(found, names), _facet_rows(found, names)]
    lines = [[line.rstrip() for line in columns(rows)] for rows in tables if len(rows) > 1]
    return "\n".join(printable(line) for line in [*(line for t in lines for line in (*t, "")), *_remarks(found, names)])


def markdown(found: Versus, names: Names) -> str:
    """Return the findings as Markdown: the verdict, the table, what changed."""
    verdict, *rest = _remarks(found, names)
    remarks = [f"- {_cell(line)}" for line in rest]
    tables = [*_table(_rows(found, names)), "", *_table(_facet_rows(found, names))]
    return "".join(f"{printable(line)}\n" for line in [f"### Benchmarks: {verdict}", "", *tables, "", *remarks])


def _table(rows: Sequence[Sequence[str]]) -> list[str]:
    lines = [f"| {' | '.join(_cell(text) for text in row)} |" for row in rows]
    return [lines[0], "|" + " --- |" * len(rows[0]), *lines[1:]]


def as_json(found: Versus, threshold: float) -> str:
    """Return the findings as one JSON document; docs/comparing.md explains its fields."""
    fields = {
        "outcome": str(found.outcome),
        "threshold": threshold,
        "base": found.runs[0] if found.runs else None,
        "new": found.runs[1] if found.runs else None,
        "notes": list(found.notes),
        "incomplete": found.incomplete,
        "paired": found.paired,
        "changed": list(found.changed),
        "comparisons": [_comparison_json(one) for one in found.comparisons],
        "by_backend": {name: to_json(ratio) for name, ratio in found.by_backend.items()},
        "whole": to_json(found.suite) if found.suite else None,
    }
    return document(fields)


def _comparison_json(one: CellComparison) -> dict[str, Any]:
    figure = one.either.figure
    return {
        "cell_id": one.cell_id,
        "settings": to_json(one.either.settings),
        "figure": to_json(figure),
        "base_step_time_s": _centre(one, "base") if figure == STEP_TIME else None,
        "new_step_time_s": _centre(one, "new") if figure == STEP_TIME else None,
        **{
            f"{side}_{name}": getattr(cell, f"step_time_{name}", None)
            for side, cell in (("base", one.base), ("new", one.new))
            for name in ("median", "p95")
        },
        "base_figure": _centre(one, "base"),
        "new_figure": _centre(one, "new"),
        "ratio": to_json(one.ratio) if one.ratio else None,
        "outcome": str(one.outcome),
        "adjusted_p": one.adjusted_p,
        "more_blocks": one.more_blocks,
        "called_early": one.early,
        "reason": one.reason,
        "kinds": [str(kind) for kind in one.facets.kinds] if one.facets else [],
        "facets": to_json(one.facets) if one.facets else None,
        "caveats": list(one.caveats),
        "failures": list(one.failures),
        "log_ratios": list(one.logs),
        "all_data": to_json(one.all_data) if one.all_data else None,
    }


def _rows(found: Versus, names: Names) -> list[list[str]]:
    rows = [HEAD]
    for one in found.comparisons:
        title = names[one.cell_id]
        figures = [amount(_centre(one, side), one.either.figure.unit) for side in ("base", "new")]
        blocks = str(len(one.logs)) if found.paired else "-"
        rows.append([title, one.either.settings.backend, *figures, *_ratio(one.ratio), blocks, one.said])
    for backend, suite in found.by_backend.items():
        rows.append(_suite_row("geometric mean", backend, suite))
    if found.suite and len(found.by_backend) > 1:
        rows.append(_suite_row("geometric mean", "all", found.suite))
    return rows


def _facet_rows(found: Versus, names: Names) -> list[list[str]]:
    """Return the table of the other figures, new against base."""
    rows = [FACETS]
    for one in found.comparisons:
        if (facets := one.facets) is not None:
            scatters = [_times(verdict.estimate) for verdict in (facets.scatter, facets.scatter_within)]
            counts = (facets.unstable_processes, facets.recompiles, facets.forward_flops)
            counted = [f"{count(one.new)} : {count(one.base)}" for one in counts]
            step = [_moved(one, "step_time_median"), _moved(one, "step_time_p95")]
            first = " ".join(_ratio(facets.first_epoch.estimate)).replace(" none", "")
            rows.append([names[one.cell_id], one.either.settings.backend, *step, first, *scatters, *counted])
    return rows


def _moved(one: CellComparison, name: str) -> str:
    """Return how a quantile of the processes' step times moved; it has no verdict."""
    base, new = getattr(one.base, name), getattr(one.new, name)
    return percent_change(new / base) if base and new and one.either.figure == STEP_TIME else "-"


def _times(ratio: Estimate | None) -> str:
    return "-" if ratio is None else bracketed(ratio)


def _suite_row(title: str, backend: str, suite: SuiteRatio) -> list[str]:
    return [title, backend, "", "", *_ratio(suite.estimate), str(suite.estimate.count), ""]


def _ratio(ratio: Estimate | None) -> list[str]:
    if ratio is None:
        return ["-", "-"]
    bounds = None if ratio.bounds is None else [bound - 1 for bound in ratio.bounds]
    return [percent_change(ratio.centre), percentage_interval(*bounds) if bounds else "none"]


def _centre(one: CellComparison, side: str) -> float | None:
    cell = one.base if side == "base" else one.new
    if cell is None:
        return None
    return cell.step_time.centre if cell.step_time else primary_value(cell.measured)


def _remarks(found: Versus, names: Names) -> list[str]:
    """Return the verdict, then remarks: findings, failures, changed versions, caveats and notes."""
    counts = {outcome: sum(one.outcome is outcome for one in found.comparisons) for outcome in GateOutcome}
    summary = ", ".join(f"{count} {outcome}" for outcome, count in counts.items() if count)
    lines = [f"{found.outcome} ({summary or 'nothing in common'})"]
    cells = [(f"{names[one.cell_id]} on {one.either.settings.backend}", one) for one in found.comparisons]
    lines += [f"{name}: {one.facets.said}" for name, one in cells if one.facets and one.facets.said]
    lines += [
        f"{name}: with the disturbed blocks, too: " + " ".join(_ratio(one.all_data)).replace(" none", "")
        for name, one in cells
        if one.all_data
    ]
    lines += [f"failed: {name}: {failure}" for name, one in cells for failure in one.failures]
    if found.changed:
        lines.append(f"changed: {', '.join(found.changed)}")
    lines += _shortened([f"caveat: {name}: {caveat}" for name, one in cells for caveat in one.caveats])
    if not found.paired:
        lines += [
            "base and new are from two sessions: intervals include the spread between sessions, where it is known",
            *_advice(found),
        ]
    if found.runs:
        lines.append("base {}, new {}".format(*found.runs))
    lines += found.notes
    return lines


def _advice(found: Versus) -> list[str]:
    """Return what would decide the undecided comparisons across sessions; a paired one says it in its verdict."""
    undecided = [one for one in found.comparisons if one.outcome is GateOutcome.UNDECIDED]
    if not undecided:
        return []
    return [ACROSS_ADVICE if any(one.reason == ACROSS_UNKNOWN for one in undecided) else ACROSS_WIDE]


def _shortened(caveats: Sequence[str]) -> list[str]:
    more = len(caveats) - CAVEATS_SHOWN
    return [*caveats[:CAVEATS_SHOWN], *([f"and {more} more caveats: --json lists all of them"] if more > 0 else [])]


def _cell(text: str) -> str:
    return text.replace("|", "\\|").replace("<", "&lt;")

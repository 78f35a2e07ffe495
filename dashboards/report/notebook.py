"""A run in a notebook: the report's picture of the comparisons, and their verdicts as a table.

`render` is pure. The result is a part of a page: its style applies only inside it, it runs no script and loads nothing,
and every name is escaped. Where a viewer removes styles and drawings, the table remains.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

from keras_matrix.analysis.views.result_table import ResultTable, WorkView
from keras_matrix.dashboards.charts import axes
from keras_matrix.dashboards.report import environment, results
from keras_matrix.dashboards.report.page import rendered, stylesheet
from keras_matrix.records.schema import Record
from keras_matrix.records.text import ratio_text

SHOWN = 50  # comparisons; a notebook is stored with its outputs
SCOPE = ".keras-matrix"


@dataclass(frozen=True, slots=True)
class NotebookLine:
    """A line of the table."""

    title: str
    text: str
    ratios: tuple[str, ...]
    same_work: str
    caveats: tuple[str, ...]


def render(records: Sequence[Record], table: ResultTable, pending: int) -> str:
    """Return the HTML of a run: how its processes ended, and at most `SHOWN` comparisons."""
    shown_works = table.works[:SHOWN]
    plots, axis = results.findings(shown_works)
    # Links to sections of the report have no target here.
    plots = [replace(plot, anchor="", caveats={}) for plot in plots]
    style = stylesheet("notebook") + (axes.rules(".findings > .finding > .plot", axis, strong=1.0) if axis else "")
    return rendered(
        "notebook.html",
        scoped(style),
        answer=table.answer.text,
        machine_line=environment.machine_line(records),
        tallies=results.tallies(records, pending),
        findings=plots,
        ratio_axis=axis,
        verdicts=[_verdict(work) for work in shown_works],
        more=len(table.works) - len(shown_works),
    )


def scoped(style: str) -> str:
    """Return a page's style sheet such that it applies only inside `SCOPE`, which takes the place of the body."""
    return f"{SCOPE} {{{style.replace(':root', '&').replace('body {', '& {')}}}"


def _verdict(work: WorkView) -> NotebookLine:
    row = work.row
    ratio_texts = tuple(
        _ratio(ratio.backend, ratio.estimate.centre, ratio.estimate.low, ratio.estimate.high) for ratio in row.ratios
    )
    return NotebookLine(row.title, row.verdict, ratio_texts, work.same_work.text, row.caveats)


def _ratio(backend: str, centre: float, low: float | None, high: float | None) -> str:
    return f"{backend} {ratio_text(centre, low, high)}"

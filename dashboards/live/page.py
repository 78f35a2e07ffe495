"""A dashboard: panels of answers on one self-contained page.

`render` is pure. Rows are shown as text; a Content-Security-Policy of hashes admits only this page's own style sheet
and script. A served page and a page written as a file differ only in how they are filtered.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path

from keras_matrix.dashboards.charts import axes
from keras_matrix.dashboards.live import panels
from keras_matrix.dashboards.live.panels import Panel
from keras_matrix.dashboards.live.questions import EARLIEST_DAY, DashboardFilter, Question, Reader, answer, with_titles
from keras_matrix.dashboards.live.session import MeasuredSession
from keras_matrix.dashboards.report import page as report
from keras_matrix.records.text import plural
from keras_matrix.uploader.errors import UploadError
from keras_matrix.uploader.outbox import Outbox
from keras_matrix.uploader.schema import CELLS
from keras_matrix.uploader.sql import with_views
from keras_matrix.uploader.warehouse import outbox_folder

SELF = "'self'"
# Dashboards show findings: runs without findings appear under few questions, and an empty page must explain itself.
RUN_COUNTS = """
SELECT COUNT(*) AS runs, SUM(IF(f.run_id IS NULL, 1, 0)) AS without_findings
FROM (SELECT DISTINCT run_id FROM cells WHERE source IS NULL AND day >= CAST(@since AS DATE)) AS c
LEFT JOIN (SELECT DISTINCT run_id FROM findings WHERE day >= CAST(@since AS DATE)) AS f ON f.run_id = c.run_id
"""
# The newest title of a cell's work, in which settings tell it from the other works of its run; a trend has none.
CELL_WORK = """
SELECT f.work, f.backend
FROM latest_findings AS f
WHERE f.kind = 'figure' AND f.cell_id = @cell AND f.day >= CAST(@since AS DATE)
ORDER BY f.run_id DESC, f.work
LIMIT 1
"""
EMPTY = (
    "Nothing was measured yet, or nothing was pushed here. Measure with `runner --matrix matrix.yaml`, then send the "
    "results with `uploader push`."
)


@dataclass(frozen=True, slots=True)
class Form:
    """The choices of a visitor of a served page; `since` is the first available day, '' for any."""

    action: str
    workloads: Sequence[str]
    backends: Sequence[str]
    since: str = ""


@dataclass(frozen=True, slots=True)
class RunCounts:
    """The number of runs in a warehouse, without imported ones, and of those without findings."""

    runs: int
    without_findings: int

    def notices(self, notice_if_empty: Callable[[], str] = lambda: EMPTY) -> list[str]:
        """Return the notices at the top of a page; `notice_if_empty` explains a warehouse without runs."""
        if not self.runs:
            return [notice_if_empty()]
        if not self.without_findings:
            return []
        verbs = "has no findings and appears" if self.without_findings == 1 else "have no findings and appear"
        return [
            f"{self.without_findings:,} of {plural(self.runs, 'run')} {verbs} only under failures, "
            "machines and runs. Create findings with `runner report --run RUN`, then send them with `uploader push`."
        ]


@dataclass(frozen=True, slots=True)
class Frame:
    """The title, text and links of a page; `link` and `run_link` return '' for a cell or a run without a page.

    `path` are the pages above this one: text and address of each, '' for no address. `session` is the one that is being
    measured, if there is one. With a `state` the page asks for its server's now and then, and loads itself anew once it
    differs.
    """

    heading: str
    lead: str
    link: Callable[[str], str]
    run_link: Callable[[str], str] = lambda run_id: ""
    home: str = ""
    notices: Sequence[str] = ()
    form: Form | None = None
    choice: DashboardFilter = DashboardFilter()
    session: MeasuredSession | None = None
    state: str = ""
    path: Sequence[tuple[str, str]] = ()


def run_counts(warehouse: Reader, since: str = EARLIEST_DAY) -> RunCounts:
    """Return the number of runs in a warehouse from a day on. Raises `WarehouseFailure`."""
    [(runs, without)] = warehouse.query(RUN_COUNTS, {"since": since}).rows
    return RunCounts(int(runs), int(without or 0))


def empty_notice(address: str, results: Path) -> str:
    """Return why a local warehouse has no runs: nothing was ever sent to it, or its files were removed."""
    try:
        sent_items = Outbox(outbox_folder(address, results)).sent()[CELLS.name]
    except UploadError as error:
        return f"{EMPTY} The outbox cannot be read: {error}"
    if not sent_items:
        return EMPTY
    return (
        f"This warehouse is empty, although {plural(len(sent_items), 'attempt')} had been sent to it: its files have "
        f"been removed. Send them again with `uploader push --repair --to {address} --results {results}`."
    )


def panels_of(warehouse: Reader, questions: Iterable[Question], choice: DashboardFilter) -> list[Panel]:
    """Return a panel per question; the panel of a failed query shows the error."""
    return [panel_of(warehouse, question, choice) for question in questions]


def panel_of(warehouse: Reader, question: Question, choice: DashboardFilter) -> Panel:
    """Return the panel of one question."""
    try:
        return panels.panel(question, with_titles(warehouse, answer(warehouse, question, choice).dicts(), choice))
    except UploadError as error:
        return Panel(question, 0, "problem", problem=str(error))


def render(shown_panels: Sequence[Panel], frame: Frame) -> str:
    """Return the page."""
    rules = (
        axes.rules(f"#{panel.question.name} div.plot", panel.pictures[0].axis)
        for panel in shown_panels
        if panel.pictures
    )
    return report.rendered(
        "dashboard.html",
        report.stylesheet("history", "roofline", "dashboard") + "".join(rules),
        (report.TEMPLATES / f"{_script(frame)}.js").read_text(encoding="utf-8") if _script(frame) else "",
        f"{SELF}; connect-src {SELF}" if frame.state else SELF if frame.form else "'none'",
        frame=frame,
        heading=frame.heading,
        link=frame.link,
        run_link=frame.run_link,
        shown=shown_panels,
    )


@dataclass(frozen=True, slots=True)
class CellPage:
    """The answer about one cell over time; `heading` is its work and backend, as `gru batch_size=64 on jax`."""

    cell_id: str
    panel: Panel
    heading: str

    @property
    def newest_run(self) -> str:
        """The newest run that measured it; empty if there is none."""
        return max(
            (point.run_id for series_picture in self.panel.series for point in series_picture.series.points), default=""
        )


def cell_heading(warehouse: Reader, cell_id: str, since: str = EARLIEST_DAY) -> str:
    """Return the name of a cell: its work and backend; its identifier without a figure. Raises `UploadError`."""
    rows = warehouse.query(with_views(CELL_WORK), {"cell": cell_id, "since": since}).rows
    return next((f"{work} on {backend}" for work, backend in rows), f"Cell {cell_id}")


def _script(frame: Frame) -> str:
    """Return the name of a page's script: a served page follows its server, a file filters its own rows."""
    if frame.form:
        return "live" if frame.state else ""
    return "dashboard"

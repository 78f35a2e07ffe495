"""A board: panels of answers on one page that needs nothing but itself.

Promise: `render` is pure. Whatever a row holds is shown as text; a hash-only Content-Security-Policy admits this page's
own style sheet and script. The page is the same served live or written as a file, but for how it is narrowed.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path

from keras_matrix.dashboards.charts import axes
from keras_matrix.dashboards.charts.format import plural
from keras_matrix.dashboards.live import panels
from keras_matrix.dashboards.live.panels import Panel
from keras_matrix.dashboards.live.questions import EARLIEST_DAY, Choice, Question, Reader, answer
from keras_matrix.dashboards.report import page as report
from keras_matrix.uploader.errors import OutboxFailure, UploadError
from keras_matrix.uploader.outbox import Outbox
from keras_matrix.uploader.schema import CELLS
from keras_matrix.uploader.warehouse import outbox_folder

SELF = "'self'"
# Dashboards show findings: a run that has none stands under few questions, and a page that is empty must say why.
RUN_COUNTS = """
SELECT COUNT(*) AS runs, SUM(IF(f.run_id IS NULL, 1, 0)) AS without_findings
FROM (SELECT DISTINCT run_id FROM cells WHERE source IS NULL AND day >= CAST(@since AS DATE)) AS c
LEFT JOIN (SELECT DISTINCT run_id FROM findings WHERE day >= CAST(@since AS DATE)) AS f ON f.run_id = c.run_id
"""
EMPTY = (
    "Nothing has been measured yet, or nothing was pushed here: `runner --matrix matrix.yaml` measures, "
    "`uploader push` sends it."
)


@dataclass(frozen=True, slots=True)
class Form:
    """What a visitor may choose from, if a server answers; `since` is the first day there is, '' for any."""

    action: str
    workloads: Sequence[str]
    backends: Sequence[str]
    since: str = ""


@dataclass(frozen=True, slots=True)
class RunCounts:
    """How many runs a warehouse holds, those of others not counted, and how many of them have no finding."""

    runs: int
    without_findings: int

    def notices(self, empty: Callable[[], str] = lambda: EMPTY) -> list[str]:
        """Return what a reader must know before anything is shown; `empty` explains a warehouse without runs."""
        if not self.runs:
            return [empty()]
        if not self.without_findings:
            return []
        return [
            f"Of {plural(self.runs, 'run')} {self.without_findings:,} came without findings and stand only under "
            "failures, machines and runs: `runner report --run RUN` makes them, then `uploader push` sends them."
        ]


@dataclass(frozen=True, slots=True)
class Frame:
    """Title, text and links of a page; `link` and `run_link` return '' for a cell or a run without a page."""

    heading: str
    lead: str
    link: Callable[[str], str]
    run_link: Callable[[str], str] = lambda run_id: ""
    home: str = ""
    notices: Sequence[str] = ()
    form: Form | None = None
    choice: Choice = Choice()


def run_counts(warehouse: Reader, since: str = EARLIEST_DAY) -> RunCounts:
    """Return what a warehouse holds from a day on. Raises `WarehouseFailure`."""
    [(runs, without)] = warehouse.query(RUN_COUNTS, {"since": since}).rows
    return RunCounts(int(runs), int(without or 0))


def empty_notice(address: str, results: Path) -> str:
    """Return why a local warehouse has no runs: nothing was ever sent to it, or what was sent is gone."""
    try:
        sent = Outbox(outbox_folder(address, results)).sent()[CELLS.name]
    except OutboxFailure as error:
        return f"{EMPTY} The outbox cannot be read: {error}"
    if not sent:
        return EMPTY
    return (
        f"This warehouse is empty, although {plural(len(sent), 'attempt')} had been sent to it: its files were removed "
        f"since. `uploader push --repair --to {address} --results {results}` sends them again."
    )


def panels_of(warehouse: Reader, questions: Iterable[Question], choice: Choice) -> list[Panel]:
    """Return a panel a question; one that the warehouse does not answer says why."""
    return [panel_of(warehouse, question, choice) for question in questions]


def panel_of(warehouse: Reader, question: Question, choice: Choice) -> Panel:
    """Return the panel of one question."""
    try:
        return panels.panel(question, answer(warehouse, question, choice).dicts())
    except UploadError as error:
        return panels.failed(question, str(error))


def render(shown: Sequence[Panel], frame: Frame) -> str:
    """Return the page."""
    from markupsafe import Markup  # with Jinja: only a command that writes a page pays for it

    sheets = ("history.css", "roofline.css", "dashboard.css")
    style = report.stylesheet() + "".join((report.TEMPLATES / name).read_text(encoding="utf-8") for name in sheets)
    style += "".join(
        axes.rules(f"#{one.question.name} div.plot", one.pictures[0].axis) for one in shown if one.pictures
    )
    script = "" if frame.form else (report.TEMPLATES / "dashboard.js").read_text(encoding="utf-8")
    page = report.templates().get_template("dashboard.html")
    return page.render(
        style=Markup(style),
        script=Markup(script),
        policy=report.policy(style, script, SELF if frame.form else "'none'"),
        heading=frame.heading,
        lead=frame.lead,
        home=frame.home,
        notices=frame.notices,
        form=frame.form,
        choice=frame.choice,
        link=frame.link,
        run_link=frame.run_link,
        shown=shown,
    )

"""The live dashboard as a WSGI application. The address of a page contains its full state, so that links can be shared.

    /                 every question, filtered by ?workload=, ?backend= and ?since=
    /cell?id=CELL     one cell over time
    /health           whether the dashboard has an answer
    /state            a text that changes when the first page does, which that page asks for

The application only reads; choices of visitors are passed to queries as parameters, never as text. A page shows one
edition of its source, and each answer of an edition is computed once for all visitors.
"""

from __future__ import annotations

import hashlib
import threading
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field, replace
from functools import partial
from typing import Any
from urllib.parse import parse_qs, urlencode

from keras_matrix.dashboards.live import page as dashboard
from keras_matrix.dashboards.live.app.guard import SAFE_HEADERS, StartResponse
from keras_matrix.dashboards.live.app.source import Edition, PageSource
from keras_matrix.dashboards.live.page import CellPage, Form, Frame, RunCounts
from keras_matrix.dashboards.live.panels import Panel
from keras_matrix.dashboards.live.questions import EARLIEST_DAY, DashboardFilter, Question, checked, questions
from keras_matrix.records.identity import CELL_ID
from keras_matrix.uploader.errors import UploadError
from keras_matrix.uploader.sql import with_views

MOST_CACHED = 200
LONGEST_CHOICE = 200
OVERVIEW = tuple(name for name in questions() if name != "trend")
HTML = ("Content-Type", "text/html; charset=utf-8")
STATUS = {200: "200 OK", 404: "404 Not Found", 503: "503 Service Unavailable"}
CHOICES = (
    "SELECT DISTINCT workload, backend FROM cells WHERE source IS NULL AND workload IS NOT NULL "
    "AND day >= CAST(@since AS DATE) ORDER BY workload, backend"
)


@dataclass(slots=True)
class Application:
    """Answers requests from one source; one query at a time, since an engine serves one thread."""

    source: PageSource
    _lock: threading.Lock = field(default_factory=threading.Lock)
    _cached: dict[object, Any] = field(default_factory=dict)
    _number: int = 0  # number of the edition of the cached answers

    def __call__(self, environ: Mapping[str, Any], start_response: StartResponse) -> Iterable[bytes]:
        """Answer one request."""
        path = str(environ.get("PATH_INFO") or "/")
        query = parse_qs(environ.get("QUERY_STRING", ""))
        status, body = self._page(path, {name: values[-1][:LONGEST_CHOICE] for name, values in query.items()})
        page = body.encode("utf-8", "replace")
        start_response(STATUS[status], [HTML, *SAFE_HEADERS, ("Content-Length", str(len(page)))])
        return [page]

    def _page(self, path: str, parameters: Mapping[str, str]) -> tuple[int, str]:
        texts = parameters.get("workload", ""), parameters.get("backend", ""), parameters.get("since") or EARLIEST_DAY
        choice = checked(DashboardFilter(*texts, parameters.get("id", "")))
        try:
            if path == "/":
                return 200, self._overview(self.source.edition(), choice)
            if path == "/cell" and CELL_ID.fullmatch(choice.cell):
                return 200, self._cell(self.source.edition(), choice)
        except UploadError as error:  # every further query would fail in the same way
            lead_text = f"{self.source.address} does not answer."
            return 503, dashboard.render([], Frame("No answer", lead_text, str, home="/", notices=[str(error)]))
        if path == "/health":
            return self._health()
        if path == "/state":
            return self._state()
        return 404, "<!doctype html><title>Not found</title><p>There is no such page. <a href='/'>All questions</a>"

    def _overview(self, edition: Edition, choice: DashboardFilter) -> str:
        choice = _narrowed(choice, edition)
        counts = self._run_counts(edition)
        shown_questions = [question for name, question in questions().items() if name in OVERVIEW and counts.runs]
        session = edition.session()
        # The first run of a folder explains an empty page better than any advice.
        about_runs = [] if session and not counts.runs else counts.notices(edition.empty)
        frame = Frame(
            "Dashboard",
            f"{edition.origin} Share the address of this page to share the selection.",
            _link(choice, edition),
            notices=[*edition.notices, *about_runs],
            form=Form("/", *self._choices(edition), edition.since if edition.since != EARLIEST_DAY else ""),
            choice=choice,
            session=session,
            state=_state(edition),
        )
        return dashboard.render(self._panels(edition, shown_questions, choice), frame)

    def _cell(self, edition: Edition, choice: DashboardFilter) -> str:
        choice = _narrowed(DashboardFilter(cell=choice.cell, since=choice.since), edition)
        self._run_counts(edition)
        panels = self._panels(edition, [questions()["trend"]], choice)
        ask = partial(dashboard.cell_heading, edition.reader, choice.cell, choice.since)
        page = CellPage(choice.cell, panels[0], self._answer(edition, ("heading", choice), ask))
        command = f" The report of its newest run: `runner report --run {page.newest_run}`." if page.newest_run else ""
        lead_text = (
            f"Cell {choice.cell}. One dot a session, with its interval between processes; a vertical stroke where the "
            f"level changed.{command} {edition.origin}"
        )
        home_link = f"/?{urlencode({'since': choice.since})}" if choice.since != edition.since else "/"
        path = [
            ("All questions", home_link),
            *([(f"Run {page.newest_run}", f"{home_link}#runs")] if page.newest_run else []),
        ]
        notices = edition.notices
        frame = Frame(
            page.heading, lead_text, lambda other: "", home=home_link, notices=notices, choice=choice, path=path
        )
        return dashboard.render(panels, frame)

    def _run_counts(self, edition: Edition) -> RunCounts:
        """Return the number of runs of an edition. Raises `UploadError`."""
        counts: RunCounts = self._answer(edition, "run_counts", lambda: dashboard.run_counts(edition.reader))
        return counts

    def _choices(self, edition: Edition) -> tuple[list[str], list[str]]:
        rows: list[tuple[Any, ...]] = self._answer(
            edition, "choices", lambda: edition.reader.query(CHOICES, {"since": EARLIEST_DAY}).rows
        )
        return list(dict.fromkeys(row[0] for row in rows)), sorted({row[1] for row in rows})

    def _panels(self, edition: Edition, shown_questions: list[Question], choice: DashboardFilter) -> list[Panel]:
        ask = partial(dashboard.panel_of, edition.reader)
        return [
            self._answer(edition, (question.name, choice), partial(ask, question, choice))
            for question in shown_questions
        ]

    def _health(self) -> tuple[int, str]:
        try:
            if (edition := self.source.peek()) is not None:
                self._run_counts(edition)
        except UploadError as error:
            return 503, f"<!doctype html><title>No answer</title><p>{type(error).__name__}"
        return 200, "<!doctype html><title>ok</title><p>ok"

    def _state(self) -> tuple[int, str]:
        try:
            edition = self.source.peek()
        except UploadError:
            return 503, ""
        return 200, _state(edition) if edition is not None else ""

    def _answer(self, edition: Edition, key: object, ask: Callable[[], Any]) -> Any:
        """Return a cached answer of an edition, or compute it."""
        with self._lock:
            if edition.number != self._number or len(self._cached) >= MOST_CACHED:
                self._cached.clear()
                self._number = edition.number
            if key not in self._cached:
                self._cached[key] = ask()
            return self._cached[key]


def statements() -> list[str]:
    """Return every statement that the application sends to a source."""
    return [
        *(question.sql for question in questions().values()),
        dashboard.RUN_COUNTS,
        with_views(dashboard.CELL_WORK),
        CHOICES,
    ]


def _state(edition: Edition) -> str:
    """Return a text that changes when an edition, or what is being measured, does."""
    return hashlib.sha256(f"{edition.number} {edition.notices} {edition.session()}".encode()).hexdigest()[:16]


def _narrowed(choice: DashboardFilter, edition: Edition) -> DashboardFilter:
    """Return the choice, limited to the days of an edition."""
    return replace(choice, since=max(choice.since, edition.since))


def _link(choice: DashboardFilter, edition: Edition) -> Callable[[str], str]:
    since_parameter = {"since": choice.since} if choice.since != edition.since else {}
    return lambda cell_id: (
        f"/cell?{urlencode({'id': cell_id, **since_parameter})}" if CELL_ID.fullmatch(cell_id) else ""
    )

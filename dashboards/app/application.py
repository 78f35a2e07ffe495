"""The live dashboard as a WSGI application: pages whose whole state is their address, so that a link shows the same.

    /                 every question, narrowed by ?workload=, ?backend= and ?since=
    /cell?id=CELL     one cell over time
    /health           whether the warehouse answers

Promise: it only reads; what a reader chooses reaches a query as a parameter, never as text of it. Answers are kept for
`FRESH_S` seconds, so that a page opened by many asks the warehouse once.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from functools import partial
from typing import Any
from urllib.parse import parse_qs, urlencode

from dashboards import board
from dashboards.app.guard import StartResponse
from dashboards.board import Form, Frame, Standing
from dashboards.panels import Panel
from dashboards.questions import EVER, Choice, Question, checked, questions
from records.identity import CELL_ID
from uploader.errors import UploadError
from uploader.warehouse import Warehouse

FRESH_S = 30.0
MOST_KEPT = 200
LONGEST_CHOICE = 200
OVERVIEW = tuple(name for name in questions() if name != "trend")
HEADERS = (
    ("Content-Type", "text/html; charset=utf-8"),
    ("X-Content-Type-Options", "nosniff"),
    ("Referrer-Policy", "no-referrer"),
    ("Cache-Control", "no-store"),
)
STATUS = {200: "200 OK", 404: "404 Not Found", 503: "503 Service Unavailable"}
CHOICES = (
    "SELECT DISTINCT workload, backend FROM cells WHERE source IS NULL AND workload IS NOT NULL "
    "ORDER BY workload, backend"
)


@dataclass(slots=True)
class Application:
    """Answers requests from one warehouse; one question at a time, since an engine serves one thread."""

    warehouse: Warehouse
    clock: Callable[[], float] = time.monotonic
    _lock: threading.Lock = field(default_factory=threading.Lock)
    _kept: dict[object, tuple[float, Any]] = field(default_factory=dict)

    def __call__(self, environ: Mapping[str, Any], start_response: StartResponse) -> Iterable[bytes]:
        """Answer one request."""
        path = str(environ.get("PATH_INFO") or "/")
        asked = {
            name: values[-1][:LONGEST_CHOICE] for name, values in parse_qs(environ.get("QUERY_STRING", "")).items()
        }
        status, body = self._page(path, asked)
        page = body.encode("utf-8", "replace")
        start_response(STATUS[status], [*HEADERS, ("Content-Length", str(len(page)))])
        return [page]

    def _page(self, path: str, asked: Mapping[str, str]) -> tuple[int, str]:
        choice = checked(
            Choice(asked.get("workload", ""), asked.get("backend", ""), asked.get("since") or EVER, asked.get("id", ""))
        )
        try:
            if path == "/":
                return 200, self._overview(choice)
            if path == "/cell" and CELL_ID.fullmatch(choice.cell):
                return 200, self._cell(choice)
        except UploadError as error:  # each question would wait as long, and say the same
            lead = f"{self.warehouse.address} gives no answer."
            return 503, board.render([], Frame("No answer", lead, str, home="/", notices=[str(error)]))
        if path == "/health":
            return self._health()
        return 404, "<!doctype html><title>Not found</title><p>There is no such page. <a href='/'>All questions</a>"

    def _overview(self, choice: Choice) -> str:
        stands = self._standing()
        asked = [question for name, question in questions().items() if name in OVERVIEW and stands.runs]
        return board.render(self._panels(asked, choice), self._frame(choice, stands))

    def _cell(self, choice: Choice) -> str:
        self._standing()
        shown = self._panels([questions()["trend"]], Choice(cell=choice.cell, since=choice.since))
        lead = "One dot a session, with its interval between processes; a stroke upright where the level changed."
        return board.render(shown, Frame(f"Cell {choice.cell}", lead, _link(choice), home="/", choice=choice))

    def _frame(self, choice: Choice, stands: Standing) -> Frame:
        lead = f"Read from {self.warehouse.address}. The address of this page holds what is chosen: share it."
        form = Form("/", *self._choices())
        return Frame("Dashboard", lead, _link(choice), notices=stands.notices(), form=form, choice=choice)

    def _standing(self) -> Standing:
        """Return what the warehouse holds. Raises `UploadError`."""
        found: Standing = self._fresh("standing", lambda: board.standing(self.warehouse))
        return found

    def _choices(self) -> tuple[list[str], list[str]]:
        rows = self._ask_choices()
        return list(dict.fromkeys(row[0] for row in rows)), sorted({row[1] for row in rows})

    def _ask_choices(self) -> list[tuple[Any, ...]]:
        found: list[tuple[Any, ...]] = self._fresh("choices", lambda: self.warehouse.query(CHOICES).rows)
        return found

    def _panels(self, asked: list[Question], choice: Choice) -> list[Panel]:
        return [self._fresh((one.name, choice), partial(board.asked, self.warehouse, one, choice)) for one in asked]

    def _health(self) -> tuple[int, str]:
        try:
            self._standing()
        except UploadError as error:
            return 503, f"<!doctype html><title>No answer</title><p>{type(error).__name__}"
        return 200, "<!doctype html><title>ok</title><p>ok"

    def _fresh(self, key: object, ask: Callable[[], Any]) -> Any:
        """Return an answer that is at most `FRESH_S` old."""
        with self._lock:
            now = self.clock()
            kept = self._kept.get(key)
            if kept is not None and now - kept[0] < FRESH_S:
                return kept[1]
            found = ask()
            if len(self._kept) >= MOST_KEPT:
                self._kept.clear()
            self._kept[key] = (now, found)
            return found


def _link(choice: Choice) -> Callable[[str], str]:
    since = {"since": choice.since} if choice.since != EVER else {}
    return lambda cell_id: f"/cell?{urlencode({'id': cell_id, **since})}" if CELL_ID.fullmatch(cell_id) else ""

"""Sources of the application's answers: a state of the data that a full page shares, and its description.

Live          a warehouse with free queries: the local one
Refreshed     a snapshot of a warehouse with costs (`dashboards.live.app.refreshed`)
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Protocol

from keras_matrix.dashboards.live import page
from keras_matrix.dashboards.live.questions import EARLIEST_DAY, Reader
from keras_matrix.dashboards.live.session import MeasuredSession
from keras_matrix.uploader.warehouse import Warehouse

FRESH_S = 30.0


@dataclass(frozen=True, slots=True)
class Edition:
    """One state of the data. Editions with equal numbers give equal answers; `since` is the first available day.

    `empty` explains an edition without runs, `session` returns the one that is being measured at several machines.
    """

    reader: Reader
    number: int
    origin: str
    since: str = EARLIEST_DAY
    notices: tuple[str, ...] = ()
    empty: Callable[[], str] = lambda: page.EMPTY
    session: Callable[[], MeasuredSession | None] = lambda: None


class Source(Protocol):
    """Provides the edition of each page."""

    @property
    def address(self) -> str:
        """The address of the warehouse."""

    def edition(self) -> Edition:
        """Return the current edition. Raises `UploadError` if it is not available."""

    def peek(self) -> Edition | None:
        """Return the edition for the health check, None before the first visit. Causes no costs."""


@dataclass(slots=True)
class Live:
    """A warehouse that is queried directly, at most once in `FRESH_S` for the same question."""

    warehouse: Warehouse
    since: str = EARLIEST_DAY
    empty: Callable[[], str] = lambda: page.EMPTY
    clock: Callable[[], float] = time.monotonic
    session: Callable[[], MeasuredSession | None] = lambda: None
    _lock: threading.Lock = field(default_factory=threading.Lock)
    _number: int = 0
    _began_s: float | None = None

    @property
    def address(self) -> str:
        """The address of the warehouse."""
        return self.warehouse.address

    def edition(self) -> Edition:
        """Return the warehouse, with a new number after `FRESH_S`."""
        with self._lock:
            now_s = self.clock()
            if self._began_s is None or now_s - self._began_s >= FRESH_S:
                self._began_s, self._number = now_s, self._number + 1
            number = self._number
        origin = f"Read from {self.address}."
        return Edition(self.warehouse, number, origin, self.since, empty=self.empty, session=self.session)

    def peek(self) -> Edition:
        """Return the current edition: queries are free."""
        return self.edition()

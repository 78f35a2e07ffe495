"""A line about a state that lasts, for a log that would otherwise be silent for minutes.

Without a terminal a line is printed when an attempt ends; fine-tuning takes minutes until then. What a process does is
printed after `FIRST_S`, and again whenever its time has doubled: seven lines an hour. Short states print nothing.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager

from keras_matrix.records.text import duration

FIRST_S = 15.0
POLL_S = 5.0  # a wake-up that reads a clock: the runner must not use the CPU while a cell runs


class LongStates:
    """The state of a measurement, and when it is to be printed next. Two threads may use it."""

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock, self._lock = clock, threading.Lock()
        self._text, self._begun_s, self._next_s = "", 0.0, FIRST_S

    def enter(self, text: str) -> None:
        """Begin a state; an empty text means that nothing runs."""
        with self._lock:
            self._text, self._begun_s, self._next_s = text, self._clock(), FIRST_S

    def due(self) -> str | None:
        """Return the line to print now; None if it is too early."""
        with self._lock:
            lasted_s = self._clock() - self._begun_s
            if not self._text or lasted_s < self._next_s:
                return None
            self._next_s = 2 * lasted_s
            return f"        {self._text}, {duration(lasted_s)} so far"


@contextmanager
def printing(states: LongStates, say: Callable[[str], None]) -> Iterator[None]:
    """Within, print the lines of long states when they are due."""
    ended = threading.Event()

    def poll() -> None:
        while not ended.wait(POLL_S):
            if line := states.due():
                say(line)

    thread = threading.Thread(target=poll, name="long states", daemon=True)
    thread.start()
    try:
        yield
    finally:
        ended.set()
        thread.join()

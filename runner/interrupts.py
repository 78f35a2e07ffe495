"""Signals to exceptions: the first asks the runner to stop cleanly, the second ends it at once.

`deferring_interrupts` is for the few steps that must not be interrupted half way, such as starting a container that has
to be stopped by its name.
"""

from __future__ import annotations

import contextlib
import os
import signal
from collections.abc import Iterator
from types import FrameType

from keras_matrix.runner.errors import Interrupted

SIGNALS = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)


class _Stop:
    """The handler of the signals: what has come, and whether it has to wait."""

    def __init__(self) -> None:
        self.seen: Interrupted | None = None
        self.holds = 0

    def __call__(self, number: int, frame: FrameType | None) -> None:
        if self.seen is not None:
            os._exit(Interrupted.exit_code)
        self.seen = Interrupted(
            f"stopped by {signal.Signals(number).name}; what is finished is kept, the same command continues it"
        )
        if self.holds == 0:
            raise self.seen


@contextlib.contextmanager
def interruptible() -> Iterator[None]:
    """Within, SIGINT, SIGTERM and SIGHUP raise `Interrupted`; a second one exits with 130 without more ado."""
    stop = _Stop()
    # What the caller ignores, as nohup does SIGHUP, stays ignored.
    heard = [number for number in SIGNALS if signal.getsignal(number) is not signal.SIG_IGN]
    before = {number: signal.signal(number, stop) for number in heard}
    try:
        yield
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)


@contextlib.contextmanager
def deferring_interrupts() -> Iterator[None]:
    """Within, the first signal waits: it raises `Interrupted` at the end, in place of any error, which might be caught.

    Without `interruptible`, and once a signal has been raised, nothing changes: stopping is not to be stopped again.
    """
    handlers = {signal.getsignal(number) for number in SIGNALS}
    stops = [stop for stop in handlers if isinstance(stop, _Stop) and stop.seen is None]
    for stop in stops:
        stop.holds += 1
    try:
        yield
    finally:
        for stop in stops:
            stop.holds -= 1
            if stop.seen is not None and stop.holds == 0:
                raise stop.seen

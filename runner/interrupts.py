"""Signals to exceptions: the first asks the runner to stop cleanly, the second ends it at once.

`deferring_interrupts` is for the few steps that must not be interrupted half way, such as starting a container that has
to be stopped by its name.
"""

from __future__ import annotations

import contextlib
import os
import signal
import threading
from collections.abc import Iterator
from types import FrameType

from keras_matrix.runner.errors import Interrupted

SIGNALS = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)


class _Stop:
    """The handler of the signals: the signal received so far, and whether it is deferred."""

    def __init__(self) -> None:
        self.received: Interrupted | None = None
        self.deferrals = 0

    def __call__(self, number: int, frame: FrameType | None) -> None:
        if self.received is not None:
            os._exit(Interrupted.exit_code)
        self.received = Interrupted(
            f"stopped by {signal.Signals(number).name}; finished records are stored; the same command continues the run"
        )
        if self.deferrals == 0:
            raise self.received


@contextlib.contextmanager
def interruptible() -> Iterator[None]:
    """Within, SIGINT, SIGTERM and SIGHUP raise `Interrupted`; a second one exits with 130 at once.

    In another thread than the main one, which receives no signals, this has no effect.
    """
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    stop = _Stop()
    # Signals that the caller ignores, as nohup ignores SIGHUP, stay ignored.
    handled = [number for number in SIGNALS if signal.getsignal(number) is not signal.SIG_IGN]
    before = {number: signal.signal(number, stop) for number in handled}
    try:
        yield
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)


@contextlib.contextmanager
def deferring_interrupts() -> Iterator[None]:
    """Within, the first signal is deferred: `Interrupted` is raised at the end, in place of any other error.

    Outside `interruptible`, and after a signal was raised, this has no effect: stopping must not be stopped again.
    """
    handlers = {signal.getsignal(number) for number in SIGNALS}
    stops = [stop for stop in handlers if isinstance(stop, _Stop) and stop.received is None]
    for stop in stops:
        stop.deferrals += 1
    try:
        yield
    finally:
        for stop in stops:
            stop.deferrals -= 1
            if stop.received is not None and stop.deferrals == 0:
                raise stop.received

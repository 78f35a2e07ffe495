"""Signals to exceptions: the first asks the runner to stop cleanly, the second ends it at once.

A command's process handles them from its parsing to its end (`process_interruptible`), also before and after it
measures: the exit code is always 130. `deferring_interrupts` is for the few steps that must not be interrupted half
way, such as starting a container that has to be stopped by its name.
"""

from __future__ import annotations

import atexit
import contextlib
import os
import signal
import threading
from collections.abc import Iterable, Iterator
from types import FrameType
from typing import Any

from keras_matrix.runner.errors import Interrupted

SIGNALS = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)
ADVICE = "; finished records are stored; the same command continues the run"


class Stopped(KeyboardInterrupt):
    """A signal ended a command that does not measure: servers and libraries let only a `KeyboardInterrupt` pass.

    A class of its own: Python ends itself with SIGINT after a `KeyboardInterrupt` in code that was compiled from a
    string, as that of a dataclass, even if it was handled (`unhandled_keyboard_interrupt` in CPython's pythonrun.c).
    """


class _Stop:
    """The handler of the signals: the signal received so far, whether it is deferred, and what is raised for it.

    Once the process has done its work (`complete`), a first signal raises nothing.
    """

    def __init__(self) -> None:
        self.received: BaseException | None = None
        self.deferrals = 0
        self.measuring = False
        self.complete = False

    def __call__(self, number: int, frame: FrameType | None) -> None:
        if self.received is not None:
            os._exit(Interrupted.exit_code)
        text = f"stopped by {signal.Signals(number).name}"
        self.received = Interrupted(f"{text}{ADVICE}") if self.measuring else Stopped(text)
        if self.deferrals == 0 and not self.complete:
            raise self.received


@contextlib.contextmanager
def interruptible() -> Iterator[None]:
    """Within, SIGINT, SIGTERM and SIGHUP raise `Interrupted`; a second one exits with 130 at once.

    In another thread than the main one, which receives no signals, this has no effect.
    """
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    stop = next(iter(_installed()), None) or _Stop()
    previous_handlers, measuring_before = _install(stop), stop.measuring
    stop.measuring = True
    try:
        yield
    finally:
        stop.measuring = measuring_before
        for number, handler in previous_handlers.items():
            signal.signal(number, handler)


@contextlib.contextmanager
def process_interruptible() -> Iterator[None]:
    """Within, a signal raises `Stopped`, for a process that ends after this block.

    Until the end of the process a second signal exits with 130 at once.
    """
    stop = _Stop()
    # Python ends with the system's own handlers, under which a second signal would change the exit code.
    atexit.register(_ignore, _install(stop))
    try:
        yield
    finally:
        stop.complete = True


def _ignore(numbers: Iterable[int]) -> None:
    for number in numbers:
        signal.signal(number, signal.SIG_IGN)


def _install(stop: _Stop) -> dict[int, Any]:
    """Handle the signals; return the handlers before. Ignored ones stay ignored, as SIGHUP under nohup."""
    handled = [number for number in SIGNALS if signal.getsignal(number) is not signal.SIG_IGN]
    return {number: signal.signal(number, stop) for number in handled}


def _installed() -> set[_Stop]:
    """Return the handlers that are installed: none, or one."""
    return {stop for stop in map(signal.getsignal, SIGNALS) if isinstance(stop, _Stop)}


@contextlib.contextmanager
def deferring_interrupts() -> Iterator[None]:
    """Within, the first signal is deferred: `Interrupted` is raised at the end, in place of any other error.

    Outside `interruptible`, and after a signal was raised, this has no effect: stopping must not be stopped again.
    """
    stops = [stop for stop in _installed() if stop.received is None]
    for stop in stops:
        stop.deferrals += 1
    try:
        yield
    finally:
        for stop in stops:
            stop.deferrals -= 1
            if stop.received is not None and stop.deferrals == 0:
                raise stop.received

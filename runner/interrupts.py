"""Signals to exceptions: the first asks the runner to stop cleanly, the second ends it at once."""

from __future__ import annotations

import contextlib
import os
import signal
from collections.abc import Iterator
from types import FrameType

from runner.errors import Interrupted

SIGNALS = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)


@contextlib.contextmanager
def interruptible() -> Iterator[None]:
    """Within, SIGINT, SIGTERM and SIGHUP raise `Interrupted`; a second one exits with 130 without more ado."""
    seen: list[int] = []

    def stop(number: int, frame: FrameType | None) -> None:
        if seen:
            os._exit(Interrupted.exit_code)
        seen.append(number)
        raise Interrupted(
            f"stopped by {signal.Signals(number).name}; what is finished is kept, the same command continues it"
        )

    # What the caller ignores, as nohup does SIGHUP, stays ignored.
    heard = [number for number in SIGNALS if signal.getsignal(number) is not signal.SIG_IGN]
    before = {number: signal.signal(number, stop) for number in heard}
    try:
        yield
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)

"""Trying again what failed for now: exponential waits with jitter, within a deadline; never what was refused."""

from __future__ import annotations

import random
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from typing import TypeVar

from uploader.errors import Contended, Unreachable

T = TypeVar("T")


@dataclass(slots=True)
class Deadline:
    """A time limit for many calls together, counted from the first one; `limit_s` of None is no limit."""

    limit_s: float | None = None
    clock: Callable[[], float] = time.monotonic
    _end_s: float | None = None

    def left_s(self, most_s: float) -> float:
        """Return how long the next call may take, at most `most_s`. Raises `Unreachable` after the deadline."""
        if self.limit_s is None:
            return most_s
        if self._end_s is None:
            self._end_s = self.clock() + self.limit_s
        left_s = self._end_s - self.clock()
        if left_s <= 0:
            raise Unreachable(
                f"not finished after {self.limit_s / 60:.3g} minutes; what is pending stays pending: push "
                "again, with a longer --deadline if there is much to send"
            )
        return min(most_s, left_s)


@dataclass(frozen=True, slots=True)
class Patience:
    """How often something is tried and how long between: up to `first_s` at first, doubling, at most `most_s`.

    Each wait is drawn at random below its bound, so that uploaders that failed together do not come back together
    (Brooker, "Exponential backoff and jitter", AWS Architecture Blog, 2015: "full jitter").
    """

    tries: int = 6
    first_s: float = 1.0
    most_s: float = 32.0
    sleep: Callable[[float], None] = time.sleep
    draw: Callable[[], float] = field(default=random.random)

    def waits_s(self) -> Iterator[float]:
        """Yield the waits between tries, in seconds, without end."""
        bound_s = self.first_s
        while True:
            yield self.draw() * bound_s
            bound_s = min(self.most_s, 2 * bound_s)

    def insist(self, ask: Callable[[], T], deadline: Deadline | None = None) -> T:
        """Return what `ask` returns; call it again after `Unreachable`, up to `tries` times, and raise the last one."""
        for left, wait_s in zip(reversed(range(self.tries)), self.waits_s(), strict=False):
            try:
                return ask()
            except Unreachable:
                if not left:
                    raise
                self.pause(wait_s, deadline)
        raise AssertionError("the last try returns or raises")

    def outlast(self, ask: Callable[[], T], deadline: Deadline) -> T:
        """Return what `ask` returns; call it again after `Contended` until the deadline, then raise the last one."""
        for wait_s in self.waits_s():
            try:
                return ask()
            except Contended as error:
                try:
                    self.pause(wait_s, deadline)
                except Unreachable:
                    raise error from None
        raise AssertionError("the waits have no end")

    def pause(self, wait_s: float, deadline: Deadline | None) -> None:
        """Wait, but not beyond the deadline. Raises `Unreachable` after it."""
        self.sleep(wait_s if deadline is None else deadline.left_s(wait_s))

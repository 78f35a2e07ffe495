"""Retries after retryable errors: exponential backoff with jitter, within a deadline."""

from __future__ import annotations

import random
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from typing import TypeVar

from keras_matrix.uploader.errors import Contended, Unreachable

T = TypeVar("T")


@dataclass(slots=True)
class Deadline:
    """A common time limit for many calls, from the first one on; None is no limit."""

    limit_s: float | None = None
    clock: Callable[[], float] = time.monotonic
    _end_s: float | None = None

    def left_s(self, most_s: float) -> float:
        """Return the time limit of the next call, at most `most_s`. Raises `Unreachable` after the deadline."""
        if self.limit_s is None:
            return most_s
        if self._end_s is None:
            self._end_s = self.clock() + self.limit_s
        left_s = self._end_s - self.clock()
        if left_s <= 0:
            raise Unreachable(
                f"not finished after {self.limit_s / 60:.3g} minutes; pending batches stay pending: push again, with a "
                "longer --deadline if there is much to send"
            )
        return min(most_s, left_s)


@dataclass(frozen=True, slots=True)
class RetryPolicy:
    """Number of attempts, and the bound of the wait between them: `first_s`, doubled each time, at most `most_s`.

    Each wait is uniformly distributed between 0 and its bound, so that uploaders that failed at the same time retry at
    different times (Brooker, "Exponential backoff and jitter", AWS Architecture Blog, 2015: "full jitter").
    """

    tries: int = 6
    first_s: float = 1.0
    most_s: float = 32.0
    sleep: Callable[[float], None] = time.sleep
    draw: Callable[[], float] = field(default=random.random)

    def waits_s(self) -> Iterator[float]:
        """Yield the waits between attempts in seconds, indefinitely."""
        bound_s = self.first_s
        while True:
            yield self.draw() * bound_s
            bound_s = min(self.most_s, 2 * bound_s)

    def retry(self, call: Callable[[], T], deadline: Deadline | None = None) -> T:
        """Return the result of `call`, which is called up to `tries` times while it raises `Unreachable`."""
        for left, wait_s in zip(reversed(range(self.tries)), self.waits_s(), strict=False):
            try:
                return call()
            except Unreachable:
                if not left:
                    raise
                self.pause(wait_s, deadline)
        raise AssertionError("the last attempt returns or raises")

    def retry_contended(self, call: Callable[[], T], deadline: Deadline) -> T:
        """Return the result of `call`, which is called again while it raises `Contended`, until the deadline."""
        for wait_s in self.waits_s():
            try:
                return call()
            except Contended as error:
                try:
                    self.pause(wait_s, deadline)
                except Unreachable:
                    raise error from None
        raise AssertionError("waits_s is infinite")

    def pause(self, wait_s: float, deadline: Deadline | None) -> None:
        """Sleep, at most until the deadline. Raises `Unreachable` after it."""
        self.sleep(wait_s if deadline is None else deadline.left_s(wait_s))

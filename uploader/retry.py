"""Trying again what failed for now: exponential waits with jitter, capped, and never what was refused."""

from __future__ import annotations

import random
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import TypeVar

from uploader.errors import Unreachable

T = TypeVar("T")


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

    def waits_s(self) -> list[float]:
        """Return the waits between the tries, in seconds."""
        return [self.draw() * min(self.most_s, self.first_s * 2**number) for number in range(self.tries - 1)]

    def insist(self, ask: Callable[[], T]) -> T:
        """Return what `ask` gives; it is asked again after `Unreachable` alone, and the last one is raised."""
        for wait_s in self.waits_s():
            try:
                return ask()
            except Unreachable:
                self.sleep(wait_s)
        return ask()

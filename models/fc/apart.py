"""How long the collectives of a compiled step take: the step takes turns with one whose workers are left alone.

Inside a compiled program no clock can stand around a collective. So the same program is built again with each
collective replaced by local work that gives an array of the same shape, and the two run in turns. What it does not
know: the time of that local work (a copy, or nothing), which the difference leaves out; and how much of the real
collectives the backend hid behind products, which the difference leaves out rightly.
"""

from __future__ import annotations

from collections.abc import Callable
from time import perf_counter
from typing import Any

from keras import ops

from records.communication import Communication, Method


class Alone:
    """Put before a worker's class, takes its collectives from it: what it would send stays with it."""

    size: int

    def _all_reduce(self, x: Any) -> Any:
        return x

    def _reduce_scatter(self, x: Any, axis: int) -> Any:
        return ops.split(x, self.size, axis)[0]

    def _all_gather(self, x: Any, axis: int) -> Any:
        return ops.concatenate([x] * self.size, axis)


def by_replacing(real: Callable[[int], None], alone: Callable[[int], None], steps: int, epochs: int) -> Communication:
    """Return the times of a step with and without communication, over so many epochs of so many steps of each.

    Both take a number of steps and return with every device idle. Which goes first changes from epoch to epoch.
    """
    alone(1)  # it is compiled
    step_times_s: list[float] = []
    compute_times_s: list[float] = []
    turns = [(real, step_times_s), (alone, compute_times_s)]
    for _ in range(epochs):
        for run, times_s in turns:
            begun_s = perf_counter()
            run(steps)
            times_s.append((perf_counter() - begun_s) / steps)
        turns.reverse()
    return Communication(Method.REPLACED, step_times_s, compute_times_s)

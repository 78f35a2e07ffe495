"""A machine's peaks, timed in a separate process: one small file per backend, and one for the host's memory.

A new backend is one new file here with a class `Bench`, in addition to its adapter in `runner.cell.backends`.

A call on an accelerator returns before the work is done: launch and synchronisation cost some tens of microseconds,
which must be small compared with the work. So calls are timed in stretches of at least `LEAST_STRETCH_S`, with one
synchronisation at the end. STREAM's rule, arrays of at least four times the caches, is applied to the L2 cache of the
device; `LEAST_ARRAY_BYTES` is more than that on every GPU in `analysis/roofline.py`. On a CPU each call is
timed.
"""

from __future__ import annotations

import importlib
import math
from abc import ABC, abstractmethod
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, cast

from keras_matrix.records.settings import Settings
from keras_matrix.records.text import bytes_text
from keras_matrix.runner.cell.backends import BackendAdapter

HOST = "numpy"
SCALAR = 3.0  # STREAM's
LEAST_STRETCH_S = 0.010
# A stretch is this much longer than estimated, since the estimate includes a synchronisation for each call.
MARGIN = 1.2
MOST_CALLS_PER_STRETCH = 10_000
LEAST_ARRAY_BYTES = 1 << 30
L2_CACHES_PER_ARRAY = 4
DEFAULT_L2_BYTES = 128 << 20
ARRAYS = 3
MEMORY_SHARE = 1 / 3
FLOAT64_BYTES = 8


@dataclass(frozen=True, slots=True)
class TimedOperation:
    """One operation: `start` may return before it is done, `finish` returns when all started calls are done."""

    start: Callable[[], object]
    finish: Callable[[], object] = lambda: None


class NotTimeable(Exception):
    """This cannot be timed here. The message is the reason."""


class Bench(ABC):
    """What can be timed. `gemm`, `copy` and `triad` prepare their arrays and return a call."""

    def __init__(self, settings: Settings, adapter: BackendAdapter) -> None:
        self._settings, self._adapter = settings, adapter

    def memory(self) -> DeviceMemory:
        """Return what the backend reports of an accelerator's memory: nothing on a CPU."""
        return DeviceMemory()

    @abstractmethod
    def gemm(self, size: int, precision: str) -> TimedOperation:
        """Return C = A B of square matrices with `size` rows. Raises `NotTimeable`."""

    @abstractmethod
    def copy(self, elements: int) -> TimedOperation:
        """Return STREAM's copy, c = a, over float64 arrays. Raises `NotTimeable`."""

    @abstractmethod
    def triad(self, elements: int) -> TimedOperation:
        """Return STREAM's triad, a = b + s c, over float64 arrays. Raises `NotTimeable`."""

    def until_done(self, operation: Callable[..., object], *inputs: Any, **options: Any) -> TimedOperation:
        """Return the call of an operation that may return before its result is computed."""
        return TimedOperation(lambda: operation(*inputs, **options), lambda: self._adapter.wait(None))


def load(settings: Settings, adapter: BackendAdapter) -> Bench:
    """Import and return the bench of this backend."""
    module = importlib.import_module(f"keras_matrix.runner.cell.peaks.{settings.backend}")
    return cast(Bench, module.Bench(settings, adapter))


@dataclass(frozen=True, slots=True)
class DeviceMemory:
    """An accelerator's free memory and its L2 cache, in bytes; None if unknown."""

    free_bytes: int | None = None
    l2_bytes: int | None = None


@dataclass(frozen=True, slots=True)
class ArrayPlan:
    """The size of each of STREAM's three arrays, and why it is smaller than the rule requires, or None."""

    array_bytes: int
    note: str | None = None


def plan_arrays(memory: DeviceMemory) -> ArrayPlan:
    """Return the size of an array: 1 GiB and four L2 caches, but all three within a third of the free memory."""
    array_bytes = max(LEAST_ARRAY_BYTES, L2_CACHES_PER_ARRAY * (memory.l2_bytes or DEFAULT_L2_BYTES))
    if memory.free_bytes is None:
        return ArrayPlan(_whole_elements(array_bytes))
    allowed_bytes = _whole_elements(int(memory.free_bytes * MEMORY_SHARE / ARRAYS))
    if allowed_bytes >= array_bytes:
        return ArrayPlan(_whole_elements(array_bytes))
    return ArrayPlan(
        allowed_bytes,
        f"arrays of {bytes_text(allowed_bytes)} instead of {bytes_text(array_bytes)}, since "
        f"{bytes_text(memory.free_bytes)} "
        "of the device's memory were free: caches may raise the figure; end other processes on the device and measure "
        "again",
    )


def calls_per_stretch(time_stretch: Callable[[int], float]) -> int:
    """Return how many calls last `LEAST_STRETCH_S`; `time_stretch` times a number of calls."""
    call_count = 1
    while call_count < MOST_CALLS_PER_STRETCH:
        spent_s = time_stretch(call_count)
        if spent_s >= LEAST_STRETCH_S:
            return call_count
        # At most tenfold: the first calls may be too short for the clock, or long because they load code.
        needed_calls = math.ceil(call_count * LEAST_STRETCH_S / spent_s * MARGIN) if spent_s > 0 else 10 * call_count
        call_count = min(max(needed_calls, call_count + 1), 10 * call_count, MOST_CALLS_PER_STRETCH)
    return call_count


def _whole_elements(size: int) -> int:
    return size // FLOAT64_BYTES * FLOAT64_BYTES

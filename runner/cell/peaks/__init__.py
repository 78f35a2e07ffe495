"""A machine's peaks, timed in a separate process: one small file per backend, and one for the host's memory.

A new backend is one new file here with a class `Bench`, in addition to its adapter in `runner.cell.backends`.
"""

from __future__ import annotations

import importlib
from abc import ABC, abstractmethod
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, cast

from keras_matrix.records.settings import Settings
from keras_matrix.runner.cell.backends import BackendAdapter
from keras_matrix.runner.cell.peaks.stretches import DeviceMemory

HOST = "numpy"
SCALAR = 3.0  # STREAM's


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

"""A machine's peaks, timed inside a process of their own: one small file per backend, and one for the host's memory.

A new backend is one new file here that offers `Bench`, beside its plug in `runner.cell.backends`.
"""

from __future__ import annotations

import importlib
from collections.abc import Callable
from dataclasses import dataclass
from typing import Protocol, cast

from keras_matrix.records.settings import Settings
from keras_matrix.runner.cell.backends import BackendAdapter
from keras_matrix.runner.cell.peaks.stretches import DeviceMemory

HOST = "numpy"
SCALAR = 3.0  # STREAM's


@dataclass(frozen=True, slots=True)
class Call:
    """One operation: `start` may return before the device has done it, `finish` returns when all started ones are."""

    start: Callable[[], object]
    finish: Callable[[], object] = lambda: None


class Refused(Exception):
    """This cannot be timed here. The message is the reason."""


class Bench(Protocol):
    """What can be timed. `gemm`, `copy` and `triad` prepare their arrays and return a call."""

    def memory(self) -> DeviceMemory:
        """Return what the backend reports of an accelerator's memory."""

    def gemm(self, size: int, precision: str) -> Call:
        """Return C = A B of square matrices with `size` rows. Raises `Refused`."""

    def copy(self, elements: int) -> Call:
        """Return STREAM's copy, c = a, over float64 arrays. Raises `Refused`."""

    def triad(self, elements: int) -> Call:
        """Return STREAM's triad, a = b + s c, over float64 arrays. Raises `Refused`."""


def load(settings: Settings, adapter: BackendAdapter) -> Bench:
    """Import what times this backend and return it."""
    module = importlib.import_module(f"keras_matrix.runner.cell.peaks.{settings.backend}")
    return cast(Bench, module.Bench(settings, adapter))

"""One plug per Keras backend: the few things that Keras does not do the same way on all three.

A new backend is one new file here that offers `Plug`, and its name in `records.settings.BACKENDS`.
"""

from __future__ import annotations

import importlib
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any, Protocol, cast

from records.schema import DeviceProof
from records.settings import Settings

Batch = tuple[Any, ...]


class Unsupported(Exception):
    """This backend, device or setting cannot do what the cell asks. The message is the reason."""


@dataclass(frozen=True, slots=True)
class CompileEvents:
    """What the backend itself says it spent; None where it does not say."""

    trace_time_s: float | None = None
    compile_time_s: float | None = None
    cache_hits: int | None = None
    graph_breaks: int | None = None


class Plug(Protocol):
    """What a cell needs of a backend."""

    def configure(self, settings: Settings, compile_cache_dir: str | None) -> None:
        """Apply what must be set before the first operation. Raises `Unsupported`."""

    def seed(self, seed: int) -> None:
        """Seed the backend's own generators."""

    def proof(self) -> DeviceProof:
        """Run one operation and return where its result lies."""

    def barrier(self, model: Any) -> None:
        """Return when the device has done everything asked of it for this model."""

    def wait(self, outputs: Any) -> None:
        """Return when these outputs are computed."""

    def resident(self, batch: Batch) -> Batch:
        """Return the batch with its arrays on the device."""

    def endless(self, batches: Sequence[Batch]) -> Any:
        """Return what `fit` takes: these device-resident batches, round and round, with no copy."""

    def compile_events(self) -> CompileEvents:
        """Return what was traced and compiled since `configure`."""

    def compilations(self) -> int | None:
        """Return how many programs were traced or compiled since `configure`, None where nobody compiles or tells.

        It costs a look at a number: the counting is done where something is compiled, not at each step.
        """

    def graph_breaks(self) -> int | None:
        """Return in how many places programs were cut in two since `configure`, None where none are compiled so."""

    def peak_device_memory_bytes(self) -> int | None:
        """Return the allocator's peak on the device, None on a CPU."""

    def device_memory_bytes(self) -> int | None:
        """Return what the allocator holds on the device now, None on a CPU."""

    def tf32(self) -> bool | None:
        """Return whether float32 products may use TF32, None on a CPU."""

    def intra_op_threads(self) -> int | None:
        """Return the threads that one operation may use, where the backend says."""

    def versions(self) -> dict[str, str]:
        """Return the backend's packages and versions."""


def round_and_round(batches: Sequence[Batch]) -> Iterator[Batch]:
    """Yield the batches for ever. A generator, because that is what `fit` recognises."""
    while True:
        yield from batches


def load(backend: str) -> Plug:
    """Import the backend and return its plug."""
    module = importlib.import_module(f"runner.cell.backends.{backend}")
    return cast(Plug, module.Plug())

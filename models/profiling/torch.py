"""PyTorch's profiler (Kineto), with the shapes of the operators' inputs."""

from __future__ import annotations

import sys
import tempfile
from collections.abc import Iterator
from contextlib import AbstractContextManager
from pathlib import Path
from typing import Any

import torch
from torch import profiler

from keras_matrix.models.profiling import shapes
from keras_matrix.records.traces.programs import ProgramSummary, counted
from keras_matrix.records.traces.request import STEP, TraceError


class Profiler:
    """PyTorch's profiler, for the CPU and a GPU if available.

    On a CPU, shapes are recorded in the first marked step only, and copied to the further ones (`shapes`), unless the
    steps may differ.
    """

    ending = ".json"
    marks_name_layers = False
    steps_are_python = True

    def __init__(self) -> None:
        self.steps_are_equal = True
        self._recording: Any = None
        self._first: Any = None
        self._steps = 0
        self._loss: Any = None

    def start(self) -> None:
        if not torch.autograd.kineto_available():
            raise TraceError("profiler_unavailable: torch: this build has no Kineto; install one that has it")
        self._first, self._steps = None, 0
        self._start(record_shapes=True)

    def stop(self, path: Path) -> None:
        recording, self._recording = self._recording, None
        recording.stop()
        if self._first is None:
            recording.export_chrome_trace(str(path))
            return
        with tempfile.TemporaryDirectory(prefix="profiler-") as folder:
            first, rest = Path(folder) / f"first{self.ending}", Path(folder) / f"rest{self.ending}"
            self._first.export_chrome_trace(str(first))
            recording.export_chrome_trace(str(rest))
            shapes.join(first, rest, path)

    def mark(self, name: str) -> AbstractContextManager[Any]:
        mark: AbstractContextManager[Any] = profiler.record_function(name)
        return mark

    def step(self, number: int) -> AbstractContextManager[Any]:
        # Marks may be of another object than the one that records.
        recording, self._steps = self._recording, self._steps + 1
        if recording is not None and self._steps == 2 and self.steps_are_equal and not torch.cuda.is_available():
            recording.stop()
            self._first = recording
            self._start(record_shapes=False)
        return self.mark(f"{STEP}{number}")

    def scope(self, name: str) -> AbstractContextManager[Any]:
        return self.mark(name)  # every step is Python

    def note_loss(self, loss: Any) -> None:
        self._loss = loss  # its graph remains after the backward pass, without the tensors that it had saved

    def graph(self) -> ProgramSummary | None:
        """Return what torch.compile has compiled, or else the autograd graph of the noted loss."""
        # Importing it takes seconds; a process that has compiled something has done so.
        compiler = sys.modules.get("torch._dynamo.utils")
        stats = compiler.counters["stats"] if compiler else {}
        if calls := stats.get("calls_captured"):
            return ProgramSummary("torch.compile", stats["unique_graphs"], {"calls captured": calls})
        loss, self._loss = self._loss, None
        if getattr(loss, "grad_fn", None) is None:
            return None
        return ProgramSummary("autograd graph", 1, counted(_nodes(loss.grad_fn)))

    def _start(self, *, record_shapes: bool) -> None:
        activities = [profiler.ProfilerActivity.CPU]
        if torch.cuda.is_available():
            activities.append(profiler.ProfilerActivity.CUDA)
        self._recording = profiler.profile(activities=activities, record_shapes=record_shapes)
        self._recording.start()


def _nodes(root: Any) -> Iterator[str]:
    """Yield the kind of each node of an autograd graph."""
    waiting, seen = [root], {root}
    while waiting:
        node = waiting.pop()
        yield type(node).__name__
        following = {one for one, _ in node.next_functions if one is not None} - seen
        seen |= following
        waiting += following

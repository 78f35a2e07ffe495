"""PyTorch's profiler (Kineto), with the shapes of the operators' inputs."""

from __future__ import annotations

from contextlib import AbstractContextManager
from pathlib import Path
from typing import Any

import torch
from torch import profiler

from keras_matrix.records.traces.request import STEP, TraceError


class Profiler:
    """PyTorch's profiler, for the CPU and a GPU if available."""

    ending = ".json"
    marks_name_layers = False
    steps_are_python = True

    def __init__(self) -> None:
        self._recording: Any = None

    def start(self) -> None:
        if not torch.autograd.kineto_available():
            raise TraceError("profiler_unavailable: torch: this build has no Kineto; install one that has it")
        activities = [profiler.ProfilerActivity.CPU]
        if torch.cuda.is_available():
            activities.append(profiler.ProfilerActivity.CUDA)
        self._recording = profiler.profile(activities=activities, record_shapes=True)
        self._recording.start()

    def stop(self, path: Path) -> None:
        self._recording.stop()
        self._recording.export_chrome_trace(str(path))

    def mark(self, name: str) -> AbstractContextManager[Any]:
        mark: AbstractContextManager[Any] = profiler.record_function(name)
        return mark

    def step(self, number: int) -> AbstractContextManager[Any]:
        return self.mark(f"{STEP}{number}")

    def scope(self, name: str) -> AbstractContextManager[Any]:
        return self.mark(name)  # every step is Python

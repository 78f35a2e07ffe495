"""PyTorch: eager operations that write into a given tensor."""

from __future__ import annotations

from typing import Any

import torch

from keras_matrix.records.settings import Settings
from keras_matrix.runner.cell import peaks
from keras_matrix.runner.cell.backends import BackendAdapter
from keras_matrix.runner.cell.peaks import SCALAR, DeviceMemory, TimedOperation


class Bench(peaks.Bench):
    """Timed with PyTorch."""

    def __init__(self, settings: Settings, adapter: BackendAdapter) -> None:
        super().__init__(settings, adapter)
        self._device = "cuda" if settings.device == "gpu" else "cpu"

    def memory(self) -> DeviceMemory:
        if self._device == "cpu":
            return DeviceMemory()
        free_bytes, _ = torch.cuda.mem_get_info()
        return DeviceMemory(free_bytes, torch.cuda.get_device_properties(0).L2_cache_size)

    def gemm(self, size: int, precision: str) -> TimedOperation:
        torch.backends.cuda.matmul.allow_tf32 = precision == "tf32"
        dtype = getattr(torch, "float32" if precision == "tf32" else precision)
        left, right, out = (torch.randn(size, size, device=self._device).to(dtype) for _ in range(3))
        return self.until_done(torch.mm, left, right, out=out)

    def copy(self, elements: int) -> TimedOperation:
        a, _, c = self._arrays(elements)
        return self.until_done(c.copy_, a)

    def triad(self, elements: int) -> TimedOperation:
        a, b, c = self._arrays(elements)
        return self.until_done(torch.add, b, c, alpha=SCALAR, out=a)

    def _arrays(self, elements: int) -> list[Any]:
        return [torch.full((elements,), x, dtype=torch.float64, device=self._device) for x in (1.0, 2.0, 0.0)]

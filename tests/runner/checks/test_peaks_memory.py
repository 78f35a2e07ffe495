"""The GPU memory that PyTorch reports, which determines the array size of the memory bench."""

from __future__ import annotations

import importlib.util
import sys
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from keras_matrix.runner.cell.peaks import DeviceMemory
from keras_matrix.runner.executors.probe import probe_settings

MODULE = Path(__file__).parents[3] / "runner/cell/peaks/torch.py"
FREE_BYTES, TOTAL_BYTES, L2_BYTES = 70 << 30, 79 << 30, 50 << 20
NO_ADAPTER: Any = SimpleNamespace(wait=None)


def memory_with(monkeypatch: pytest.MonkeyPatch, device: str) -> DeviceMemory:
    """Return the report of PyTorch's bench on a device; CUDA is a fake with one GPU."""
    cuda = SimpleNamespace(
        mem_get_info=lambda: (FREE_BYTES, TOTAL_BYTES),
        get_device_properties=lambda index: {0: SimpleNamespace(L2_cache_size=L2_BYTES)}[index],
    )
    monkeypatch.setitem(sys.modules, "torch", SimpleNamespace(cuda=cuda))  # type: ignore[arg-type]
    spec = importlib.util.spec_from_file_location("peaks_of_a_fake_torch", MODULE)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    found: DeviceMemory = module.Bench(probe_settings("torch", device), NO_ADAPTER).memory()
    return found


def test_pytorch_reports_a_gpus_free_memory_and_l2_cache(monkeypatch: pytest.MonkeyPatch) -> None:
    assert memory_with(monkeypatch, "gpu") == DeviceMemory(FREE_BYTES, L2_BYTES)


def test_pytorch_does_not_query_cuda_on_a_cpu(monkeypatch: pytest.MonkeyPatch) -> None:
    assert memory_with(monkeypatch, "cpu") == DeviceMemory()

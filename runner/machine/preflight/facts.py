"""Reads the facts for the preflight: the driver and the GPUs of the cells, or the TPU's device files.

Promise: without an NVIDIA driver, no module is imported and no library is loaded.
"""

from __future__ import annotations

import importlib.util
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any

from keras_matrix.analysis.surroundings.readings import Driver, Gpu
from keras_matrix.records.host.procfs import ProcTree, Unread
from keras_matrix.runner.machine.gpus.nvml import open_nvml
from keras_matrix.runner.machine.gpus.state import driver, has_driver, read_gpu

# AMD's compute device; AMD's GPUs are not judged.
AMD_DEVICE = "/dev/kfd"
TPU_FOLDERS = (("/dev", "accel*"), ("/dev/vfio", "[0-9]*"))


@dataclass(frozen=True, slots=True)
class GpuFacts:
    """The driver, and each GPU by its name in CUDA_VISIBLE_DEVICES.

    `driver` is None without an NVIDIA driver, `Unread` if NVML cannot be opened, with `absent` if the driver does not
    work at all. A GPU is `Unread` if NVML cannot open it, with `absent` if it does not exist.
    """

    driver: Driver | Unread | None
    gpus: Mapping[str, Gpu | Unread] = field(default_factory=dict)
    other_maker: bool = False


@dataclass(frozen=True, slots=True)
class TpuFacts:
    """The device files of TPU chips, and whether their library is installed."""

    devices: tuple[str, ...]
    has_library: bool


def read_gpus(names: Iterable[str], tree: ProcTree | None = None, library: Any = None) -> GpuFacts:
    """Return the facts about these GPUs. `library` is `pynvml`, or a test's stand-in for it."""
    tree = tree or ProcTree()
    if not has_driver(tree):
        return GpuFacts(None, other_maker=tree.at(AMD_DEVICE).exists())
    nvml = open_nvml(library)
    if isinstance(nvml, Unread):
        return GpuFacts(nvml)
    handles = {name: nvml.gpu(name) for name in names}
    found = {name: one if isinstance(one, Unread) else read_gpu(tree, nvml, one) for name, one in handles.items()}
    return GpuFacts(driver(nvml), found)


def read_tpus(tree: ProcTree | None = None) -> TpuFacts:
    """Return the facts about the TPU of this machine."""
    tree = tree or ProcTree()
    found = [f"{folder}/{name}" for folder, pattern in TPU_FOLDERS for name in tree.names(folder, pattern)]
    return TpuFacts(tuple(found), importlib.util.find_spec("libtpu") is not None)

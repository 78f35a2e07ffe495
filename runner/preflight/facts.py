"""Reads what the preflight judges: the driver and the GPUs that cells get, or the TPU's device files.

Promise: nothing is imported and no library is loaded if the machine has no NVIDIA driver.
"""

from __future__ import annotations

import importlib.util
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any

from analysis.surroundings.readings import Driver, Gpu, Unread
from runner.surroundings.gpu import driver, handles, has_driver, opened, read_gpu
from runner.surroundings.nvml import loaded
from runner.surroundings.tree import Tree

# AMD's compute device: its GPUs are not judged.
AMD_DEVICE = "/dev/kfd"
TPU_FOLDERS = (("/dev", "accel*"), ("/dev/vfio", "[0-9]*"))


@dataclass(frozen=True, slots=True)
class GpuFacts:
    """The driver, and each GPU by the name that CUDA_VISIBLE_DEVICES gives it.

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


def read_gpus(names: Iterable[str], tree: Tree | None = None, library: Any = None) -> GpuFacts:
    """Return the facts about these GPUs. `library` is `pynvml`, or a test's stand-in for it."""
    tree = tree or Tree()
    if not has_driver(tree):
        return GpuFacts(None, other_maker=tree.at(AMD_DEVICE).exists())
    library = loaded() if library is None else library
    if isinstance(library, Unread):
        return GpuFacts(library)
    with opened(library) as problem:
        if problem is not None:
            return GpuFacts(problem)
        return GpuFacts(driver(library), {name: _named(tree, library, name) for name in names})


def read_tpus(tree: Tree | None = None) -> TpuFacts:
    """Return the facts about the TPU of this machine."""
    tree = tree or Tree()
    found = [f"{folder}/{name}" for folder, pattern in TPU_FOLDERS for name in tree.names(folder, pattern)]
    return TpuFacts(tuple(found), importlib.util.find_spec("libtpu") is not None)


def _named(tree: Tree, library: Any, name: str) -> Gpu | Unread:
    found = _handle(library, name)
    return found if isinstance(found, Unread) else read_gpu(tree, library, found)


def _handle(library: Any, name: str) -> Any | Unread:
    """Return the handle of a GPU by its index in bus order, its UUID or the beginning of it, or a MIG slice's UUID."""
    if name.startswith("MIG-"):
        try:
            return library.nvmlDeviceGetHandleByUUID(name)
        except library.NVMLError as error:
            return Unread(f"NVML: {error}", absent=True)
    known = handles(library)
    if name.isascii() and name.isdigit():
        return known[int(name)] if int(name) < len(known) else _absent(len(known))
    for handle in known if name.startswith("GPU-") else []:
        try:
            uuid = library.nvmlDeviceGetUUID(handle)
        except library.NVMLError:
            continue
        if (uuid.decode() if isinstance(uuid, bytes) else uuid).startswith(name):
            return handle
    return _absent(len(known))


def _absent(count: int) -> Unread:
    return Unread(f"the driver reports {count} GPU{'' if count == 1 else 's'}", absent=True)

"""The folders that processes of a run share: caches of compilers and of the driver."""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path

from keras_matrix.records.settings import Settings
from keras_matrix.records.store import Run
from keras_matrix.records.trees import remove_tree
from keras_matrix.runner.matrix.reader import Cell

# The folder of a run for the driver's cache of its GPU cells, until the run is finished.
CUDA_CACHE = "cuda-cache"


def compile_cache(run: Run, settings: Settings) -> str | None:
    """Return the compile cache of a backend's cells; None if each begins with an empty cache."""
    if settings.compile_cache == "cold":
        return None
    return made(run.folder / "compile-cache" / settings.backend)


def autotuned(run: Run, cell: Cell) -> str | None:
    """Return the folder of a cell's autotuning results; None if its repeats do not share them."""
    if cell.settings.autotune != "pinned":
        return None
    return made(run.folder / "autotune" / cell.cell_id)


def cuda_cache(run: Run, cell: Cell) -> str | None:
    """Return the driver's cache of a run's GPU cells; None for a command, which has its own home or the caller's.

    It is used under `compile_cache: cold` too: machine code that a backend compiles is not in the driver's cache.
    """
    is_gpu_cell = cell.settings.device == "gpu" and cell.task is None
    return made(run.folder / CUDA_CACHE) if is_gpu_cell else None


def made(folder: Path) -> str:
    """Return the path of a folder, created if it is missing."""
    folder.mkdir(parents=True, exist_ok=True)
    return str(folder.absolute())


def remove_kernels(runs: Iterable[Run]) -> None:
    """Remove the driver's caches of complete runs: gigabytes if the GPU is newer than the build."""
    for run in runs:
        remove_tree(run.folder / CUDA_CACHE)

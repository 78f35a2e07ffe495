"""The folders of a run that several of its processes share: what compilers and the driver keep between them."""

from __future__ import annotations

from pathlib import Path

from keras_matrix.records.settings import Settings
from keras_matrix.records.store import Run
from keras_matrix.runner.matrix.reader import Cell

# The folder of a run in which its GPU cells keep what the driver compiled, until the run is finished.
CUDA_CACHE = "cuda-cache"


def compile_cache(run: Run, settings: Settings) -> str | None:
    """Return where the cells of a backend keep what it compiled; None if each begins with an empty cache."""
    if settings.compile_cache == "cold":
        return None
    return made(run.folder / "compile-cache" / settings.backend)


def autotuned(run: Run, cell: Cell) -> str | None:
    """Return where the repeats of a cell keep what was tuned; None where each tunes for itself, or nothing is."""
    if cell.settings.autotune != "pinned":
        return None
    return made(run.folder / "autotune" / cell.cell_id)


def cuda_cache(run: Run, cell: Cell) -> str | None:
    """Return where the GPU cells of a run keep what the driver compiled; a command has its own home or the caller's.

    Under `compile_cache: cold`, too: what a backend compiles itself is machine code that the driver does not keep.
    """
    is_gpu_cell = cell.settings.device == "gpu" and cell.task is None
    return made(run.folder / CUDA_CACHE) if is_gpu_cell else None


def made(folder: Path) -> str:
    """Return the path of a folder, created if it is missing."""
    folder.mkdir(parents=True, exist_ok=True)
    return str(folder.absolute())

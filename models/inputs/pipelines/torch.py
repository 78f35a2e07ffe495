"""PyTorch's own pipeline, the DataLoader, and a timed wait that it runs once per step."""

from __future__ import annotations

import time
import warnings
from typing import Any

import torch

from keras_matrix.models.inputs.pipelines.interface import ENDLESS, Loader, PipelineWorkers

PIPELINE = "data_loader"
KINDS = ("process",)
DECODES = False
WAITS_IN_COMPILED_STEP = True


class Batches(torch.utils.data.Dataset):  # type: ignore[misc]
    """A map-style dataset whose items are batches."""

    def __init__(self, loader: Loader, timed: bool) -> None:
        self._loader = loader
        self._timed = timed

    def __len__(self) -> int:
        return ENDLESS

    def __getitem__(self, batch: int) -> Any:
        return self._loader.timed(batch) if self._timed else self._loader(batch)


def source(loader: Loader, batch_size: int, workers: PipelineWorkers, timed: bool) -> Any:
    """Return a `torch.utils.data.DataLoader` of batches.

    Processes are spawned: a forked one would inherit locks that threads of this process hold. A worker ends with this
    process.
    """
    options: dict[str, Any] = {}
    if workers.count:
        options = {
            "prefetch_factor": workers.per_worker,
            "persistent_workers": True,
            "multiprocessing_context": "spawn",
        }
    with warnings.catch_warnings():
        # More workers than CPUs may be what is studied.
        warnings.filterwarnings("ignore", message="This DataLoader will create", category=UserWarning)
        return torch.utils.data.DataLoader(
            Batches(loader, timed),
            batch_size=None,
            num_workers=workers.count,
            generator=torch.Generator().manual_seed(0),  # the global one belongs to the model
            **options,
        )


def depth(workers: PipelineWorkers) -> int:
    """Return the most batches that are ready or in the making: each process has the same number."""
    return workers.count * workers.per_worker


@torch.library.custom_op("keras_matrix::timed_wait", mutates_args=())  # type: ignore[untyped-decorator]
def _timed_wait(after: torch.Tensor, seconds: float) -> torch.Tensor:
    time.sleep(seconds)
    return torch.zeros((), dtype=after.dtype, device=after.device)


@_timed_wait.register_fake  # type: ignore[untyped-decorator]
def _(after: torch.Tensor, seconds: float) -> torch.Tensor:
    return torch.zeros((), dtype=after.dtype, device=after.device)


def timed_wait(after: Any, seconds: float) -> Any:
    """Return a zero of the dtype of `after` once `seconds` have passed since `after` was computed. No gradient."""
    with torch.no_grad():
        return torch.ops.keras_matrix.timed_wait(after.detach(), seconds)

"""Layers of PyTorch's workers under the parameters of a what-if, and DistributedDataParallel's settings for them."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Any

import torch

from keras_matrix.models.fc.interface import Tensor
from keras_matrix.records.dtypes import ELEMENT_BYTES
from keras_matrix.records.fc import layer_groups
from keras_matrix.records.fc.spec import FcProblem
from keras_matrix.records.text import MIB


class LayerSleep(torch.autograd.Function):  # type: ignore[misc]
    """The identity, after a sleep; in the backward pass after another one. Traces show it by this name."""

    @staticmethod
    def forward(context: Any, x: Tensor, forward_s: float, backward_s: float) -> Tensor:
        """Sleep, and return x."""
        context.backward_s = backward_s
        time.sleep(forward_s)
        return x.view_as(x)

    @staticmethod
    def backward(context: Any, upstream: Tensor) -> tuple[Tensor, None, None]:
        """Sleep, and pass the gradient on."""
        time.sleep(context.backward_s)
        return upstream, None, None


def recomputed(run: Callable[..., Tensor]) -> Callable[..., Tensor]:
    """Return a function that retains only its arguments, and runs again in the backward pass."""
    from torch.utils.checkpoint import checkpoint

    # Nothing is random.
    return lambda *arguments: checkpoint(run, *arguments, use_reentrant=False, preserve_rng_state=False)


def compiled(run: Callable[..., Tensor]) -> Callable[..., Tensor]:
    """Return a function compiled as one program for fixed shapes. Raises if it cannot be one program."""
    import torch._dynamo.config
    import torch._inductor.config

    # Workers may not start processes of multiprocessing's, and have one core each.
    torch._inductor.config.compile_threads = 1
    # Otherwise a block is cut where DistributedDataParallel's buckets end, and refused if the first is below 1 MiB.
    torch._dynamo.config.optimize_ddp = False
    function: Callable[..., Tensor] = torch.compile(run, fullgraph=True, dynamic=False)
    return function


def grouping(problem: FcProblem) -> dict[str, Any]:
    """Return the arguments by which DistributedDataParallel makes a problem's buckets; it counts in MiB."""
    if problem.bucket_cap_mb:
        return {"bucket_cap_mb": problem.bucket_cap_mb}
    if not problem.buckets:
        return {}
    item = ELEMENT_BYTES[problem.precision]
    sizes = [rows * columns * item for rows, columns in reversed(problem.shapes)]
    capacities = layer_groups.capacities_of(layer_groups.counts(problem.buckets), sizes)
    return {"bucket_cap_mb_list": [capacity / MIB for capacity in capacities]}

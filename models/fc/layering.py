"""A stack of layers under the parameters of a what-if: layers that sleep, in bfloat16, compiled in blocks, recomputed.

Without such a parameter this is not used, so that the programs of all other cells are unchanged. A layer in bfloat16
casts its input and its weight, as Keras's `mixed_bfloat16` does; its gradient is that of the float32 weight. The order
of a layer is: product, then sleep; backward: sleep, then the gradients of the product.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial
from typing import Any

from keras import ops

from keras_matrix.models.fc.interface import Tensor, Worker, scope
from keras_matrix.records.fc import layer_groups
from keras_matrix.records.fc.spec import FcProblem

MS = 1e-3


def is_plain(problem: FcProblem) -> bool:
    """Return whether the layers are plain products."""
    slept = problem.forward_sleep_ms or problem.backward_sleep_ms
    return not (slept or problem.recompute or problem.amp or problem.fuse)


def output(worker: Worker, problem: FcProblem, weights: Sequence[Tensor], x: Tensor) -> Tensor:
    """Return the output of all layers."""
    for segment in layer_groups.segments(problem.level + 1, problem.fuse, recompute=problem.recompute):
        first, after = segment[0].start, segment[-1].stop
        run = partial(_segment, worker, problem, segment)
        x = (worker.recomputed(run) if problem.recompute else run)(x, *weights[first:after])
    return ops.cast(x, weights[-1].dtype) if problem.amp else x


def micro_batches(problem: FcProblem, batch: tuple[Tensor, Tensor]) -> list[tuple[Tensor, Tensor]]:
    """Return the parts of a batch and its labels that are computed one after the other."""
    parts = problem.gradient_accumulation
    return list(zip(*(ops.split(part, parts, axis=0) for part in batch), strict=True)) if parts > 1 else [batch]


def _segment(worker: Worker, problem: FcProblem, segment: Sequence[range], x: Tensor, *weights: Tensor) -> Tensor:
    fused, first = layer_groups.blocks(problem.fuse), segment[0].start
    for unit in segment:
        own = weights[unit.start - first : unit.stop - first]
        run: Callable[..., Any] = partial(_products, problem, unit)
        with scope("forward", unit.start):
            x = (worker.compiled_block(unit, run) if unit in fused else run)(x, *own)
            if problem.forward_sleep_ms or problem.backward_sleep_ms:
                x = worker.slept(x, problem.forward_sleep_ms * MS, problem.backward_sleep_ms * MS)
    return x


def _products(problem: FcProblem, unit: range, x: Tensor, *weights: Tensor) -> Tensor:
    in_bfloat16 = layer_groups.layers(problem.amp)
    for layer, weight in zip(unit, weights, strict=True):
        dtype = "bfloat16" if layer in in_bfloat16 else problem.precision
        x = ops.matmul(ops.cast(x, dtype), ops.cast(weight, dtype)) if in_bfloat16 else ops.matmul(x, weight)
    return x

"""Counts one workload's FLOPs as they run, and the elements that a step must move. Needs Keras on some backend."""

from __future__ import annotations

import math
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import keras

from keras_matrix.models import flops
from keras_matrix.models.flops import analytic
from keras_matrix.models.registry import load, workloads
from keras_matrix.models.workload import Built, Request
from keras_matrix.records.instruments.work import FlopCheck, Target, Work


def work(target: Target) -> Work:
    """Build the workload and count it on one sample. Raises the workload's own errors."""
    built = _built(target)
    model = built.model
    x, _ = built.samples(1, 0)
    with recording(model) as kept:
        forward = counter().forward(model, x)
    model.optimizer.build(model.trainable_variables)
    return Work(
        workload=target.workload,
        params=target.params,
        forward_flops_per_sample=forward,
        weight_elements=_elements(model.weights),
        trainable_elements=_elements(model.trainable_variables),
        lookup_elements=_elements(
            w for layer in analytic.leaves(model) if isinstance(layer, keras.layers.Embedding) for w in layer.weights
        ),
        slot_elements=_elements(slots(model.optimizer)),
        input_elements_per_sample=_elements(keras.tree.flatten(x)),
        kept_elements_per_sample=sum(kept.values()),
        counted_by=f"{keras.backend.backend()}: operations as run",
    )


def slots(optimizer: Any) -> list[Any]:
    """Return an optimiser's variables for the weights that it updates, without its counters and rates (scalars)."""
    return [variable for variable in optimizer.variables if len(variable.shape)]


def check(target: Target, batch_size: int | None) -> FlopCheck:
    """Count one batch in every way available on this backend."""
    built = _built(target)
    model = built.model
    batch = batch_size or workloads()[target.workload].batch_size
    x, y = built.samples(batch, 0)
    by_layer = analytic.layers_flops(model)
    counted = counter().forward(model, x)
    tool = counter().framework(model, x, y)
    return FlopCheck(
        workload=target.workload,
        params=target.params,
        backend=keras.backend.backend(),
        batch_size=batch,
        analytic=None if by_layer is None else batch * analytic.forward_flops(by_layer),
        analytic_train=None if by_layer is None else batch * analytic.train_flops(by_layer),
        counted=counted,
        framework=tool.forward_flops,
        framework_train=tool.train_flops,
        framework_train_bytes=tool.train_bytes,
        loops=any(isinstance(layer, keras.layers.RNN) for layer in analytic.leaves(model)),
        parameters=_elements(model.trainable_variables),
        tool=counter().TOOL,
    )


def counter() -> flops.Counter:
    """Return the counter of the backend that Keras runs on."""
    return flops.load(keras.backend.backend())


@contextmanager
def recording(model: Any) -> Iterator[dict[int, int]]:
    """Record the input elements of each layer with weights; for a recurrent one also its state per step.

    The backward pass needs these inputs again to compute the weights' gradients.
    """
    seen: dict[int, int] = {}
    watched = list(analytic.leaves(model))
    for layer in watched:
        # On the instance, bypassing Keras's attribute tracking: class and weights remain unchanged.
        layer.__dict__["call"] = _noting(layer, seen)
    try:
        yield seen
    finally:
        for layer in watched:
            del layer.__dict__["call"]


def _noting(layer: Any, seen: dict[int, int]) -> Any:
    plain = layer.call

    def call(*args: Any, **kwargs: Any) -> Any:
        taken = keras.tree.flatten(args[0] if args else next(iter(kwargs.values())))
        seen[id(layer)] = _elements(taken)
        if isinstance(layer, keras.layers.RNN):
            seen[id(layer)] += int(taken[0].shape[1]) * int(layer.units)
        return plain(*args, **kwargs)

    return call


def _built(target: Target) -> Built:
    keras.backend.clear_session()
    return load(target.workload)(Request(target.params, "synthetic", None))


def _elements(arrays: Any) -> int:
    return sum(math.prod(array.shape) for array in arrays)

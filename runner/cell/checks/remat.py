"""Rematerialisation of a workload's layers: the scope they are made in, and whether Keras can do what is requested.

Keras decides for each layer when it is made, and computes the layer again in the backward pass with its backend's own
checkpointing. A model that is made in the scope is left out: it would be computed again as one, which saves no memory.

Guarantee: a cell never ends `ok` with a mode that applies to none of its layers. Limit: whether memory is saved is
measured, not checked; XLA may undo it.
"""

from __future__ import annotations

import dis
import inspect
from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext
from typing import Any

import keras
import numpy as np

from keras_matrix.records.settings import REMAT_OFF, Settings
from keras_matrix.runner.cell.backends import Unsupported

SHOWN = 3  # layers in a message


def rematerialised(settings: Settings) -> AbstractContextManager[Any]:
    """Return the scope in which a workload's layers are made."""
    return nullcontext() if settings.remat == REMAT_OFF else keras.RematScope(mode=settings.remat)


def rematerialised_layers(model: Any, settings: Settings) -> int | None:
    """Return how many layers were made within that scope; None without one."""
    return None if settings.remat == REMAT_OFF else len(_layers(model))


def check_remat(model: Any, settings: Settings) -> None:
    """Leave models out of the scope. Raises `Unsupported` if Keras cannot compute the layers again, or has none."""
    if settings.remat == REMAT_OFF:
        return
    for part in model._flatten_layers():
        if isinstance(part, keras.Model):
            part._remat_mode = None
    layers = _layers(model)
    if not layers:
        raise Unsupported(f"remat: must be {REMAT_OFF}, since build() makes no layer itself, got {settings.remat}")
    if settings.remat == "full" and (reason := _refused(layers)):
        raise Unsupported(f"remat: Keras {keras.version()} on {settings.backend} {reason}; use remat: activations")


def _layers(model: Any) -> list[Any]:
    remat_layers = (layer for layer in model._flatten_layers() if getattr(layer, "_remat_mode", None) is not None)
    return [layer for layer in remat_layers if not isinstance(layer, keras.layers.InputLayer)]


def _refused(layers: list[Any]) -> str | None:
    """Return which of these layers Keras cannot compute again, found by trying one of each kind; None if it can.

    Keras passes `training` through its backend's checkpointing. TensorFlow's accepts no keyword; JAX's makes it an
    array, whose value a layer then cannot use.
    """
    using = [layer.name for layer in layers if _uses_training(layer)]
    if error := _failure(lambda: keras.layers.Dense(1)):
        return f"computes no layer of a compiled step again ({error})"
    if using and (error := _failure(lambda: keras.layers.Dropout(0.5))):
        return f"cannot compute layers again that use `training`, such as {', '.join(using[:SHOWN])} ({error})"
    return None


def _uses_training(layer: Any) -> bool:
    call = inspect.unwrap(layer.call)
    return any(instruction.argval == "training" for instruction in dis.get_instructions(call))


def _failure(make: Callable[[], Any]) -> str | None:
    """Return the type of the error in a training step of such a layer, computed again; None without one."""
    with keras.RematScope(mode="full"):
        layer = make()
    model = keras.Sequential([keras.Input((1,)), layer])
    model.compile("sgd", "mse")
    try:
        model.train_on_batch(np.ones((1, 1)), np.ones((1, 1)))
    except Exception as error:  # noqa: BLE001 - the backends raise errors of their own
        return type(error).__name__
    return None

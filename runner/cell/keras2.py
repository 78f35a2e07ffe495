"""Gives the modules of a program's cell Keras 2 as `keras`, with the few names of Keras 3 that they use.

Keras 2 is that of TensorFlow 2.15, the last with its own, or the package tf_keras. A program on it is observed, scouted
and measured by the same modules as one on Keras 3: they are imported here, and find at `keras` the names below besides
its own. The program itself imports Keras 2 as it is installed, without them. What Keras 3 reads from a model, an
optimizer or a pass is added to Keras 2's classes, under names that these do not have; an object's own attribute goes
first.

Keras 2 opens a source before an epoch begins, so that what it prepares then is in no epoch's time; a program measured
from a source gets the warning `prefetched_in_rest`. After a cut epoch it reads arrays anew, as Keras 3 does.

A module of its own: only a process on Keras 2 imports it.
"""

from __future__ import annotations

import importlib
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from types import ModuleType, SimpleNamespace
from typing import Any

import numpy as np

from keras_matrix.records.backends import KERAS_2_BACKEND

MODULES = (f"backends.{KERAS_2_BACKEND}", "script")
"""The modules of this folder that a program's cell uses, with all that they import."""
OF_ARRAYS = ("TensorLikeDataAdapter", "GenericArrayLikeDataAdapter")
"""The sources of Keras 2 whose iterator stays open over epochs although their batches are those of whole epochs."""


class Names(ModuleType):
    """A module with further names; the module itself stays as it is."""

    def __init__(self, module: ModuleType, **names: Any) -> None:
        super().__init__(module.__name__)
        vars(self).update(names, _module=module)

    def __getattr__(self, name: str) -> Any:
        return getattr(vars(self)["_module"], name)


class Read:
    """An attribute that is computed, unless an object has one of its own by that name."""

    def __init__(self, read: Callable[[Any], Any]) -> None:
        self._read = read

    def __get__(self, thing: Any, kind: type | None = None) -> Any:
        return self if thing is None else self._read(thing)


def names_of_keras_3(keras: ModuleType, tensorflow: Any) -> Names:
    """Return Keras 2 with the names of Keras 3 that the modules of a program's cell use."""
    backend, policies, debugging = keras.backend, keras.mixed_precision, tensorflow.debugging
    config = SimpleNamespace(
        floatx=backend.floatx,
        set_floatx=backend.set_floatx,
        epsilon=backend.epsilon,
        image_data_format=backend.image_data_format,
        set_image_data_format=backend.set_image_data_format,
        dtype_policy=policies.global_policy,
        set_dtype_policy=policies.set_global_policy,
        is_traceback_filtering_enabled=debugging.is_traceback_filtering_enabled,
        disable_traceback_filtering=debugging.disable_traceback_filtering,
    )
    passes = SimpleNamespace(EpochIterator=keras.src.engine.data_adapter.DataHandler)
    return Names(
        keras,
        config=config,
        ops=SimpleNamespace(convert_to_numpy=np.asarray),
        tree=SimpleNamespace(flatten=tensorflow.nest.flatten),
        Variable=type("Variable", (), {}),  # its variables are TensorFlow's own
        backend=Names(backend, standardize_dtype=lambda dtype: tensorflow.as_dtype(dtype).name),
        optimizers=Names(keras.optimizers, LossScaleOptimizer=policies.LossScaleOptimizer),
        src=Names(keras.src, trainers=SimpleNamespace(epoch_iterator=passes)),
    )


def add_attributes(keras: ModuleType) -> None:
    """Add to Keras 2's classes what is read from those of Keras 3."""
    iterator, scaled = keras.src.engine.data_adapter.DataHandler, keras.mixed_precision.LossScaleOptimizer
    attributes: dict[Any, dict[str, Callable[[Any], Any]]] = {
        keras.Model: {
            "_loss_tracker": lambda model: getattr(model.compiled_loss, "_total_loss_mean", None),
            "_resolve_auto_jit_compile": lambda model: lambda: None,  # compiled by XLA only if a program says so
        },
        keras.layers.Layer: {
            "_trainable_variables": lambda layer: layer._trainable_weights,
            "_non_trainable_variables": lambda layer: layer._non_trainable_weights,
        },
        keras.optimizers.legacy.Optimizer: {
            # Of loss scaling the legacy form, too: its rate is that of the optimizer within.
            "_learning_rate": lambda optimizer: getattr(optimizer, "inner_optimizer", optimizer)._get_hyper(
                "learning_rate"
            )
        },
        scaled: {
            "built": lambda optimizer: True,
            "dynamic_scale": lambda optimizer: optimizer.loss_scale,
            "_learning_rate": lambda optimizer: optimizer.inner_optimizer._learning_rate,
        },
        iterator: {
            "steps_per_epoch": lambda handler: handler.inferred_steps,
            "_num_batches": lambda handler: None,
            "steps_per_execution": lambda handler: handler.step_increment + 1,
            "data_adapter": lambda handler: SimpleNamespace(on_epoch_end=lambda: read_anew(handler)),
        },
    }
    for kind, reads in attributes.items():
        for name, read in reads.items():
            setattr(kind, name, Read(read))


def read_anew(handler: Any) -> None:
    """Let the next epoch after one that was cut read arrays from the first batch, not from the one after the cut.

    Keras 2 itself tells a source of a whole epoch that it has ended.
    """
    adapter = handler._adapter
    if type(adapter).__name__ in OF_ARRAYS:
        adapter.should_recreate_iterator = lambda: True


@contextmanager
def as_keras(names: Names) -> Iterator[None]:
    """Let modules that are imported within find these names as `keras`."""
    before = sys.modules.get("keras")
    sys.modules["keras"] = names
    try:
        yield
    finally:
        del sys.modules["keras"]
        if before is not None:
            sys.modules["keras"] = before


def import_modules(name: str) -> None:
    """Import Keras 2, the module `name`, and then the modules of a program's cell."""
    keras, tensorflow = importlib.import_module(name), importlib.import_module(KERAS_2_BACKEND)
    add_attributes(keras)
    with as_keras(names_of_keras_3(keras, tensorflow)):
        for module in MODULES:
            importlib.import_module(f"keras_matrix.runner.cell.{module}")

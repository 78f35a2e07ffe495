"""Injects every kind of fault into a small workload on KERAS_BACKEND and prints the effect of each as JSON."""

from __future__ import annotations

import itertools
import json
import os
from dataclasses import replace
from typing import Any

import keras
import numpy as np

from keras_matrix.models import flops, injected_faults
from keras_matrix.models.injected_faults import Circumstances, plant
from keras_matrix.models.registry import load
from keras_matrix.models.workload import Built, Request, UnsupportedWorkload
from keras_matrix.runner.cell import backends
from tests.conftest import make_settings

BACKEND = os.environ["KERAS_BACKEND"]
BATCH = 8
STEPS = 6
EPOCHS = 2
SETTINGS = make_settings(backend=BACKEND, batch_size=BATCH)
adapter = backends.load(BACKEND)
adapter.configure(SETTINGS, None)


def built() -> Built:
    keras.utils.clear_session()
    keras.utils.set_random_seed(0)
    return load("mnist_mlp")(Request({}, "synthetic", None))


def sequential(*first: Any) -> Built:
    """A Sequential of a user's, which has a graph of layers only if it begins with an input."""
    model = keras.Sequential([*first, keras.layers.Dense(256, activation="relu"), keras.layers.Dense(1)])
    model.compile("sgd", "mse")
    return Built(model, lambda count, seed: (np.ones((count, 64), "float32"), np.ones((count, 1), "float32")))


def burdened_sequential(*first: Any) -> tuple[bool, int, int]:
    """Return whether a Sequential with a fault predicts the same, what it compiles anew, and its additional FLOPs."""
    plain = sequential(*first)
    faulty = plant(plain, "slower:1", Circumstances(SETTINGS, 0, lambda: 0.0))
    x = plain.samples(2, 0)[0]
    is_same = bool(np.allclose(plain.model.predict_on_batch(x), faulty.model.predict_on_batch(x), rtol=1e-6))
    return is_same, trained(faulty), operations(faulty) - operations(plain)


def planted(fault: str, repeat: int = 0, **changes: Any) -> Built:
    """A workload with this fault, whose clock counts one second a look."""
    ticks = itertools.count()
    return plant(built(), fault, Circumstances(replace(SETTINGS, **changes), repeat, lambda: float(next(ticks))))


def trained(one: Built) -> int:
    """Train epochs as a cell does and return how many programs were compiled in the second."""
    source = adapter.endless([adapter.resident(one.samples(BATCH, 0))])
    one.model.fit(source, steps_per_epoch=STEPS, epochs=EPOCHS, verbose=0)
    before = adapter.compilations()
    one.model.fit(source, steps_per_epoch=STEPS, epochs=1, verbose=0)
    after = adapter.compilations()
    return (after or 0) - (before or 0)


def operations(one: Built) -> int:
    return flops.load(BACKEND).forward(one.model, one.samples(BATCH, 0)[0])


def counted(name: str, owner: Any, work: Any) -> int:
    """Return how often a function is called within `work`."""
    plain, calls = getattr(owner, name), 0

    def counting(*arguments: Any, **named: Any) -> Any:
        nonlocal calls
        calls += 1
        return plain(*arguments, **named)

    setattr(owner, name, counting)
    try:
        work()
    finally:
        setattr(owner, name, plain)
    return calls


def refused(fault: str, **changes: Any) -> str | None:
    try:
        planted(fault, **changes)
    except UnsupportedWorkload as reason:
        return str(reason)
    return None


def same_figures(fault: str) -> bool:
    x = np.ones((2, 28, 28), "float32").reshape(2, *built().model.inputs[0].shape[1:])
    plain, faulty = (one.model.predict_on_batch(x) for one in (built(), planted(fault)))
    return bool(np.allclose(plain, faulty, rtol=1e-6))


slower, copying, beginning = planted("slower:1"), planted("copy:1"), planted("first-epoch:3")
found = {
    "plain": trained(built()),
    "flops": operations(built()),
    "slower_flops": operations(slower),
    "same_figures": same_figures("slower:1"),
    "copies": counted("concatenate", keras.ops, lambda: trained(copying)),
    "copy_flops": operations(copying),
    "first_epoch_rounds": counted("_round", injected_faults._Products, lambda: trained(beginning)),
    "recompile_refused": refused("recompile:2"),
    "recompiles": None if BACKEND == "torch" else trained(planted("recompile:2")),
    "first_epoch_refused": refused("first-epoch:1", discard=0),
    "sequential": [burdened_sequential(keras.Input((64,))), burdened_sequential()],
    "variance_flops": sorted(operations(planted("variance:1", repeat)) for repeat in (0, 1)),
}
print(json.dumps(found))

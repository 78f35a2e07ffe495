"""Parts of cells on several devices that need a backend but only one process of it."""

from __future__ import annotations

import pytest

from tests.imported import ran

pytestmark = pytest.mark.process

PROBE = """
import keras
from keras_matrix.runner.cell.replicated import torch
before = torch.keras_distributes()
keras.distribution.list_devices = lambda kind=None: ["cpu:0"]
print(before, torch.keras_distributes())
"""
LOSSES = """
import keras
from keras_matrix.runner.cell.backends import Unsupported
from keras_matrix.runner.cell.replicated.torch import sums_losses

def answer(*reductions):
    model = keras.Sequential([keras.Input((2,)), keras.layers.Dense(1)])
    outputs = [keras.layers.Dense(1)(model.outputs[0]) for _ in reductions]
    many = keras.Model(model.inputs, outputs)
    many.compile("sgd", [keras.losses.MeanSquaredError(reduction=one) for one in reductions])
    try:
        return sums_losses(many)
    except Unsupported as error:
        return str(error).partition(": PyTorch")[0]

MEAN = "sum_over_batch_size"
for reductions in ([MEAN], ["sum", "sum"], ["sum", MEAN], ["mean_with_sample_weight"]):
    print(answer(*reductions))
"""
THROTTLE = """
import keras, numpy as np
from keras_matrix.runner.cell.replicated.jax import COLLECTIVES, Throttle
model = keras.Sequential([keras.Input((2,)), keras.layers.Dense(1)])
model.compile("sgd", "mse")
model.fit(np.ones((4, 2)), np.ones((4, 1)), verbose=0)
plain = model.train_function
model.fit(np.ones((40, 2)), np.ones((40, 1)), batch_size=1, verbose=0, callbacks=[Throttle()])
print(model.train_function is plain, "all-reduce.5" in COLLECTIVES, "dot.5" in COLLECTIVES)
"""


def printed(backend: str, program: str) -> list[str]:
    """Return the lines that a program prints in a new interpreter with this backend."""
    done = ran(backend, program)
    assert done.returncode == 0, done.stderr
    return done.stdout.splitlines()


def test_keras_own_distribution_is_used_once_keras_offers_it_on_torch() -> None:
    assert printed("torch", PROBE) == ["False True"]


def test_losses_that_replicas_cannot_combine_are_refused() -> None:
    begins = "devices: the model's losses are reduced by"
    assert printed("torch", LOSSES) == [
        "False",
        "True",
        f"{begins} sum, sum_over_batch_size",
        f"{begins} mean_with_sample_weight",
    ]


def test_training_that_waits_for_queued_steps_leaves_the_models_step_as_it_was() -> None:
    assert printed("jax", THROTTLE) == ["True True False"]

"""Each injected fault does only its own kind of work, on every backend."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import keras
import pytest

from keras_matrix.models.injected_faults import SIDE, TRAINING_PER_FORWARD, Circumstances, plant
from keras_matrix.models.workload import Built, UnsupportedWorkload
from tests.conftest import make_settings

SCRIPT = Path(__file__).with_name("plant_every_fault.py")
PRODUCT = 2 * SIDE**3


def test_native_code_cannot_be_slowed_by_a_layer_of_keras() -> None:
    """Mutation: the fault is added to the Keras model, which the call does not run."""
    settings = make_settings(phase="predict", call="native")
    workload = Built(keras.Sequential([keras.Input((2,)), keras.layers.Dense(1)]), lambda count, seed: ())
    with pytest.raises(UnsupportedWorkload, match="call: native runs no layer of Keras"):
        plant(workload, "slower:0.5", Circumstances(settings, 0, lambda: 0.0))


@pytest.mark.nightly(why="every fault is trained")
@pytest.mark.process
@pytest.mark.parametrize("backend", ["tensorflow", "jax", "torch"])
def test_each_fault_does_its_own_work_and_no_other(backend: str) -> None:
    environment = {
        **os.environ,
        "KERAS_BACKEND": backend,
        "TF_CPP_MIN_LOG_LEVEL": "3",
        "PYTHONPATH": str(SCRIPT.parents[2]),
    }
    done = subprocess.run([sys.executable, str(SCRIPT)], env=environment, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    found = json.loads(done.stdout.splitlines()[-1])
    step = TRAINING_PER_FORWARD * found["flops"]
    assert found["plain"] == 0
    assert found["same_figures"] is True
    sequential_step = 2 * TRAINING_PER_FORWARD * 8 * (64 * 256 + 256)
    assert found["sequential"] == [[True, 0, PRODUCT * max(1, round(sequential_step / PRODUCT))]] * 2
    assert found["slower_flops"] - found["flops"] == PRODUCT * round(step / PRODUCT)
    assert found["copies"] == 18
    assert found["copy_flops"] == found["flops"]
    assert found["first_epoch_rounds"] == 2 * 3  # three times the fake second in the first epoch of each of two fits
    assert found["variance_flops"] == [found["flops"], found["flops"] + PRODUCT * round(3 * step / PRODUCT)]
    assert "discard: 1 or more; got phase: fit, discard: 0" in found["first_epoch_refused"]
    if backend == "torch":
        assert "torch runs this cell eagerly and compiles nothing; set jit: true" in found["recompile_refused"]
    else:
        assert (found["recompile_refused"], found["recompiles"]) == (None, 3)

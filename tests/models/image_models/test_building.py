"""Image models on each backend: KerasHub's masks, as many weights as by formula, and memory before allocation."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

pytestmark = pytest.mark.process
SCRIPT = Path(__file__).with_name("compare_with_keras_hub.py")
EXPECTED = {
    "masks": True,
    "sam": {"all": [True, True], "image_encoder": [True, True]},
    "diffuser": [True, True],
    "velocity": [True, True, True],
    "too_large": "stable_diffusion_3: 2.08 billion weights: it needs at least 31.07 GiB (weights 7.77, gradients and "
    "moments 23.30), but 1.00 GiB are free; lower size, or use precision: bfloat16",
}


@pytest.mark.parametrize(
    "backend",
    [
        pytest.param("tensorflow", marks=pytest.mark.nightly(why="builds every model again")),
        pytest.param("jax", marks=pytest.mark.nightly(why="XLA compiles every operation alone")),
        "torch",
    ],
)
def test_models_are_those_of_keras_hub_with_as_many_weights_as_by_formula(backend: str) -> None:
    """Mutation: `segmenter` calls the encoder of prompts without the labels of the points."""
    environment = {**os.environ, "KERAS_BACKEND": backend, "TF_CPP_MIN_LOG_LEVEL": "3"}
    done = subprocess.run([sys.executable, str(SCRIPT)], env=environment, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    assert json.loads(done.stdout.splitlines()[-1]) == EXPECTED

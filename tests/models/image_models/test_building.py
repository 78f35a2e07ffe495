"""Image models on each backend: KerasHub's masks, as many weights as by formula, and memory before allocation."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from keras_matrix.records.identity import cell_id
from keras_matrix.records.schema import MEASURED
from keras_matrix.runner.executors.process.executor import ProcessExecutor
from tests.conftest import make_settings
from tests.real_cells import real_cell

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


@pytest.mark.parametrize("backend", ["tensorflow", "jax", "torch"])
def test_models_are_those_of_keras_hub_with_as_many_weights_as_by_formula(backend: str) -> None:
    """Mutation: `segmenter` gives the decoder the image's features without those of the prompts' positions."""
    environment = {**os.environ, "KERAS_BACKEND": backend, "TF_CPP_MIN_LOG_LEVEL": "3"}
    done = subprocess.run([sys.executable, str(SCRIPT)], env=environment, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    assert json.loads(done.stdout.splitlines()[-1]) == EXPECTED


@pytest.mark.parametrize("phase", ["fit", "predict"])
def test_model_with_two_outputs_is_measured(executor: ProcessExecutor, tmp_path: Path, phase: str) -> None:
    """Mutation: a batch of several targets is fed as a list of samples."""
    fixed: dict[str, Any] = {"batch_size": 2, "samples": 4, "epochs": 2, "discard": 1, "steps_per_epoch": 2}
    params = {"size": "tiny", "image_size": 0, "part": "all"}
    wanted = make_settings(backend="torch", workload="sam", params=params, phase=phase, **fixed)
    record = real_cell(executor, tmp_path / cell_id(wanted), wanted, 2)
    assert record.status in MEASURED, record.reason
    assert record.resolved.parameters == 86_348

"""A model receives in a cell what plain `fit` hands to it, for random nested structures."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

SCRIPT = Path(__file__).with_name("received_batches.py")
CASES = 25


@pytest.mark.process
@pytest.mark.parametrize("backend", ["tensorflow", "jax", "torch"])
def test_train_step_receives_what_plain_fit_gives(backend: str) -> None:
    environment = {
        **os.environ,
        "KERAS_BACKEND": backend,
        "TF_CPP_MIN_LOG_LEVEL": "3",
        "PYTHONPATH": str(SCRIPT.parents[4]),
    }
    command = [sys.executable, str(SCRIPT), "3", str(CASES)]
    done = subprocess.run(command, env=environment, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    received = json.loads(done.stdout.splitlines()[-1])
    assert len(received["cases"]) == CASES
    for case in received["cases"]:
        assert case["device_resident"] == case["plain"]
        assert case["host"] == case["plain"]
    assert received["words"].startswith("<U1" if backend == "tensorflow" else "own:build: x or y has strings")
    assert received["without_call"] == [4, 1]

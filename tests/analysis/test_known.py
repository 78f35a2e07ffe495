"""Each known cause of a deviation by itself, on real backends: it is where it is said to be, and of its size.

A new version of a backend in which a cause is gone fails here: then its entry in `analysis.known`, and its line in
docs/parity.md, go too.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
from functools import cache
from pathlib import Path
from typing import Any

import pytest

pytestmark = [pytest.mark.process, pytest.mark.xdist_group("known causes")]

SCRIPT = Path(__file__).with_name("show_causes.py")
BACKENDS = ("tensorflow", "jax", "torch")
ROUNDING = 1e-14


@cache
def shown(backend: str) -> dict[str, Any]:
    places = {"KERAS_BACKEND": backend, "JAX_ENABLE_X64": "1", "PYTHONPATH": str(SCRIPT.parents[2])}
    done = subprocess.run(
        [sys.executable, str(SCRIPT)],
        env={**os.environ, "JAX_PLATFORMS": "cpu", "TF_CPP_MIN_LOG_LEVEL": "3", **places},
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    found: dict[str, Any] = json.loads(done.stdout.splitlines()[-1])
    return found


def beyond_rounding(figure: str) -> dict[str, float]:
    """Return the backends whose float64 is off, and by how much."""
    return {backend: value for backend in BACKENDS if (value := shown(backend)[figure]) > ROUNDING}


def test_gelu_of_tensorflow_is_off_in_float64_and_no_other() -> None:
    assert beyond_rounding("gelu") == {"tensorflow": pytest.approx(5e-9, rel=0.5)}


def test_attention_of_jax_is_off_in_float64_and_no_other() -> None:
    assert beyond_rounding("attention") == {"jax": pytest.approx(6e-8, rel=0.9)}


def test_a_scheduled_learning_rate_of_tensorflow_is_off_in_float64_and_no_other() -> None:
    assert beyond_rounding("schedule") == {"tensorflow": pytest.approx(2.5e-8, rel=0.1)}


def test_adam_on_tensorflow_steps_too_far_for_a_token_that_comes_twice() -> None:
    steps = {backend: shown(backend)["repeated_token"] for backend in BACKENDS}
    assert steps["tensorflow"] == pytest.approx([1.0, 2**0.5], rel=1e-4)
    assert steps["jax"] == pytest.approx([1.0, 1.0], rel=1e-4)
    assert steps["torch"] == pytest.approx([1.0, 1.0], rel=1e-4)


def test_float64_is_normalised_in_float32_on_jax_and_torch_but_for_the_twins_lens() -> None:
    as_shipped = {backend: shown(backend)["promotion"][0] > ROUNDING for backend in BACKENDS}
    assert as_shipped == {"tensorflow": False, "jax": True, "torch": True}
    assert [backend for backend in BACKENDS if shown(backend)["promotion"][1] > ROUNDING] == []


@pytest.mark.parametrize("backend", BACKENDS)
def test_what_amplifies_float32s_rounding_is_the_kink_of_relu(backend: str) -> None:
    amplified = shown(backend)["amplified"]
    assert amplified["relu"] > 1e-2
    assert amplified["silu"] < amplified["relu"] / 20


def test_torchs_variance_loses_what_the_mean_exceeds_the_deviation_by() -> None:
    centred, shifted = zip(*(shown(backend)["variance"] for backend in BACKENDS), strict=True)
    assert max(centred) < 1e-6
    assert dict(zip(BACKENDS, [value > 1e-4 for value in shifted], strict=True)) == {
        "tensorflow": False,
        "jax": False,
        "torch": True,
    }

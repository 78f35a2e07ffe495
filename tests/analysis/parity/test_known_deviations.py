"""Each known cause of a deviation by itself, on real backends: it is where it is said to be, and of its size.

A new version of a backend in which a cause is gone fails here: then its entry in `analysis.parity`,
and its line in docs/lab/parity.md, go too.
"""

from __future__ import annotations

import json
import math
import os
import subprocess
import sys
from functools import cache
from pathlib import Path
from typing import Any

import pytest

from keras_matrix.analysis.parity import adam_step_error
from keras_matrix.records.instruments.parity import Operation

pytestmark = [pytest.mark.process, pytest.mark.nightly, pytest.mark.xdist_group("known causes")]

SCRIPT = Path(__file__).parents[1] / "show_causes.py"
BACKENDS = ("tensorflow", "jax", "torch")
ROUNDING = 1e-14
FLOAT32_LAYERS = ("hub_normalisation", "hub_rotation", "hub_softmax")


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
    """Return the backends whose float64 is inexact, and the deviation of each."""
    return {backend: value for backend in BACKENDS if (value := shown(backend)[figure]) > ROUNDING}


def test_only_gelu_of_tensorflow_is_inexact_in_float64() -> None:
    assert beyond_rounding("gelu") == {"tensorflow": pytest.approx(5e-9, rel=0.5)}


def test_only_attention_of_jax_is_inexact_in_float64() -> None:
    assert beyond_rounding("attention") == {"jax": pytest.approx(6e-8, rel=0.9)}


def test_only_scheduled_learning_rate_of_tensorflow_is_inexact_in_float64() -> None:
    assert beyond_rounding("schedule") == {"tensorflow": pytest.approx(2.5e-8, rel=0.1)}


@pytest.mark.parametrize("figure", FLOAT32_LAYERS)
def test_float32_layers_are_inexact_in_float64_on_every_backend(figure: str) -> None:
    assert beyond_rounding(figure) == dict.fromkeys(BACKENDS, pytest.approx(5e-8, rel=0.9))


def steps_apart(a: list[float], b: list[float]) -> float:
    """Return how far two steps are apart, relative to the second."""
    return math.dist(a, b) / math.hypot(*b)


def optimizers_apart(backend: str, figures: str = "as_shipped") -> dict[str, float]:
    """Return by optimizer how far a backend's second step is from PyTorch's, where it is beyond rounding."""
    found = shown(backend) if figures == "as_shipped" else shown(backend)["corrected"]
    reference = shown("torch")["second_step"]
    apart = {name: steps_apart(step, reference[name]) for name, step in found["second_step"].items()}
    return {name: value for name, value in apart.items() if value > 1e-11}


# On PyTorch Muon's own constants are rounded, and on JAX ScheduleFreeAdamW takes another second step.
MUON = {"Muon": pytest.approx(1.8e-8, rel=0.5)}
SCHEDULE_FREE = {"ScheduleFreeAdamW": pytest.approx(0.1, rel=0.5)}


def test_tensorflow_rounds_adams_betas_in_float64_and_other_optimizers_deviate_by_a_rounding_at_most() -> None:
    apart = optimizers_apart("tensorflow")
    assert {name: value for name, value in apart.items() if value > 1e-6} == {
        "Adam": pytest.approx(adam_step_error(0.9, 0.999), rel=0.05),
        "AdamW": pytest.approx(adam_step_error(0.9, 0.999), rel=0.05),
    }
    assert sorted(apart) == ["Adagrad", "Adam", "AdamW", "Adamax", "Ftrl", "Muon", "Nadam", "SGD", "ScheduleFreeAdamW"]
    assert optimizers_apart("jax") == MUON | SCHEDULE_FREE


def test_process_that_corrects_python_floats_takes_the_optimizer_steps_of_other_backends() -> None:
    assert optimizers_apart("tensorflow", "corrected") == MUON
    assert optimizers_apart("jax", "corrected") == MUON | SCHEDULE_FREE


@pytest.mark.parametrize("figure", ["gelu", "attention", "schedule", *FLOAT32_LAYERS])
def test_corrected_operation_is_exact_on_every_backend(figure: str) -> None:
    assert [backend for backend in BACKENDS if shown(backend)["corrected"][figure] > ROUNDING] == []


def test_each_inexact_operation_is_noted_on_its_backend_when_it_runs() -> None:
    assert {backend: shown(backend)["ran"] for backend in BACKENDS} == {
        "tensorflow": [Operation.FLOAT32_LAYERS, Operation.GELU],
        "jax": [Operation.ATTENTION_SOFTMAX, Operation.FLOAT32_LAYERS],
        "torch": [Operation.FLOAT32_LAYERS],
    }


def test_adam_on_tensorflow_takes_too_long_a_step_for_a_repeated_token_unless_corrected() -> None:
    steps = {backend: shown(backend)["repeated_token"] for backend in BACKENDS}
    assert steps["tensorflow"] == pytest.approx([1.0, 2**0.5], rel=1e-4)
    assert steps["jax"] == pytest.approx([1.0, 1.0], rel=1e-4)
    assert steps["torch"] == pytest.approx([1.0, 1.0], rel=1e-4)
    assert [shown(b)["corrected"]["repeated_token"] for b in BACKENDS] == pytest.approx([1.0] * 3, rel=1e-4)


def test_repeated_token_matters_to_optimizers_that_square_gradients() -> None:
    steps = {backend: shown(backend)["repeated_by_optimizer"] for backend in BACKENDS}
    assert steps["jax"] == pytest.approx(steps["torch"], rel=1e-6)
    reference = steps["torch"]
    apart = {name for name, step in steps["tensorflow"].items() if step != pytest.approx(reference[name], rel=1e-3)}
    assert apart == {"Adam", "Nadam", "RMSprop", "Adagrad"}


def test_float64_is_normalised_in_float32_on_jax_and_torch_unless_corrected() -> None:
    as_shipped = {backend: shown(backend)["promotion"][0] > ROUNDING for backend in BACKENDS}
    assert as_shipped == {"tensorflow": False, "jax": True, "torch": True}
    assert [backend for backend in BACKENDS if shown(backend)["promotion"][1] > ROUNDING] == []


@pytest.mark.parametrize("backend", BACKENDS)
def test_float32_rounding_is_amplified_by_the_kink_of_relu(backend: str) -> None:
    amplified = shown(backend)["amplified"]
    assert amplified["relu"] > 1e-2
    assert amplified["silu"] < amplified["relu"] / 20


def test_variance_of_torch_loses_precision_if_the_mean_exceeds_the_deviation() -> None:
    centred, shifted = zip(*(shown(backend)["variance"] for backend in BACKENDS), strict=True)
    assert max(centred) < 1e-6
    assert dict(zip(BACKENDS, [value > 1e-4 for value in shifted], strict=True)) == {
        "tensorflow": False,
        "jax": False,
        "torch": True,
    }

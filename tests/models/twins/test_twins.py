"""Each implementation of each workload with a twin does as Keras does, on each backend, in one process for all."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest

from keras_matrix.analysis.parity import LIMITS
from keras_matrix.models import twins
from keras_matrix.models.twins.interface import FIRST_LOSS_LIMIT, LOSSES_LIMIT
from keras_matrix.models.workload import UnsupportedWorkload
from keras_matrix.records.backends import TRAINING_BACKENDS
from keras_matrix.records.settings import IMPLEMENTATIONS, KERAS
from keras_matrix.runner.matrix.catalog import load

TRAIN, GENERATE = (Path(__file__).with_name(f"{does}_every_twin.py") for does in ("train", "generate_by"))
NAMES = ("mnist_mlp", "cifar10_cnn", "lstm", "decoder_lm")  # lstm_text_generation is lstm with another batch


def printed(script: Path, backend: str, *arguments: str) -> dict[str, Any]:
    environment = {
        **os.environ,
        "KERAS_BACKEND": backend,
        "TF_CPP_MIN_LOG_LEVEL": "3",
        "XLA_FLAGS": "--xla_backend_optimization_level=0 --xla_llvm_disable_expensive_passes=true",  # compiles faster
        "PYTHONPATH": str(script.parents[3]),
    }
    command = [sys.executable, str(script), *arguments]
    done = subprocess.run(command, env=environment, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    found: dict[str, Any] = json.loads(done.stdout.splitlines()[-1])
    return found


@pytest.mark.nightly(why="every implementation is compiled; ci/evidence holds the sources of models")
@pytest.mark.one_backend
@pytest.mark.process
@pytest.mark.parametrize("backend", TRAINING_BACKENDS)
def test_every_implementation_trains_as_keras_does(backend: str) -> None:
    """Mutation: the LSTM's forget and input gates are exchanged; RMSprop adds epsilon after the root; a step of JAX or
    TensorFlow is not compiled.
    """
    seen = printed(TRAIN, backend, "keras", *NAMES)
    check_training(seen, NAMES)
    for requested, steps in seen[NAMES[0]]["compiled"].items():
        assert steps == dict.fromkeys(IMPLEMENTATIONS[2:], requested)


@pytest.mark.process
@pytest.mark.nightly
def test_steps_that_pytorch_compiles_train_as_keras_does() -> None:
    """Mutation: `loss_of` is compiled together with a step that another optimizer than Keras's ends."""
    check_training(printed(TRAIN, "torch", "jit", NAMES[0]), NAMES[:1])


def check_training(seen: dict[str, Any], names: Sequence[str]) -> None:
    """Check the losses, weights and updates of each implementation, and that the check refuses other training."""
    assert list(seen) == list(names)
    for name, one in seen.items():
        assert [KERAS, *one["found"]] == list(IMPLEMENTATIONS)
        for rung, found in one["found"].items():
            where = (name, rung)
            assert (where, found["losses"]) == (where, pytest.approx(one["keras"], rel=LOSSES_LIMIT / 10))
            assert (where, found["updates"]) == (where, len(one["keras"]))
            assert found["weights"] <= LIMITS["float32"]["update"], where
    assert seen[names[0]]["refused"].startswith(
        "implementation: it trains differently from Keras: from the same weights"
    )


@pytest.mark.nightly
@pytest.mark.one_backend
@pytest.mark.process
@pytest.mark.parametrize("backend", TRAINING_BACKENDS)
def test_native_code_generates_the_tokens_of_keras(backend: str) -> None:
    """Mutation: a step does not attend to its own position; queries and keys are exchanged; the biases are left out;
    the program of JAX or TensorFlow is not compiled.
    """
    seen = printed(GENERATE, backend)
    assert list(seen) == ["1", "5", "11"]
    assert {outcome for one in seen.values() for way in one["equal"].values() for outcome in way} == {True}
    assert {(way, found) for one in seen.values() for way, found in one["compiled"].items() if way != found} == set()
    assert seen["5"]["different"] > 5


def test_losses_may_deviate_as_far_as_between_backends() -> None:
    limits = LIMITS["float32"]
    assert (limits["loss"], limits["losses"]) == (FIRST_LOSS_LIMIT, LOSSES_LIMIT)


def test_the_catalog_names_the_workloads_with_a_twin() -> None:
    named = {name: workload.twin for name, workload in load().workloads.items() if workload.twin}
    assert named == twins.PHASES


def test_a_backend_without_implementations_is_unsupported() -> None:
    with pytest.raises(UnsupportedWorkload, match="native code: numpy has no twins"):
        twins.load("numpy")

"""The table of backends: which ones run a cell's phase on its device, and why not."""

from __future__ import annotations

from dataclasses import replace

import pytest

from keras_matrix.records.backends import BACKENDS, TRAINING_BACKENDS, backends_for, cell_problem
from keras_matrix.runner.executors.probe import probe_settings


def test_only_backends_that_train_run_other_phases_than_predict() -> None:
    assert set(BACKENDS) - set(TRAINING_BACKENDS) == {"openvino"}
    assert backends_for("predict") == BACKENDS
    assert backends_for("fit") == backends_for("generate") == TRAINING_BACKENDS


@pytest.mark.parametrize(
    ("changes", "problem"),
    [
        (
            {"phase": "fit"},
            "phase: must be predict on openvino: Keras does not train on it, got fit; set phase: predict, or exclude "
            "the backend",
        ),
        (
            {"phase": "generate"},
            "phase: must be predict on openvino: generate is not measured on it, got generate; set phase: predict, or "
            "exclude the backend",
        ),
        (
            {"phase": "predict", "device": "gpu"},
            "device: must be cpu on openvino, got gpu; set another device, or exclude the backend",
        ),
        (
            {"backend": "jax", "torch_compile": "mode=default"},
            "torch_compile: must be left out on jax, got mode=default; write an entry for torch",
        ),
        (
            {"backend": "torch", "xla_flags": "--xla_a"},
            "xla_flags: must be left out on torch, got --xla_a; write an entry for tensorflow and jax",
        ),
        ({"backend": "torch", "torch_compile": "mode=default"}, None),
        ({"backend": "tensorflow", "xla_flags": "--xla_a"}, None),
        ({"phase": "predict"}, None),
        ({"backend": "variant-a"}, None),
        ({"backend": "torch", "device": "gpu"}, None),
    ],
    ids=str,
)
def test_why_a_backend_does_not_run_a_cell(changes: dict[str, str], problem: str | None) -> None:
    settings = replace(probe_settings("openvino"), **changes)
    assert cell_problem(settings) == problem

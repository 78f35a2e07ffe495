"""Rematerialised layers and accumulated gradients: real processes, on each backend."""

from __future__ import annotations

import uuid
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from keras_matrix.records.schema import Record, Resolved, Status
from keras_matrix.runner.executors.process.executor import ProcessExecutor
from tests.conftest import make_settings
from tests.real_cells import real_cell

pytestmark = [pytest.mark.process, pytest.mark.xdist_group("remat")]
BACKENDS = ("tensorflow", "jax", "torch")
DONE = (Status.OK, Status.UNSTABLE)
STEPS = 4
CellOf = Callable[..., Record]


@pytest.fixture
def cell(executor: ProcessExecutor, tmp_path: Path) -> CellOf:
    def run(workload: str, **changes: Any) -> Record:
        named = f"tests.workloads.rematerialised:{workload}"
        given = {"batch_size": 16, "samples": 64, "steps_per_epoch": STEPS, "epochs": 3, "set_by_matrix": "samples"}
        return real_cell(executor, tmp_path / uuid.uuid4().hex, make_settings(workload=named, **given | changes), STEPS)

    return run


def resolved(record: Record) -> Resolved:
    """Return what ran in a cell that was measured."""
    assert record.status in DONE, (record.reason, record.evidence.output_tail)
    assert record.resolved is not None
    return record.resolved


@pytest.mark.one_backend
@pytest.mark.parametrize("backend", BACKENDS)
def test_activations_are_computed_again_with_equal_losses(cell: CellOf, backend: str) -> None:
    usual, again = cell("dropout", backend=backend), cell("dropout", backend=backend, remat="activations")
    assert (resolved(usual).rematerialised_layers, resolved(again).rematerialised_layers) == (None, 3)
    assert again.learning.loss == pytest.approx(usual.learning.loss, rel=1e-5)


@pytest.mark.nightly(beyond=1)
@pytest.mark.one_backend
@pytest.mark.parametrize(
    ("workload", "layers", "backend"), [("dense", 3, "jax"), ("dense", 3, "torch"), ("in_parts", 2, "jax")]
)
def test_layers_are_computed_again_and_models_are_not(cell: CellOf, workload: str, layers: int, backend: str) -> None:
    usual, again = cell(workload, backend=backend), cell(workload, backend=backend, remat="full")
    assert resolved(again).rematerialised_layers == layers
    assert again.learning.loss == pytest.approx(usual.learning.loss, rel=1e-5)


@pytest.mark.parametrize(
    ("backend", "workload", "reason"),
    [
        ("tensorflow", "dense", "on tensorflow computes no layer of a compiled step again (ValueError); use remat: a"),
        ("jax", "dropout", "on jax cannot compute layers again that use `training`, such as dropout (RuntimeError)"),
    ],
)
def test_what_keras_cannot_compute_again_is_unsupported(cell: CellOf, backend: str, workload: str, reason: str) -> None:
    record = cell(workload, backend=backend, remat="full")
    assert record.status is Status.UNSUPPORTED
    assert reason in (record.reason or "")


def test_mode_that_applies_to_no_layer_is_unsupported(cell: CellOf) -> None:
    """Mutation: `check_remat` accepts a model without such layers."""
    record = cell("no_layers", backend="torch", remat="activations")
    assert record.status is Status.UNSUPPORTED
    assert "remat: must be none, since build() makes no layer itself, got activations" in (record.reason or "")


@pytest.mark.one_backend
@pytest.mark.parametrize("backend", BACKENDS)
def test_gradients_of_several_steps_change_the_weights_once(cell: CellOf, backend: str) -> None:
    """The first step, an epoch of its own, changes nothing yet: the losses differ from those of usual steps."""
    usual, several = cell("dense", backend=backend), cell("dense", backend=backend, gradient_accumulation_steps=4)
    assert (resolved(usual).gradient_accumulation_steps, resolved(several).gradient_accumulation_steps) == (1, 4)
    assert several.work is not None
    assert several.work.updates_per_step == 1
    assert several.learning.loss[0] != pytest.approx(usual.learning.loss[0], rel=1e-4)


def test_the_workloads_own_number_stays_and_is_stated(cell: CellOf) -> None:
    found = resolved(cell("accumulating", backend="torch"))
    assert found.gradient_accumulation_steps == 2
    assert found.own_compile_options == []


def test_optimizer_with_variables_cannot_be_made_to_accumulate(cell: CellOf) -> None:
    record = cell("trained_before", backend="torch", gradient_accumulation_steps=4)
    assert record.status is Status.ERROR
    assert "gradient_accumulation_steps: the workload's optimizer is built already" in (record.reason or "")

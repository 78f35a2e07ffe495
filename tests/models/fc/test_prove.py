"""The comparison of the proof, with synthetic results from NumPy: changes of the weights by the steps."""

from __future__ import annotations

import sys
from collections.abc import Callable
from dataclasses import replace
from types import SimpleNamespace
from typing import Any

import pytest

from keras_matrix.analysis.proofs import PROOF_LIMITS
from keras_matrix.models.fc import prove
from keras_matrix.models.fc.prove import Trained, error, train, update_error
from keras_matrix.models.fc.worker_group import Array, draw_weights, dtype
from keras_matrix.records.fc.communication import Traffic
from keras_matrix.records.fc.proof import ProofOrder
from keras_matrix.records.fc.spec import LEARNING_RATE, FcProblem
from keras_matrix.runner.checks.proofs import SMALL

STEPS = 5


def descended(problem: FcProblem, gradients: Callable[[int], list[Array]]) -> Trained:
    """Return what a worker holds that takes its steps in the problem's own precision, with the gradients of each."""
    kind = dtype(problem)
    weights = list(draw_weights(problem, 0))
    for step in range(1, STEPS + 1):
        weights = [w - kind(LEARNING_RATE) * g.astype(kind) for w, g in zip(weights, gradients(step), strict=True)]
    return Trained(0.0, [], [weights])


def error_of(problem: FcProblem, found: Trained) -> float:
    return update_error(problem, ProofOrder([problem], STEPS), found, train(problem, 0, STEPS))


@pytest.mark.parametrize("precision", PROOF_LIMITS)
@pytest.mark.parametrize("reduce", ["sum", "mean"])
def test_steps_in_the_problems_precision_pass_the_proof(precision: str, reduce: str) -> None:
    problem = SMALL.changed(mode="fc_data", workers=4, precision=precision, reduce=reduce)
    found = descended(problem, lambda step: train(problem, 0, step).gradients[0])
    assert error_of(problem, found) <= PROOF_LIMITS[precision]


@pytest.mark.parametrize("precision", PROOF_LIMITS)
@pytest.mark.parametrize("taken", [0.0, 0.5, 2.0])
def test_missing_or_partial_update_fails_the_proof(precision: str, taken: float) -> None:
    problem = SMALL.changed(mode="fc_data", workers=4, precision=precision, reduce="mean")
    found = descended(problem, lambda step: [taken * g for g in train(problem, 0, step).gradients[0]])
    assert error_of(problem, found) > 0.1


def test_in_float32_the_weights_themselves_do_not_tell_whether_a_square_layer_was_updated() -> None:
    problem = SMALL.changed(mode="fc_data", precision="float32")
    kept, wanted = train(problem, 0, 0).weights[0][:-1], train(problem, 0, STEPS).weights[0][:-1]
    worst = error([kept], [wanted])
    assert worst is not None
    assert worst < PROOF_LIMITS["float32"]


def test_non_finite_weight_fails_the_proof() -> None:
    problem = SMALL.changed(mode="fc_data", precision="float64")
    wanted = train(problem, 0, STEPS)
    spoilt = replace(wanted, weights=[[weight * float("nan") for weight in wanted.weights[0]]])
    assert not error_of(problem, spoilt) <= PROOF_LIMITS["float64"]


class Calls(list[tuple[Any, ...]]):
    """Notes what it is called with."""

    def __call__(self, *arguments: Any) -> None:
        self.append(arguments)


@pytest.mark.parametrize(
    ("device", "backend", "asked"),
    [
        ("gpu", "jax", ("jax_default_matmul_precision", "highest")),
        ("gpu", "tensorflow", (False,)),
        ("gpu", "torch", None),
        ("cpu", "jax", None),
        ("cpu", "tensorflow", None),
    ],
)
def test_a_proof_on_a_gpu_has_its_devices_and_no_tf32(
    monkeypatch: pytest.MonkeyPatch, device: str, backend: str, asked: tuple[Any, ...] | None
) -> None:
    reserved, called = Calls(), Calls()
    experimental = SimpleNamespace(enable_tensor_float_32_execution=called)
    monkeypatch.setitem(sys.modules, "jax", SimpleNamespace(config=SimpleNamespace(update=called)))
    monkeypatch.setitem(sys.modules, "tensorflow", SimpleNamespace(config=SimpleNamespace(experimental=experimental)))
    monkeypatch.setattr(prove, "reserve", reserved)
    prove._configure(backend, ProofOrder([FcProblem(), FcProblem(mode="fc_data", workers=2)], device=device))
    assert reserved == [(backend, 2, device)]
    assert called == ([] if asked is None else [asked])


def test_a_proof_on_a_gpu_has_its_workers_there_and_records_their_device_peaks(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    problem, asked = FcProblem(), Calls()
    worker_group = SimpleNamespace(
        run=Calls(),
        places=list,
        traffic=Traffic,
        peaks_bytes=lambda: [1],
        device_peaks_bytes=lambda: [2],
        close=Calls(),
    )
    monkeypatch.setattr(prove, "_models", lambda problem, worker_group: None)
    monkeypatch.setattr(prove, "assemble", lambda backend, order, apart: asked(order.device, apart) or worker_group)
    _, parallel = prove.found("torch", problem, ProofOrder([problem], device="gpu"))
    assert list(asked) == [("gpu", False)]
    assert parallel.peak_worker_device_memory_bytes == [2]

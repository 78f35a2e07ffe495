"""Training on several devices against training on one."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from keras_matrix.analysis import proofs
from keras_matrix.analysis.parity import ParityProcess
from keras_matrix.records.instruments.parity import ParityOutput, Weight
from keras_matrix.records.replicas import PROOF_VERSION, BackendProof, ReplicaDifference, ReplicaProof

PATHS = ("m/kernel", "m/bias")
NORMALISED = "batch normalisation uses the statistics of each replica's rows, not of the global batch"


def process(losses: tuple[float, ...] = (1.0, 0.5), **factors: float) -> ParityProcess:
    """Two weights; `update_0=2.0` multiplies the update of the first."""
    arrays: dict[str, Any] = {f"update.{i}": np.arange(1.0, 4.0) for i in range(len(PATHS))}
    for name, factor in factors.items():
        arrays[name.replace("_", ".")] = arrays[name.replace("_", ".")] * factor
    trace = ParityOutput("n", "0" * 64, [Weight(path, [3], True) for path in PATHS], list(losses))
    return ParityProcess("jax", trace, lambda kind, i: arrays[f"{kind}.{i}"])


def test_equal_training_has_no_difference() -> None:
    found = proofs.device_difference(process(), process(), "float64", frozenset())
    assert (found, proofs.device_findings({"float64": found}, 2)) == (ReplicaDifference(0.0, 0.0, None), [])


def test_another_update_and_other_losses_are_found_with_the_weight() -> None:
    found = proofs.device_difference(process(), process((1.0, 0.4), update_1=2.0), "float64", frozenset())
    assert (found.losses, found.update, found.update_at) == (pytest.approx(0.2), 0.5, "m/bias")
    assert proofs.device_findings({"float64": found}, 2) == [
        "float64 losses: 2e-01, limit 1e-06",
        "float64 update of m/bias: 5e-01, limit 1e-06",
    ]


def test_a_proof_without_a_weight_to_compare_is_a_finding() -> None:
    assert proofs.device_findings({}, 0) == ["update: rounding decides that of every weight, so that none was compared"]


def test_a_loss_that_is_not_finite_is_found() -> None:
    found = proofs.device_difference(process(), process((1.0, float("nan"))), "float32", frozenset())
    assert proofs.device_findings({"float32": found}, 2) == ["float32 losses: not finite"]


def test_a_weight_whose_update_rounding_decides_is_left_out_and_the_others_are_not() -> None:
    one, nudged = process(), process(update_1=-1.0)
    noise = proofs.decided_by_rounding(one, nudged, "float32")
    assert noise == frozenset({1})
    assert proofs.device_difference(one, process(update_1=-1.0), "float32", noise).update == 0.0
    assert proofs.device_difference(one, process(update_0=3.0, update_1=-1.0), "float32", noise).update_at == "m/kernel"


def proved(*findings: str, semantics: tuple[str, ...] = ()) -> ReplicaProof:
    own = BackendProof("DataParallel", {}, findings=list(findings), semantics=list(semantics))
    return ReplicaProof(PROOF_VERSION, "mnist_mlp", {}, 8, 5, 0, 2, backends={"jax": own})


@pytest.mark.parametrize(
    ("proof", "verdict", "is_proved"),
    [
        (proved(), "equal to one device", True),
        (proved("float64 losses: 1, limit 1e-06"), "differs from one device", False),
        (proved("float64 losses: 1, limit 1e-06", semantics=(NORMALISED,)), "differs by meaning", True),
        (
            proved("float64 losses: 1, limit 1e-06", semantics=("random layers draw for each replica's rows",)),
            "differs from one device",
            False,
        ),
        (replace(proved(), backends={}, failures={"jax": "crash"}), "not compared: crash", False),
        (replace(proved(), backends={}, unsupported={"jax": "no"}), "unsupported: no", True),
    ],
)
def test_each_proof_has_a_verdict(proof: ReplicaProof, verdict: str, is_proved: bool) -> None:
    assert (proofs.device_verdict(proof, "jax"), proofs.is_proved(proof)) == (verdict, is_proved)

"""What a proof of the FC modes shows of each mode, and which stored proof counts for a version."""

from __future__ import annotations

import math
from dataclasses import replace
from typing import Any

import pytest

from keras_matrix.analysis.proofs import Origin, proofs_of, proved_modes, worst_error
from keras_matrix.records.fc import spec
from keras_matrix.records.fc.proof import Proof, ProofAnswer, ProvedMode
from keras_matrix.records.fc.spec import FcProblem

TASK = FcProblem("fc_data", workers=2, level=2, weight_size=8, batch_size=4, precision="float64")
ORIGIN = Origin("2026-01-01T00:00:00+00:00", "cpu", "a machine")


def proof(task: FcProblem = TASK, **found: Any) -> Proof:
    places = [spec.WorkerPlacement(k, f"fake:{k}", *spec.expected_shapes(task, k)) for k in range(task.workers)]
    parallel = spec.parallel_of(task, places, spec.traffic_per_step(task), [])
    return replace(Proof(task, 1e-16, 1e-16, 1e-16, 1e-16, parallel, None), **found)


def test_worst_error_is_over_all_figures_and_not_a_number_if_one_is_not() -> None:
    assert worst_error([proof(weight_error=3e-13), proof(gradient_error=None)]) == 3e-13
    assert worst_error([]) is None
    assert math.isnan(worst_error([proof(loss_error=math.nan), proof()]) or 0.0)


def test_problems_of_a_mode_and_precision_are_one_entry() -> None:
    four = TASK.changed(workers=4)
    answer = ProofAnswer(
        "jax", [proof(), proof(four, update_error=2e-12), proof(TASK.changed(precision="float32"))], "1"
    )
    first, second = proved_modes([answer], ORIGIN)
    assert first == ProvedMode(
        "jax", "fc_data", "float64", "cpu", [2, 4], 2, 2e-12, None, "1", ORIGIN.started_at, "a machine"
    )
    assert (second.precision, second.problems) == ("float32", 1)


@pytest.mark.parametrize(
    ("found", "worst", "failure"),
    [
        ({"weight_error": 1e-3}, 1e-3, "weights are 1.0e-03 from plain NumPy, limit 1e-10"),
        ({"layout_problem": "worker 1 is elsewhere"}, 1e-16, "worker 1 is elsewhere"),
        ({"loss_error": math.nan}, None, "loss are nan from plain NumPy, limit 1e-10"),
    ],
)
def test_failed_problem_is_the_failure_of_its_mode(found: dict[str, Any], worst: float | None, failure: str) -> None:
    (mode,) = proved_modes([ProofAnswer("jax", [proof(), proof(**found)])], ORIGIN)
    assert (mode.worst_error, mode.failure) == (worst, failure)


def test_proof_of_the_measured_version_counts_before_a_newer_one_of_another() -> None:
    own = ProvedMode("jax", "fc_data", "float64", "cpu", [1, 2], 1, 1e-16, version="1", started_at="2026-01-01")
    newer = replace(own, version="2", started_at="2026-02-01")
    assert proofs_of([own, newer], TASK, {"jax": "1"}) == [own]
    assert proofs_of([newer, own], TASK, {"jax": "3"}) == [newer]
    assert proofs_of([own], TASK.changed(mode="fc_model"), {"jax": "1"}) == []
    assert proofs_of([own], TASK.changed(workers=4), {"jax": "1"}) == []

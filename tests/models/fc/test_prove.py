"""What the proof compares, on results made up from plain NumPy: what the steps changed of the weights."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

import pytest

from analysis.fc import LIMITS
from models.fc import layout
from models.fc.layout import Array
from models.fc.prove import error, update_error
from models.fc.reference import Trained, train
from records.fc import LEARNING_RATE, Task
from records.fc_proof import ProofOrder
from runner.fc import SMALL

STEPS = 5


def descended(task: Task, gradients: Callable[[int], list[Array]]) -> Trained:
    """Return what a worker holds that takes its steps in the task's own precision, with the gradients of each."""
    kind = layout.dtype(task)
    weights = list(layout.draw_weights(task, 0))
    for step in range(1, STEPS + 1):
        weights = [w - kind(LEARNING_RATE) * g.astype(kind) for w, g in zip(weights, gradients(step), strict=True)]
    return Trained(0.0, [], [weights])


def error_of(task: Task, found: Trained) -> float:
    return update_error(task, ProofOrder([task], STEPS), found, train(task, 0, STEPS))


@pytest.mark.parametrize("precision", LIMITS)
@pytest.mark.parametrize("reduce", ["sum", "mean"])
def test_steps_in_a_tasks_own_precision_change_what_they_must(precision: str, reduce: str) -> None:
    task = SMALL.changed(mode="fc_data", workers=4, precision=precision, reduce=reduce)
    found = descended(task, lambda step: train(task, 0, step).gradients[0])
    assert error_of(task, found) <= LIMITS[precision]


@pytest.mark.parametrize("precision", LIMITS)
@pytest.mark.parametrize("taken", [0.0, 0.5, 2.0])
def test_an_update_that_was_not_taken_or_not_wholly_is_no_proof(precision: str, taken: float) -> None:
    task = SMALL.changed(mode="fc_data", workers=4, precision=precision, reduce="mean")
    found = descended(task, lambda step: [taken * g for g in train(task, 0, step).gradients[0]])
    assert error_of(task, found) > 0.1


def test_in_float32_the_weights_themselves_do_not_tell_whether_a_square_layer_was_updated() -> None:
    task = SMALL.changed(mode="fc_data", precision="float32")
    kept, wanted = train(task, 0, 0).weights[0][:-1], train(task, 0, STEPS).weights[0][:-1]
    told = error([kept], [wanted])
    assert told is not None
    assert told < LIMITS["float32"]


def test_a_weight_that_is_no_number_is_no_proof() -> None:
    task = SMALL.changed(mode="fc_data", precision="float64")
    wanted = train(task, 0, STEPS)
    spoilt = replace(wanted, weights=[[weight * float("nan") for weight in wanted.weights[0]]])
    assert not error_of(task, spoilt) <= LIMITS["float64"]

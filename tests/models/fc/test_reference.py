"""The plain NumPy of the FC modes: right by differences, and the rule of fc_phy at its ends."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from models.fc import layout
from models.fc.reference import backward, train
from records.fc import LEARNING_RATE, MODES, Task

TASK = Task(level=2, weight_size=6, batch_size=4, precision="float64")
PHYSICS = TASK.changed(mode="fc_phy", workers=2)


def single(task: Task, part: int, steps: int) -> list[Any]:
    """Train one model alone on its part of the batch."""
    weights = list(layout.draw_weights(task, 0))
    rows = slice(part * task.batch_size, (part + 1) * task.batch_size)
    batch, labels = (whole[rows] for whole in layout.draw_batch(task, 0))
    for _ in range(steps):
        _, gradients = backward(weights, batch, labels)
        weights = [w - LEARNING_RATE * g for w, g in zip(weights, gradients, strict=True)]
    return weights


def test_gradients_are_those_of_finite_differences() -> None:
    weights, (batch, labels) = list(layout.draw_weights(TASK, 0)), layout.draw_batch(TASK, 0)
    _, gradients = backward(weights, batch, labels)
    for layer, at in ((0, (1, 2)), (1, (5, 0)), (2, (3, 0))):
        nudged = []
        for nudge in (1e-6, -1e-6):
            moved = [weight.copy() for weight in weights]
            moved[layer][at] += nudge
            nudged.append(backward(moved, batch, labels)[0])
        assert gradients[layer][at] == pytest.approx((nudged[0] - nudged[1]) / 2e-6, rel=1e-6)


def test_every_mode_but_physics_is_one_model_on_the_whole_batch() -> None:
    wanted = train(TASK.changed(mode="fc_single_manual"), 0, 5)
    for mode in ("fc_data", "fc_data_slice", "fc_data_manual", "fc_model", "fc_model_manual", "fc_zero"):
        found = train(TASK.changed(mode=mode, workers=2), 0, 5)
        assert all(np.array_equal(a, b) for a, b in zip(wanted.weights[0], found.weights[0], strict=True))


def test_what_only_goes_forward_changes_nothing() -> None:
    forward = [mode.name for mode in MODES.values() if not mode.trains]
    for mode in forward:
        found = train(TASK.changed(mode=mode), 0, 5)
        assert (found.gradients, found.loss > 0) == ([[]], True)
        assert all(np.array_equal(a, b) for a, b in zip(found.weights[0], layout.draw_weights(TASK, 0), strict=True))


def test_ratio_1_is_data_parallelism_on_the_same_batches() -> None:
    # Two workers with a batch of four rows each, or with their halves of one batch of the same eight rows.
    data = train(TASK.changed(mode="fc_data", workers=2, batch_size=8, reduce="mean"), 0, 5)
    physics = train(PHYSICS.changed(shared_ratio=1.0), 0, 5)
    for model in physics.gradients:
        assert all(np.allclose(a, b, rtol=1e-12) for a, b in zip(data.gradients[0], model, strict=True))


def test_ratio_0_is_every_worker_for_itself() -> None:
    found = train(PHYSICS.changed(shared_ratio=0.0), 0, 5)
    for part, model in enumerate(found.weights):
        assert all(np.array_equal(a, b) for a, b in zip(single(PHYSICS, part, 5), model, strict=True))


def test_between_them_the_first_rows_are_averaged_and_the_rest_is_local() -> None:
    shared = train(PHYSICS.changed(shared_ratio=0.4), 0, 1).gradients  # int(6 * 0.4) = 2 rows
    local = train(PHYSICS.changed(shared_ratio=0.0), 0, 1).gradients
    for layer in range(3):
        mean = (local[0][layer][:2] + local[1][layer][:2]) / 2
        for worker in range(2):
            assert np.allclose(mean, shared[worker][layer][:2], rtol=1e-12)
            assert np.array_equal(local[worker][layer][2:], shared[worker][layer][2:])


@pytest.mark.parametrize("mode", ["fc_model", "fc_zero"])
def test_the_pieces_of_a_layout_make_the_whole_again(mode: str) -> None:
    task = TASK.changed(mode=mode, workers=2)
    pieces = [layout.weights_of(task, 0, rank) for rank in range(2)]
    (found,) = layout.whole(task, pieces)
    assert all(np.array_equal(a, b) for a, b in zip(found, layout.draw_weights(task, 0), strict=True))


def test_replicas_that_drift_apart_are_refused() -> None:
    task = TASK.changed(mode="fc_data", workers=2)
    pieces = [layout.weights_of(task, 0, rank) for rank in range(2)]
    pieces[1][2] += 1
    with pytest.raises(ValueError, match="worker 1 of 2 holds other values than worker 0 in fc_data"):
        layout.whole(task, pieces)

"""The NumPy reference of the FC modes: gradients against finite differences, and the rule of fc_phy at its limits."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from keras_matrix.models.fc.prove import backward, train
from keras_matrix.models.fc.worker_group import (
    BATCH_SCALE,
    batch_of,
    draw_batch,
    draw_weights,
    groups,
    weights_of,
    whole,
)
from keras_matrix.records.fc.spec import LEARNING_RATE, MODES, FcProblem, Parallelism

TASK = FcProblem(level=2, weight_size=6, batch_size=4, precision="float64")
PHYSICS = TASK.changed(mode="fc_phy", workers=2)


def single(problem: FcProblem, part: int, steps: int) -> list[Any]:
    """Train one model alone on its part of the batch."""
    weights = list(draw_weights(problem, 0))
    rows = slice(part * problem.batch_size, (part + 1) * problem.batch_size)
    batch, labels = (whole[rows] for whole in draw_batch(problem, 0))
    for _ in range(steps):
        _, gradients = backward(weights, batch, labels)
        weights = [w - LEARNING_RATE * g for w, g in zip(weights, gradients, strict=True)]
    return weights


def test_weights_and_batch_follow_from_the_seed_and_from_nothing_else() -> None:
    def drawn(seed: int, mode: str, workers: int = 1) -> list[Any]:
        problem = TASK.changed(mode=mode, workers=workers)
        return [*draw_weights(problem, seed), *draw_batch(problem, seed)]

    first = drawn(1, "fc_single_manual")
    for again in (drawn(1, "fc_single_manual"), drawn(1, "fc_model", workers=2)):
        assert all(np.array_equal(a, b) for a, b in zip(first, again, strict=True))
    other = drawn(2, "fc_single_manual")
    assert [np.array_equal(a, b) for a, b in zip(first, other, strict=True)] == [False] * 4 + [True]  # labels are 0
    assert not np.allclose(first[0][: TASK.batch_size] * 6**0.5, first[3] / BATCH_SCALE)


def test_weights_keep_the_scale_of_a_batch_through_the_stack() -> None:
    problem = FcProblem(level=1, weight_size=400, batch_size=100)
    square, last = draw_weights(problem, 0)
    batch, labels = draw_batch(problem, 0)
    assert float(square.std()) == pytest.approx(1 / 20, rel=0.02)
    assert float(last.std()) == pytest.approx(1 / 20, rel=0.15)
    assert float(batch.std()) == pytest.approx(0.1, rel=0.02)
    assert float((batch @ square).std()) == pytest.approx(0.1, rel=0.02)
    assert not labels.any()


def test_gradients_are_those_of_finite_differences() -> None:
    weights, (batch, labels) = list(draw_weights(TASK, 0)), draw_batch(TASK, 0)
    _, gradients = backward(weights, batch, labels)
    for layer, at in ((0, (1, 2)), (1, (5, 0)), (2, (3, 0))):
        nudged = []
        for nudge in (1e-6, -1e-6):
            moved = [weight.copy() for weight in weights]
            moved[layer][at] += nudge
            nudged.append(backward(moved, batch, labels)[0])
        assert gradients[layer][at] == pytest.approx((nudged[0] - nudged[1]) / 2e-6, rel=1e-6)


def test_every_mode_except_physics_trains_one_model_on_the_entire_batch() -> None:
    wanted = train(TASK.changed(mode="fc_single_manual"), 0, 5)
    divided = [
        mode.name
        for mode in MODES.values()
        if mode.trains and mode.kind not in (Parallelism.SINGLE, Parallelism.PHYSICS)
    ]
    assert len(divided) == 8
    for mode in divided:
        found = train(TASK.changed(mode=mode, workers=2), 0, 5)
        assert all(np.array_equal(a, b) for a, b in zip(wanted.weights[0], found.weights[0], strict=True))


def test_forward_only_mode_changes_no_weight() -> None:
    forward = [mode.name for mode in MODES.values() if not mode.trains]
    for mode in forward:
        found = train(TASK.changed(mode=mode), 0, 5)
        assert (found.gradients, found.loss > 0) == ([[]], True)
        assert all(np.array_equal(a, b) for a, b in zip(found.weights[0], draw_weights(TASK, 0), strict=True))


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


def test_a_mean_is_over_the_rows_of_workers_not_over_those_that_divide_a_layer() -> None:
    single = train(TASK.changed(mode="fc_single_manual"), 0, 1).gradients[0]
    for mode, workers, rows in (("fc_hybrid", 4, 2), ("fc_model", 2, 1), ("fc_zero", 2, 2)):
        found = train(TASK.changed(mode=mode, workers=workers, reduce="mean"), 0, 1).gradients[0]
        assert all(np.array_equal(a / rows, b) for a, b in zip(single, found, strict=True))


@pytest.mark.parametrize(("mode", "workers"), [("fc_model", 2), ("fc_zero", 2), ("fc_hybrid", 4), ("fc_pipeline", 2)])
def test_pieces_of_a_layout_form_the_complete_model(mode: str, workers: int) -> None:
    problem = TASK.changed(mode=mode, workers=workers)
    pieces = [weights_of(problem, 0, rank) for rank in range(workers)]
    (found,) = whole(problem, pieces)
    assert all(np.array_equal(a, b) for a, b in zip(found, draw_weights(problem, 0), strict=True))


def test_replicas_that_drift_apart_are_refused() -> None:
    problem = TASK.changed(mode="fc_data", workers=2)
    pieces = [weights_of(problem, 0, rank) for rank in range(2)]
    pieces[1][2] += 1
    with pytest.raises(ValueError, match="worker 1 of 2 has other values than worker 0 in fc_data"):
        whole(problem, pieces)


def test_in_a_mesh_those_of_one_column_must_hold_the_same() -> None:
    problem = TASK.changed(mode="fc_hybrid", workers=4)
    pieces = [weights_of(problem, 0, rank) for rank in range(4)]
    pieces[3][0] += 1
    with pytest.raises(ValueError, match="worker 3 of 4 has other values than worker 1 in fc_hybrid"):
        whole(problem, pieces)


def test_groups_are_the_rows_and_the_columns_of_the_mesh() -> None:
    problem = TASK.changed(mode="fc_hybrid", workers=6, model_workers=3, batch_size=6)
    assert groups(problem, along_model=True) == [[0, 1, 2], [3, 4, 5]]
    assert groups(problem, along_model=False) == [[0, 3], [1, 4], [2, 5]]


def test_mesh_divides_the_batch_by_row_and_column_and_the_labels_by_worker() -> None:
    problem = TASK.changed(mode="fc_hybrid", workers=4)
    batch, _ = draw_batch(problem, 0)
    own, labels = batch_of(problem, 0, 3)
    assert (np.array_equal(batch[2:, 3:], own), labels.shape) == (True, (1, 1))


def test_the_first_stage_has_the_batch_and_the_last_the_labels() -> None:
    problem = TASK.changed(mode="fc_pipeline", workers=2)
    shapes = [[part.shape for part in batch_of(problem, 0, rank)] for rank in range(2)]
    assert shapes == [[(4, 6), (0, 1)], [(0, 6), (4, 1)]]

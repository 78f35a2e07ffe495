"""The batches that a cell's process prepares: those of its epochs or, in a trial of a batch size, of a pass."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

from keras_matrix.runner.cell.loop import EpochLog, Stretch
from keras_matrix.runner.cell.phases import Training
from keras_matrix.runner.cell.predicting import Predicting
from keras_matrix.runner.cell.replicated.interface import DeviceGroup

pytestmark = pytest.mark.process  # imports Keras


class Unfitted(Training):
    """Training without an epoch of `fit`."""

    def _fit(self, name: str, feeder: Any, stretch: Stretch) -> EpochLog:
        return EpochLog([1.0] * stretch.epochs, [{"loss": 1.0}] * stretch.epochs)


def batches_held(phase: str, steps_held: int, samples: int = 64) -> int:
    """Return how many batches of 8 are on the device in the epochs of 2 steps."""
    settings: Any = SimpleNamespace(
        samples=samples, batch_size=8, seed=0, feed="device_resident", phase=phase, steps_per_execution=1,
        epochs=2, discard=1, backend="jax", call="predict_on_batch", outputs="host",
    )  # fmt: skip
    held: list[int] = []
    model = SimpleNamespace(predict_on_batch=lambda x: x, trainable_variables=[], optimizer=None)
    adapter: Any = SimpleNamespace(
        feeder=lambda batches: held.append(len(batches)), resident=lambda batch: batch, group=DeviceGroup()
    )
    samples_of = lambda count, seed: (np.ones((count, 1)), np.ones((count, 1)))  # noqa: E731
    built: Any = SimpleNamespace(model=model, samples=samples_of, pipeline=None)
    turns = SimpleNamespace(first_step_ended=lambda: None)
    kept: Any = SimpleNamespace(turns=turns, stretch=lambda settings, steps: Stretch(steps, 2, 1), end=lambda: None)
    job: Any = SimpleNamespace(settings=settings, steps=2, steps_held=steps_held, repeat=1)
    first: Any = [(np.ones((8, 1)), np.ones((8, 1)))]
    if phase == "fit":
        Unfitted(built, adapter, job, kept).run(first)
        return held[-1]
    predicting = Predicting(built, adapter, job, kept)
    predicting.run(first)
    return len(predicting._fed)


@pytest.mark.parametrize("phase", ["fit", "predict"])
@pytest.mark.parametrize(("steps_held", "expected"), [(0, 2), (5, 5), (10_000_000, 8)])
def test_process_prepares_the_requested_batches_up_to_one_pass(phase: str, steps_held: int, expected: int) -> None:
    assert expected == batches_held(phase, steps_held)

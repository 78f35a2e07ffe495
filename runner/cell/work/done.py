"""What work a cell's process did, told after everything timed: weights, the optimiser's slots, FLOPs of the model.

Promise: it changes no figure, since it comes after the last clock and after memory was read; and what cannot be counted
is None, never a reason for a cell to fail.
"""

from __future__ import annotations

import math
import sys
from typing import Any

from keras_matrix.models.workload import Built
from keras_matrix.runner.cell.backends import Batch
from keras_matrix.runner.cell.job import Job

# Every process of a cell does the same: one of them pays for the count, seconds for the largest models.
COUNTING_REPEAT = 0


def work_done(job: Job, built: Built, batch: Batch) -> dict[str, Any]:
    """Return the fields of a record's `resolved` that tell the work, FLOPs over this batch.

    The optimiser's are there only where it trained.
    """
    model = built.model
    return {
        "parameters": int(model.count_params()),
        "trainable_parameters": _elements(model.trainable_variables),
        "forward_flops": _flops(built, batch) if job.repeat == COUNTING_REPEAT else None,
        **(_optimizer(model.optimizer) if job.settings.phase == "fit" and model.optimizer is not None else {}),
    }


def _optimizer(optimizer: Any) -> dict[str, Any]:
    import ml_dtypes  # noqa: F401 - teaches NumPy the name bfloat16
    import numpy as np
    from keras.backend import standardize_dtype

    from keras_matrix.models.flops.counting import slots

    kept = slots(optimizer)
    return {
        "optimizer": type(optimizer).__name__,
        "learning_rate": _first_rate(optimizer),
        "optimizer_slots": len(kept),
        "optimizer_slot_bytes": sum(
            _elements([slot]) * np.dtype(standardize_dtype(slot.dtype)).itemsize for slot in kept
        ),
    }


def _first_rate(optimizer: Any) -> float:
    """Return the learning rate of the first step: what a schedule says of step 0, or the rate itself."""
    import keras

    rate = optimizer._learning_rate
    schedule = keras.optimizers.schedules.LearningRateSchedule
    return float(keras.ops.convert_to_numpy(rate(0) if isinstance(rate, schedule) else rate))


def _flops(built: Built, batch: Batch) -> int | None:
    from keras_matrix.models.flops.counting import counter

    try:
        return counter().forward(built.model, batch[0])
    except Exception as error:  # noqa: BLE001 - whatever a user's model raises: this count alone is missing
        print(f"FLOPs not counted: {type(error).__name__}: {error}", file=sys.stderr)
        return None


def _elements(variables: Any) -> int:
    return sum(math.prod(variable.shape) for variable in variables)

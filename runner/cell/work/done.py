"""The work of a cell's process, read after everything timed: weights, the optimiser's slots, FLOPs of the model.

It affects no figure, since it is read after the last timing and after memory; what cannot be counted is None and never
fails a cell.
"""

from __future__ import annotations

import math
import sys
from typing import Any

import keras

from keras_matrix.models.workload import Built
from keras_matrix.runner.cell.batches import Batch
from keras_matrix.runner.cell.job import Job
from keras_matrix.runner.cell.process_options import stored_bytes

# Every process of a cell does the same work: one of them counts it, which takes seconds for the largest models.
COUNTING_REPEAT = 0


def work_done(job: Job, built: Built, batch: Batch) -> dict[str, Any]:
    """Return the fields of a record's `resolved` about the work, with FLOPs for this batch.

    The optimiser's fields are included only if it trained.
    """
    model = built.model
    return {
        "parameters": int(model.count_params()),
        "trainable_parameters": _elements(model.trainable_variables),
        "forward_flops": _flops(built, batch) if job.repeat == COUNTING_REPEAT else None,
        **(_optimizer(model.optimizer) if job.settings.phase == "fit" and model.optimizer is not None else {}),
    }


def _optimizer(optimizer: Any) -> dict[str, Any]:
    from keras_matrix.models.flops.counting import slots

    found = slots(optimizer)
    return {
        "optimizer": type(optimizer).__name__,
        "learning_rate": _first_rate(optimizer),
        "optimizer_slots": len(found),
        "optimizer_slot_bytes": stored_bytes(found),
    }


def _first_rate(optimizer: Any) -> float:
    """Return the learning rate of the first step: a schedule's value for step 0, or the rate itself."""
    rate = optimizer._learning_rate
    schedule = keras.optimizers.schedules.LearningRateSchedule
    return float(keras.ops.convert_to_numpy(rate(0) if isinstance(rate, schedule) else rate))


def _flops(built: Built, batch: Batch) -> int | None:
    from keras_matrix.models.flops.counting import counter

    try:
        return counter().forward(built.model, batch[0])
    except Exception as error:  # noqa: BLE001 - any error of a user's model: this count alone is missing
        print(f"FLOPs not counted: {type(error).__name__}: {error}", file=sys.stderr)
        return None


def _elements(variables: Any) -> int:
    return sum(math.prod(variable.shape) for variable in variables)

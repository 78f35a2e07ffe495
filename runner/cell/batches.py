"""Turns samples into full batches, wrapping to the first samples, so that every step does the same work."""

from __future__ import annotations

import math
from typing import Any

import numpy as np

from keras_matrix.records.settings import Settings
from keras_matrix.runner.cell.backends import Batch


def steps_of_pass(settings: Settings) -> int:
    """Return the steps of one pass over the samples: ceil(samples / batch_size)."""
    return math.ceil(settings.samples / settings.batch_size)


def make_batches(built: Any, settings: Settings, steps: int) -> list[Batch]:
    """Return the distinct batches of an epoch: one pass over the samples, or fewer if an epoch of `steps` uses fewer.

    Arrays keep their dtype; each batch is (x, y) with leading dimension `batch_size`. The last batch wraps to the
    first samples.
    """
    count = min(steps_of_pass(settings), steps)
    available = min(settings.samples, count * settings.batch_size)
    x, y = built.samples(available, settings.seed)
    indices = np.arange(count * settings.batch_size) % available
    return [(_take(x, rows), _take(y, rows)) for rows in indices.reshape(count, settings.batch_size)]


def _take(part: Any, rows: Any) -> Any:
    if isinstance(part, dict):
        return {key: item[rows] for key, item in part.items()}
    if isinstance(part, (list, tuple)):
        return tuple(item[rows] for item in part)
    return part[rows]

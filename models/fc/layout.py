"""Which worker holds what: the arrays of a task, drawn from its seed, and how they are cut.

Promise: the same seed gives the same weights and batch in every mode, backend and process. Weights are N(0, 1 / size),
so that a batch keeps its scale through the stack; the batch is N(0, 0.1) and its labels are 0. Random numbers are drawn
layer by layer: a worker that needs a piece of a layer never holds more than that layer whole.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from records.fc import Kind, Task

Array = np.ndarray[Any, np.dtype[Any]]
BATCH_SCALE = 0.1


@dataclass(frozen=True, slots=True)
class Cuts:
    """The axis along which each array is cut into one piece per worker; None where every worker holds it whole."""

    weights: int | None
    batch: int
    labels: int = 0


# In physics every worker has weights of its own: the whole of them is the workers' weights one above the other.
ROWS = (Kind.MODEL, Kind.SHARDED)  # one model's weights, cut into rows
CUTS = {
    Kind.SINGLE: Cuts(None, 0),
    Kind.DATA: Cuts(None, 0),
    Kind.MODEL: Cuts(0, 1),
    Kind.SHARDED: Cuts(0, 0),
    Kind.PHYSICS: Cuts(0, 0),
}


def cuts(task: Task) -> Cuts:
    """Return how a task's arrays are cut."""
    return CUTS[task.kind]


def dtype(task: Task) -> type[np.floating[Any]]:
    """Return the type in which a task's arrays are drawn; bfloat16 is rounded from float32 when it is placed."""
    return np.float64 if task.precision == "float64" else np.float32


def draw_weights(task: Task, seed: int) -> Iterator[Array]:
    """Yield one whole model's weights, first layer first."""
    random = np.random.default_rng([seed, 0])
    for shape in task.shapes:
        yield random.standard_normal(shape, dtype(task)) * dtype(task)(task.weight_size**-0.5)


def draw_batch(task: Task, seed: int) -> tuple[Array, Array]:
    """Return the rows that all workers train on in every step, and their labels."""
    rows = task.samples_per_step
    batch = np.random.default_rng([seed, 1]).standard_normal((rows, task.weight_size), dtype(task))
    return batch * dtype(task)(BATCH_SCALE), np.zeros((rows, 1), dtype(task))


def piece(array: Array, axis: int | None, workers: int, rank: int) -> Array:
    """Return a worker's piece of a whole array."""
    return array if axis is None else np.split(array, workers, axis)[rank]


def weights_of(task: Task, seed: int, rank: int) -> list[Array]:
    """Return a worker's weights; every block of fc_phy begins with the same."""
    axis = 0 if task.kind in ROWS else None
    own = [np.ascontiguousarray(piece(weight, axis, task.workers, rank)) for weight in draw_weights(task, seed)]
    return own * (task.phy_blocks if task.kind is Kind.PHYSICS else 1)


def batch_of(task: Task, seed: int, rank: int) -> tuple[Array, Array]:
    """Return a worker's part of the batch and its labels."""
    batch, labels = draw_batch(task, seed)
    where = cuts(task)
    own = piece(batch, where.batch, task.workers, rank)
    return np.ascontiguousarray(own), piece(labels, where.labels, task.workers, rank)


def whole(task: Task, pieces: Sequence[Sequence[Array]]) -> list[list[Array]]:
    """Return whole models from the workers' weights or gradients: one, or one a copy in fc_phy.

    Raises `ValueError` where workers that must hold the same hold something else.
    """
    depth = task.level + 1
    if task.kind is Kind.PHYSICS:
        return [list(own[k : k + depth]) for own in pieces for k in range(0, len(own), depth)]
    if task.kind in ROWS:
        return [[np.concatenate(parts, axis=0) for parts in zip(*pieces, strict=True)]]
    for rank, own in enumerate(pieces):
        if not all(np.array_equal(a, b) for a, b in zip(pieces[0], own, strict=True)):
            raise ValueError(f"worker {rank} of {task.workers} holds other values than worker 0 in {task.mode}")
    return [list(pieces[0])]

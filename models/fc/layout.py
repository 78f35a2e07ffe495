"""The arrays of a problem, drawn from its seed, and their division among workers.

The same seed gives the same weights and batch in every mode, backend and process. Weights are N(0, 1 / size), so that a
batch keeps its scale through the stack; the batch is N(0, 0.01) and its labels are 0. Random numbers are drawn layer by
layer, so that a worker that needs pieces never has more than one complete layer in memory.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

import numpy as np

from keras_matrix.records.fc.spec import FcProblem, Parallelism

Array = np.ndarray[Any, np.dtype[Any]]
BATCH_SCALE = 0.1  # a standard deviation


def dtype(problem: FcProblem) -> type[np.floating[Any]]:
    """Return the type in which a problem's arrays are drawn; bfloat16 is rounded from float32 on placement."""
    return np.float64 if problem.precision == "float64" else np.float32


def draw_weights(problem: FcProblem, seed: int) -> Iterator[Array]:
    """Yield the weights of a complete model, first layer first."""
    random = np.random.default_rng([seed, 0])
    for shape in problem.shapes:
        yield random.standard_normal(shape, dtype(problem)) * dtype(problem)(problem.weight_size**-0.5)


def draw_batch(problem: FcProblem, seed: int) -> tuple[Array, Array]:
    """Return the rows of every step of all workers, and their labels."""
    rows = problem.samples_per_step
    batch = np.random.default_rng([seed, 1]).standard_normal((rows, problem.weight_size), dtype(problem))
    return batch * dtype(problem)(BATCH_SCALE), np.zeros((rows, 1), dtype(problem))


def piece(array: Array, axis: int, pieces: int, number: int) -> Array:
    """Return one of several equal pieces of an array along an axis."""
    return np.split(array, pieces, axis)[number]


def weights_of(problem: FcProblem, seed: int, rank: int) -> list[Array]:
    """Return a worker's weights; all blocks of fc_phy start from the same."""
    pieces, held = problem.weight_pieces, problem.layers_of(rank)
    drawn = (weight for number, weight in enumerate(draw_weights(problem, seed)) if number in held)
    own = [np.ascontiguousarray(piece(weight, 0, pieces, rank % pieces)) for weight in drawn]
    return own * (problem.phy_blocks if problem.kind is Parallelism.PHYSICS else 1)


def batch_of(problem: FcProblem, seed: int, rank: int) -> tuple[Array, Array]:
    """Return a worker's part of batch and labels; in fc_pipeline only the first and the last have rows."""
    batch, labels = draw_batch(problem, seed)
    if problem.kind is Parallelism.PIPELINE:
        return batch[: len(batch) * (rank == 0)], labels[: len(labels) * (rank == problem.workers - 1)]
    row, column = divmod(rank, problem.model_size)
    own = piece(piece(batch, 0, problem.data_size, row), 1, problem.model_size, column)
    return np.ascontiguousarray(own), piece(labels, 0, problem.data_size * problem.model_size, rank)


def groups(problem: FcProblem, along_model: bool) -> list[list[int]]:
    """Return the workers that share rows of the batch (`along_model`), or those that share pieces of the weights."""
    rows = [
        [row * problem.model_size + column for column in range(problem.model_size)] for row in range(problem.data_size)
    ]
    return rows if along_model else [list(column) for column in zip(*rows, strict=True)]


def whole(problem: FcProblem, pieces: Sequence[Sequence[Array]]) -> list[list[Array]]:
    """Return complete models from the workers' weights or gradients: one, in fc_phy one per copy.

    Raises `ValueError` if workers that must have equal values differ.
    """
    depth = problem.level + 1
    if problem.kind is Parallelism.PHYSICS:
        return [list(own[k : k + depth]) for own in pieces for k in range(0, len(own), depth)]
    if problem.kind is Parallelism.PIPELINE:
        return [[array for own in pieces for array in own]]
    different = problem.weight_pieces
    for rank, own in enumerate(pieces):
        if not all(np.array_equal(a, b) for a, b in zip(pieces[rank % different], own, strict=True)):
            first = f"worker {rank % different} in {problem.mode}"
            raise ValueError(f"worker {rank} of {problem.workers} has other values than {first}")
    return [[np.concatenate(parts, axis=0) for parts in zip(*pieces[:different], strict=True)]]

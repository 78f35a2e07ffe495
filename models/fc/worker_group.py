"""All workers of a problem together: their interface, what they are created from, and the arrays divided among them.

The same seed gives the same weights and batch in every mode, backend and process. Weights are N(0, 1 / size), so that a
batch keeps its scale through the stack; the batch is N(0, 0.01) and its labels are 0. Random numbers are drawn layer by
layer, so that a worker that needs pieces never has more than one complete layer in memory.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any

import numpy as np

from keras_matrix.records.fc.communication import Communication, Traffic
from keras_matrix.records.fc.network import Rendezvous
from keras_matrix.records.fc.spec import FcProblem, Parallelism, WorkerPlacement
from keras_matrix.records.host.platform import PLATFORM
from keras_matrix.records.traces.request import TraceOrder

Array = np.ndarray[Any, np.dtype[Any]]
BATCH_SCALE = 0.1  # a standard deviation


class NoSuchDevices(Exception):
    """There are fewer devices than workers; the message says how many there are and what to do."""


class NoDevice(Exception):
    """The backend finds no device of the requested kind; the message says what to check."""


def require_devices(backend: str, device: str, available: int, workers: int, key: str = "workers") -> None:
    """Check that there is an accelerator for each worker, or for each of `devices` (the `key` of the setting).

    Raises `NoDevice` if there is none, or `NoSuchDevices`.
    """
    if available == 0:
        raise NoDevice(
            f"device: {device} was requested, but {backend} finds no such device; check the device, and install the "
            f"build of {backend} for it"
        )
    if available < workers:
        more_advice = "name more in CUDA_VISIBLE_DEVICES, or " if device == "gpu" else ""
        fewer_advice = (
            "set device: cpu to use more workers than devices" if key == "workers" else f"lower {key} to {available}"
        )
        raise NoSuchDevices(
            f"{key}: must be at most the number of {device.upper()}s that {backend} finds in this cell ({available}), "
            f"got {workers}; {more_advice}{fewer_advice}"
        )


@dataclass(frozen=True, slots=True)
class WorkerState:
    """The state of one worker after a step: its loss, its gradients (empty unless they are requested), its weights."""

    loss: float
    gradients: list[Array]
    weights: list[Array]


def placement(rank: int, devices: Iterable[object], weights: Iterable[Any], batch: Iterable[Any]) -> WorkerPlacement:
    """Return the placement of a worker's arrays on these devices; `batch` are its batch and its labels."""
    shapes, (rows, labels) = ([list(map(int, array.shape)) for array in arrays] for arrays in (weights, batch))
    return WorkerPlacement(rank, ", ".join(sorted(set(map(str, devices)))), shapes, rows, labels)


def device_peaks_bytes(devices: Sequence[Any]) -> list[int]:
    """Return the peak of the allocator on each of JAX's devices; empty if one does not report it, such as a CPU."""
    reported = [(device.memory_stats() or {}).get("peak_bytes_in_use") for device in devices]
    return [int(peak) for peak in reported if peak is not None] if None not in reported else []


class WorkerGroup(ABC):
    """The workers of a problem, with their weights and the built step. The defaults are for workers in this process."""

    backend = ""

    @abstractmethod
    def run(self, steps: int) -> None:
        """Run steps; return when every worker has finished and every device is idle."""

    @abstractmethod
    def loss(self) -> float:
        """Return the loss of the last step, summed over the workers."""

    @abstractmethod
    def states(self) -> list[WorkerState]:
        """Return the state of each worker after the last step."""

    @abstractmethod
    def places(self) -> list[WorkerPlacement]:
        """Return the placement of each worker's arrays, as read from the arrays."""

    @abstractmethod
    def traffic(self) -> Traffic:
        """Return the communication of each worker in one step. Raises `RuntimeError` if workers differ."""

    def peaks_bytes(self) -> list[int]:
        """Return the peak resident memory of each process with workers."""
        return [PLATFORM.peak_resident_bytes()]

    def device_peaks_bytes(self) -> list[int]:
        """Return the peak of the allocator on each worker's device; empty on a CPU."""
        return []

    def communication(self, steps: int, epochs: int) -> Communication | None:
        """Run further epochs of `steps` steps to measure the time of their collectives; None if none was observed."""
        return None

    def traced(self, order: TraceOrder) -> None:
        """Run further steps, which the backend's profiler records. Raises `TraceError`, or the profiler's error."""
        from keras_matrix.models.profiling import load, record_epochs

        record_epochs(load(self.backend), order, partial(self.run, 1))

    def close(self) -> None:  # noqa: B027 - in this process there is nothing to end
        """End the processes that were started."""


@dataclass(frozen=True, slots=True)
class WorkerSpec:
    """The specification of a worker group; `device` is cpu or gpu, `keep_gradients` stores them for inspection.

    `namespaces` are the network namespaces that the workers join, by rank; empty if they use the loopback interface.
    `rendezvous` are the machines among which the workers are divided evenly, None for this one alone. `configure`
    applies the cell's settings to the backend in a worker process that is not a copy of this one; it can be pickled.
    """

    problem: FcProblem
    seed: int
    device: str = "cpu"
    keep_gradients: bool = False
    namespaces: tuple[str, ...] = ()
    configure: Callable[[], None] | None = None
    rendezvous: Rendezvous | None = None

    @property
    def workers_here(self) -> int:
        """The number of workers on each machine."""
        return self.problem.workers // (len(self.rendezvous.sites) if self.rendezvous else 1)

    @property
    def apart(self) -> bool:
        """Whether workers communicate over a network, so that each must be a process."""
        return bool(self.namespaces) or self.rendezvous is not None


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
    row_count = problem.samples_per_step
    batch = np.random.default_rng([seed, 1]).standard_normal((row_count, problem.weight_size), dtype(problem))
    return batch * dtype(problem)(BATCH_SCALE), np.zeros((row_count, 1), dtype(problem))


def piece(array: Array, axis: int, pieces: int, number: int) -> Array:
    """Return one of several equal pieces of an array along an axis."""
    return np.split(array, pieces, axis)[number]


def weights_of(problem: FcProblem, seed: int, rank: int) -> list[Array]:
    """Return a worker's weights; all blocks of fc_phy start from the same."""
    pieces, held = problem.weight_pieces, problem.layers_of(rank)
    drawn_weights = (weight for number, weight in enumerate(draw_weights(problem, seed)) if number in held)
    rank_weights = [np.ascontiguousarray(piece(weight, 0, pieces, rank % pieces)) for weight in drawn_weights]
    return rank_weights * (problem.phy_blocks if problem.kind is Parallelism.PHYSICS else 1)


def batch_of(problem: FcProblem, seed: int, rank: int) -> tuple[Array, Array]:
    """Return a worker's part of batch and labels; in fc_pipeline only the first and the last have rows."""
    batch, labels = draw_batch(problem, seed)
    if problem.kind is Parallelism.PIPELINE:
        return batch[: len(batch) * (rank == 0)], labels[: len(labels) * (rank == problem.workers - 1)]
    row, column = divmod(rank, problem.model_size)
    rank_batch = piece(piece(batch, 0, problem.data_size, row), 1, problem.model_size, column)
    return np.ascontiguousarray(rank_batch), piece(labels, 0, problem.data_size * problem.model_size, rank)


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
        return [list(rank_pieces[k : k + depth]) for rank_pieces in pieces for k in range(0, len(rank_pieces), depth)]
    if problem.kind is Parallelism.PIPELINE:
        return [[array for rank_pieces in pieces for array in rank_pieces]]
    distinct_count = problem.weight_pieces
    for rank, rank_pieces in enumerate(pieces):
        if not all(np.array_equal(a, b) for a, b in zip(pieces[rank % distinct_count], rank_pieces, strict=True)):
            worker_text = f"worker {rank % distinct_count} in {problem.mode}"
            raise ValueError(f"worker {rank} of {problem.workers} has other values than {worker_text}")
    return [[np.concatenate(parts, axis=0) for parts in zip(*pieces[:distinct_count], strict=True)]]

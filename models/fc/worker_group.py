"""The interface of all workers of a problem together, and the specification from which they are created."""

from __future__ import annotations

import resource
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any

from keras_matrix.models.fc.layout import Array
from keras_matrix.records.fc.communication import Communication
from keras_matrix.records.fc.network import Rendezvous
from keras_matrix.records.fc.spec import FcProblem, WorkerPlacement
from keras_matrix.records.fc.traffic import Traffic
from keras_matrix.records.traces.request import TraceOrder


class NoSuchDevices(Exception):
    """There are fewer devices than workers; the message says how many there are and what to do."""


class NoDevice(Exception):
    """The backend finds no device of the requested kind; the message says what to check."""


def require_devices(backend: str, device: str, found: int, workers: int, key: str = "workers") -> None:
    """Check that there is an accelerator for each worker, or for each of `devices` (the `key` of the setting).

    Raises `NoDevice` if there is none, or `NoSuchDevices`.
    """
    if found == 0:
        raise NoDevice(
            f"device: {device} was requested, but {backend} finds no such device; check the device, and install the "
            f"build of {backend} for it"
        )
    if found < workers:
        more = "name more in CUDA_VISIBLE_DEVICES, or " if device == "gpu" else ""
        fewer = "set device: cpu to use more workers than devices" if key == "workers" else f"lower {key} to {found}"
        raise NoSuchDevices(
            f"{key}: must be at most the number of {device.upper()}s that {backend} finds in this cell ({found}), "
            f"got {workers}; {more}{fewer}"
        )


@dataclass(frozen=True, slots=True)
class WorkerState:
    """The state of one worker after a step: its loss, its gradients (empty unless they are requested), its weights."""

    loss: float
    gradients: list[Array]
    weights: list[Array]


def placement(rank: int, devices: Iterable[object], weights: Iterable[Any], batch: Iterable[Any]) -> WorkerPlacement:
    """Return the placement of a worker's arrays on these devices; `batch` are its batch and its labels."""
    shapes, (rows, labels) = ([list(map(int, array.shape)) for array in part] for part in (weights, batch))
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
        return [resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024]

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

"""What all workers of a problem are asked to do together, and what they are made from."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Protocol

from keras_matrix.models.fc.layout import Array
from keras_matrix.records.fc.communication import Communication
from keras_matrix.records.fc.spec import FcProblem, WorkerPlacement
from keras_matrix.records.fc.traffic import Traffic
from keras_matrix.records.traces.request import TraceOrder


class NoSuchDevices(Exception):
    """More workers were asked for than there are devices; the message says how many there are and what to do."""


class NoDevice(Exception):
    """The backend finds no device of the requested kind; the message says what to check."""


def require_devices(backend: str, device: str, found: int, workers: int) -> None:
    """Check that there is an accelerator for each worker. Raises `NoDevice` if there is none, or `NoSuchDevices`."""
    if found == 0:
        raise NoDevice(
            f"device: {device} was requested, but {backend} finds no such device; is there one, and is the build of "
            f"{backend} for it installed?"
        )
    if found < workers:
        advice = "name more in CUDA_VISIBLE_DEVICES, or " if device == "gpu" else ""
        raise NoSuchDevices(
            f"workers: must be at most the number of {device.upper()}s that {backend} finds in this cell ({found}), "
            f"got {workers}; {advice}set device: cpu to use more workers than devices"
        )


@dataclass(frozen=True, slots=True)
class WorkerState:
    """What one worker holds after a step: its loss, its gradients (none where none were to be kept), its weights."""

    loss: float
    gradients: list[Array]
    weights: list[Array]


class WorkerGroup(Protocol):
    """The workers of a problem, their weights made and their step built."""

    def run(self, steps: int) -> None:
        """Take steps; return when every worker has finished and every device is idle."""

    def loss(self) -> float:
        """Return the loss of the last step, summed over the workers."""

    def kept(self) -> list[WorkerState]:
        """Return what each worker holds after the last step."""

    def places(self) -> list[WorkerPlacement]:
        """Return where each worker's arrays lie, asked of the arrays themselves."""

    def traffic(self) -> Traffic:
        """Return what each worker took part in during one step. Raises `RuntimeError` where they differ."""

    def peaks_bytes(self) -> list[int]:
        """Return the peak of resident memory of each process that holds workers."""

    def device_peaks_bytes(self) -> list[int]:
        """Return the peak of the allocator on each worker's device; nothing on a CPU."""

    def communication(self, steps: int, epochs: int) -> Communication | None:
        """Take more steps, in so many epochs, to see how long their collectives take; None where none was seen."""

    def traced(self, order: TraceOrder) -> None:
        """Take more steps, which the backend's profiler records. Raises `TraceError`, or what the profiler raises."""

    def close(self) -> None:
        """End what was started."""


@dataclass(frozen=True, slots=True)
class WorkerSpec:
    """What a crew is made from; `device` is cpu or gpu, `keep_gradients` where they are to be looked at afterwards.

    `namespaces` are the network namespaces that the workers join, by rank; none where they speak over loopback.
    `configure` applies the cell's settings to the backend in a worker's process that is not a copy of this one: a
    function that can be pickled.
    """

    problem: FcProblem
    seed: int
    device: str = "cpu"
    keep_gradients: bool = False
    namespaces: tuple[str, ...] = ()
    configure: Callable[[], None] | None = None

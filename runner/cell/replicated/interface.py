"""The interface of the devices on which a cell trains, with the behaviour of a single device as defaults."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from keras_matrix.records.fc.communication import Communication
from keras_matrix.records.host.platform import PLATFORM
from keras_matrix.records.replicas import Replicas
from keras_matrix.runner.cell.batches import Batch, Feeder

if TYPE_CHECKING:
    from keras_matrix.runner.cell.job import Job

Logs = dict[str, float]
Undivided = Callable[[Sequence[Batch]], Feeder]


@dataclass(frozen=True, slots=True)
class EpochEnd:
    """An epoch on all devices: its logs, and the samples that other processes than this one counted."""

    logs: Logs
    further_samples: int = 0


class DeviceGroup:
    """The devices of a cell, and how `fit` uses them. The defaults are those of one device."""

    divides_own_steps = True
    """Whether a training step that the workload overrides is divided, too."""

    def cpus(self) -> set[int]:
        """Return the CPUs that the cell may use; a process of the group may be bound to some of them."""
        return PLATFORM.usable_cpus()

    def reserve(self, job: Job) -> None:
        """Ensure that the devices exist, before the backend is used. Raises `NoDevice` or `NoSuchDevices`."""

    def building(self) -> AbstractContextManager[Any]:
        """Return the context in which the model and its optimizer are created."""
        return nullcontext()

    def prepare(self, model: Any) -> None:
        """Divide the work of the built and configured model. Raises `Unsupported` if the devices cannot."""

    def callbacks(self) -> list[Any]:
        """Return further callbacks of `fit`."""
        return []

    def feeder(self, batches: Sequence[Batch], undivided: Undivided) -> Feeder:
        """Return the feeder of `fit`: every device receives its part of each batch.

        `undivided` makes that of one device, by the cell's feed.
        """
        return undivided(batches)

    def training(self, steps: int, epochs: int) -> AbstractContextManager[Any]:
        """Return the context of a call of `fit`."""
        return nullcontext()

    def epoch_begins(self) -> None:
        """Let every device begin an epoch; the clock starts next."""

    def epoch_ended(self, logs: Logs) -> EpochEnd:
        """Return when every device has ended the epoch; the clock stops next. `logs` are those of this process."""
        return EpochEnd(logs)

    def replicas(self, model: Any, batch: Batch) -> Replicas | None:
        """Return the part of each device, as read from its arrays; None on one device."""

    def communication(self, run: Callable[[int], None], steps: int, epochs: int) -> Communication | None:
        """Time the collectives in further epochs of `steps` steps, which `run` trains; None if that is not possible."""

    def close(self) -> None:
        """End what was started."""

"""A task as an entry of the matrix asks for it: a command with places for the values of its axes. Pure."""

from __future__ import annotations

import hashlib
from collections.abc import Mapping
from dataclasses import dataclass, replace

from keras_matrix.records.codec import canonical
from keras_matrix.records.settings import Scalar, Settings
from keras_matrix.records.task import ALONE, DEFINITION, PREFIX, Task
from keras_matrix.runner.matrix.catalog import Workload
from keras_matrix.runner.matrix.strict_yaml import say
from keras_matrix.runner.tasks.rules import PLACE

OWN = "own"  # what a command decides for itself


@dataclass(frozen=True, slots=True)
class TaskRequest:
    """A task whose words still have places, and the axis over which its cells are compared, None for none.

    `labels` gives the value behind each label under which a cell is compared.
    """

    task: Task
    compared: str | None
    labels: Mapping[str, Scalar]

    @property
    def definition(self) -> str:
        """Return the hash of all that decides what is measured, beside the values of axes."""
        return hashlib.sha256(canonical(self.task).encode()).hexdigest()[:16]

    def of(self, settings: Settings) -> Task:
        """Return the task of one cell, its values filled in."""
        values = {name: value for name, value in settings.params.items() if name != DEFINITION}
        if self.compared is not None:
            values[self.compared] = self.labels[settings.backend]
        known = {name: spelled(value) for name, value in values.items()}
        known |= {"gpus": str(self.task.gpus), "workers": str(self.task.workers), "task": self.task.name}
        return replace(
            self.task,
            command=[filled(word, known) for word in self.task.command],
            wrap=[filled(word, known) for word in self.task.wrap],
            environment={name: filled(value, known) for name, value in self.task.environment.items()},
        )


def labelled(axis: str | None, values: tuple[Scalar, ...]) -> dict[str, Scalar]:
    """Return the label of each value of the compared axis: a backend's own name, else `batch_size=32`."""
    if axis is None:
        return {ALONE: ALONE}
    if axis == "backend":
        return {str(value): value for value in values}
    return {f"{axis}={spelled(value)}": value for value in values}


def workload_of(name: str) -> Workload:
    """Return a task as a workload: one step of one sample, the whole command."""
    return Workload(f"{PREFIX}{name}", "task", "an external command", 1, 1, (OWN,))


def filled(text: str, values: Mapping[str, str]) -> str:
    """Return the text with its places `{name}` filled; one without a value stays, and `${name}` is a shell's."""
    return PLACE.sub(lambda place: values.get(place.group(1), place.group(0)), text)


def spelled(value: Scalar) -> str:
    """Return a value as a matrix file spells it."""
    return value if isinstance(value, str) else say(value)

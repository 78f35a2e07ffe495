"""A task as requested by an entry of the matrix: a command with placeholders for the values of its axes. Pure."""

from __future__ import annotations

import hashlib
from collections.abc import Mapping
from dataclasses import dataclass, replace

from keras_matrix.records.codec import canonical
from keras_matrix.records.settings import Scalar, Settings
from keras_matrix.records.task import ALONE, DEFINITION, PREFIX, Task
from keras_matrix.runner.matrix.catalog import CatalogWorkload
from keras_matrix.runner.matrix.scalars import value_text
from keras_matrix.runner.matrix.task_rules import PLACE

OWN = "own"  # for settings that a command decides itself


@dataclass(frozen=True, slots=True)
class TaskRequest:
    """A task with placeholders, the axis over which its cells are compared, if any, and its value by their label."""

    task: Task
    compared: str | None
    labels: Mapping[str, Scalar]

    @property
    def definition(self) -> str:
        """Return the hash of the task, without the values of axes, for the identity of its cells."""
        return hashlib.sha256(canonical(self.task).encode(errors="surrogatepass")).hexdigest()[:16]

    def of(self, settings: Settings) -> Task:
        """Return the task of a cell with its values filled in."""
        values = {name: value for name, value in settings.params.items() if name != DEFINITION}
        if self.compared is not None:
            values[self.compared] = self.labels[settings.backend]
        known = {name: value_text(value) for name, value in values.items()}
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
    return {f"{axis}={value_text(value)}": value for value in values}


def workload_of(name: str) -> CatalogWorkload:
    """Return a task as a workload: one step of one sample is the full command."""
    return CatalogWorkload(f"{PREFIX}{name}", "task", "an external command", 1, 1, (OWN,))


def filled(text: str, values: Mapping[str, str]) -> str:
    """Return the text with its placeholders `{name}` filled; unknown ones and a shell's `${name}` are unchanged."""
    return PLACE.sub(lambda place: values.get(place.group(1), place.group(0)), text)

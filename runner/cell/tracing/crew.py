"""A crew of the FC modes, traced: its programs open a scope of each phase and layer, or mark it."""

from __future__ import annotations

from models.fc.crew import Crew
from models.fc.scopes import layer_name
from records.fc import Task
from records.traces.asked import Names, TraceOrder


class TracedCrew:
    """All workers of a task, for the profiler."""

    def __init__(self, crew: Crew, task: Task) -> None:
        self._crew, self._task = crew, task

    def names(self) -> Names:
        """Return the names of the layers; phases stand in scopes of their own."""
        return Names([layer_name(number) for number in range(len(self._task.shapes))], phases=True)

    def traced(self, order: TraceOrder) -> None:
        """Have the workers record their steps."""
        self._crew.traced(order)

"""What was seen of one process of an external command. It judges nothing."""

from __future__ import annotations

from dataclasses import dataclass

from keras_matrix.records.task import TaskRun


@dataclass(frozen=True, slots=True)
class TaskObservation:
    """The command and its metrics.

    `never` says why it could not be started, `no_device` which device it was to have, `stopped` why the runner ended it
    for another cause than the time limit, `doubts` what is doubtful, each with its advice.
    """

    run: TaskRun
    never: str | None = None
    no_device: str | None = None
    stopped: str | None = None
    caveats: tuple[str, ...] = ()

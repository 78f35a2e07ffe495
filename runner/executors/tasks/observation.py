"""The observations of a process of an external command, without a judgement."""

from __future__ import annotations

from dataclasses import dataclass

from keras_matrix.records.task import TaskRun


@dataclass(frozen=True, slots=True)
class TaskObservation:
    """The command and its metrics.

    `never` is the reason why it could not be started, `no_device` the device that is missing, `too_few_devices`
    how many there are, `stopped` the reason why the runner ended it apart from the time limit, `caveats` warnings with
    their advice.
    """

    run: TaskRun
    never: str | None = None
    no_device: str | None = None
    stopped: str | None = None
    caveats: tuple[str, ...] = ()
    too_few_devices: str | None = None

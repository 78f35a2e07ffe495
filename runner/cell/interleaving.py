"""The cell's side of interleaving: it rests before each measured epoch until the host lets it continue.

Compared cells are alive at the same time, and only one of them works at a time, so that adjacent epochs of two cells
share the machine's condition. A resting process waits in one read and uses no CPU. Messages are lines on two pipes:

    cell -> host   {"nonce": .., "cpu_s": .., "step_time_s": seconds | null}
    host -> cell   {"steps": number | null}

The first message of a cell without given steps has the time of a step, and the answer has the steps of an epoch.
"""

from __future__ import annotations

import json
import os
from typing import IO

from keras_matrix.records.codec import canonical
from keras_matrix.runner.cell.job import Job, Resting


class HostGone(RuntimeError):
    """The runner has ended, so that no answer will come."""


def leave_copies(pid: int) -> None:
    """End this process at once if the workload forked it from the cell's process: only one process measures."""
    if os.getpid() != pid:
        os._exit(1)


class Turns:
    """One cell's turns, over the two pipes in its job's folder. The host opened both before the process started."""

    def __init__(self, job: Job) -> None:
        self._nonce, self._pid = job.nonce, os.getpid()
        self._answers: IO[str] = job.resting_path.open("w", encoding="ascii", buffering=1)
        self._orders: IO[str] = job.orders_path.open(encoding="ascii")

    def rest(self) -> None:
        """Report that this process rests, and return when it is its turn. Raises `HostGone`."""
        self._rest(None)

    def agree_on_steps(self, step_time_s: float) -> int:
        """Report the time of a step, and return the steps of an epoch that the host chose for all compared cells."""
        steps = self._rest(step_time_s)
        if steps is None:
            raise HostGone("the runner sent no steps per epoch")
        return steps

    def _rest(self, step_time_s: float | None) -> int | None:
        leave_copies(self._pid)
        times = os.times()
        cpu_s = times.user + times.system + times.children_user + times.children_system
        self._answers.write(canonical(Resting(self._nonce, cpu_s, step_time_s)) + "\n")
        line = self._orders.readline()
        if not line:
            raise HostGone("the runner has ended")
        steps: int | None = json.loads(line)["steps"]
        return steps

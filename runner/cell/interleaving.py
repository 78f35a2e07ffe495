"""The cell's side of taking turns: it rests before each kept epoch until the host says go.

Cells that are compared stay alive side by side, and only one of them works at a time: adjacent epochs of two cells
share the machine's mood. A resting process waits in one read and uses no CPU. Lines of text over two pipes:

    cell -> host   {"nonce": .., "cpu_s": .., "step_time_s": seconds | null}
    host -> cell   {"steps": number | null}

The first rest of a cell that was given no steps tells the time of a step and is answered with the steps of an epoch.
"""

from __future__ import annotations

import json
import os
from typing import IO

from keras_matrix.records.codec import canonical
from keras_matrix.runner.cell.job import Job, Resting


class HostGone(RuntimeError):
    """The runner that was to say go is no more."""


def leave_copies(pid: int) -> None:
    """End this process at once where it is a copy that the workload forked of the cell's process: one measures."""
    if os.getpid() != pid:
        os._exit(1)


class Turns:
    """One cell's turns, over the two pipes of its job's folder. The host opened both before the process began."""

    def __init__(self, job: Job) -> None:
        self._nonce, self._pid = job.nonce, os.getpid()
        self._answers: IO[str] = job.resting_path.open("w", encoding="ascii", buffering=1)
        self._orders: IO[str] = job.orders_path.open(encoding="ascii")

    def rest(self) -> None:
        """Say that this process rests, and return when it is its turn. Raises `HostGone`."""
        self._rest(None)

    def agree_on_steps(self, step_time_s: float) -> int:
        """Tell the time of a step, and return the steps of an epoch that the host found for all that are compared."""
        steps = self._rest(step_time_s)
        if steps is None:
            raise HostGone("the runner said go where it should have said how many steps an epoch has")
        return steps

    def _rest(self, step_time_s: float | None) -> int | None:
        leave_copies(self._pid)
        times = os.times()
        cpu_s = times.user + times.system + times.children_user + times.children_system
        self._answers.write(canonical(Resting(self._nonce, cpu_s, step_time_s)) + "\n")
        line = self._orders.readline()
        if not line:
            raise HostGone("the runner is gone")
        steps: int | None = json.loads(line)["steps"]
        return steps

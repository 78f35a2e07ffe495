"""The one tree of errors the runner raises, and the exit code each one ends the program with.

    RunnerError                 3   base: catch this to catch every error of ours
    ├── InputError              2   what the user gave cannot be used
    │   ├── MatrixError         2   the matrix file; lists every problem at once
    │   └── UsageError          2   a flag or an argument
    ├── InfrastructureError     3   the world around the cells failed; no cell is to blame
    │   ├── StoreError          3   the results folder cannot be read or written
    │   └── ExecutorError       3   cells cannot be started at all
    │       └── EngineGone      3   the container engine does not answer (runner.executors.docker.engine)
    └── Interrupted           130   a signal asked the runner to stop

`runner gate` also ends with 4 (regressed) and 5 (undecided), which are verdicts and no errors.

A cell that fails is a record, not an exception. A message says what is wrong, where, the value received and what to do.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import ClassVar


class RunnerError(Exception):
    """Base of every error of the runner."""

    exit_code: ClassVar[int] = 3


class InputError(RunnerError):
    """What the user gave cannot be used."""

    exit_code: ClassVar[int] = 2


class MatrixError(InputError):
    """The matrix cannot be used. `problems` holds one line each: `matrix.yaml:LINE: path: rule, got VALUE`."""

    def __init__(self, problems: Sequence[str]) -> None:
        super().__init__(problems)
        self.problems = list(problems)

    def __str__(self) -> str:
        return "\n".join(self.problems)


class UsageError(InputError):
    """A flag or an argument cannot be used; the message names it."""


class InfrastructureError(RunnerError):
    """The world around the cells failed; no cell is to blame."""


class StoreError(InfrastructureError):
    """The results folder cannot be read or written."""


class ExecutorError(InfrastructureError):
    """Cells cannot be started at all."""


class Interrupted(RunnerError):
    """A signal asked the runner to stop."""

    exit_code: ClassVar[int] = 130

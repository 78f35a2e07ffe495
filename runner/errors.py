"""The errors of the runner, and the exit code of each.

    RunnerError                 3   base: catch this to catch every error of the runner
    ├── InputError              2   the input of the user is invalid
    │   ├── MatrixError         2   the matrix file; lists every problem at once
    │   └── UsageError          2   a flag or an argument
    ├── InfrastructureError     3   the environment failed, not a cell
    │   ├── StoreError          3   the results folder cannot be read or written
    │   └── ExecutorError       3   cells cannot be started at all
    │       └── EngineGone      3   the container engine does not answer (runner.executors.docker.engine)
    └── Interrupted           130   a signal asked the runner to stop

`runner gate` also ends with 4 (regressed) and 5 (undecided), which are verdicts, not errors; so do `reproduce` and
`bisect`, whose help says when.

A cell that fails is a record, not an exception. A message says what is wrong, where, the value received and what to do.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import ClassVar

_LINE, _OF_LINE = re.compile(r"^(.*?):[0-9]+: "), re.compile(r" of line [0-9]+ again")


def system_reason(text: str) -> str:
    """Return the system's reason in the text of a library or tool, as in `[Errno 111] Connection refused`, or ""."""
    match = re.search(r"\[Errno -?[0-9]+\] [\w ,.]+", text)
    return match[0] if match else ""


class RunnerError(Exception):
    """Base of every error of the runner."""

    exit_code: ClassVar[int] = 3


class InputError(RunnerError):
    """The input of the user is invalid."""

    exit_code: ClassVar[int] = 2


class MatrixError(InputError):
    """The matrix is invalid. `problems` has one line for each: `matrix.yaml:LINE: path: rule, got VALUE`."""

    def __init__(self, problems: Sequence[str]) -> None:
        super().__init__(problems)
        self.problems = list(problems)

    def __str__(self) -> str:
        return "\n".join(self.problems)

    def without_lines(self) -> MatrixError:
        """Return the error of a matrix that was made from values: its lines are no lines that somebody wrote."""
        return MatrixError([_OF_LINE.sub(" again", _LINE.sub(r"\1: ", text, count=1)) for text in self.problems])


@contextmanager
def made_from_values() -> Iterator[None]:
    """Name in a `MatrixError` the paths of its problems and not their lines."""
    try:
        yield
    except MatrixError as error:
        raise error.without_lines() from None


class UsageError(InputError):
    """A flag or an argument is invalid; the message names it."""


class InfrastructureError(RunnerError):
    """The environment failed, not a cell."""


class StoreError(InfrastructureError):
    """The results folder cannot be read or written."""


class ExecutorError(InfrastructureError):
    """Cells cannot be started at all."""


class Interrupted(RunnerError):
    """A signal asked the runner to stop."""

    exit_code: ClassVar[int] = 130

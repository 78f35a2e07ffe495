"""What to trace, the result, and the marks that identify the steps, phases and layers of a traced cell.

Marks are annotations of the backend's own profiler. Each begins with `MARK`, which distinguishes it from others.
"""

from __future__ import annotations

import re
from dataclasses import dataclass, field

from keras_matrix.records.backends import TABLE, TRAINING_BACKENDS
from keras_matrix.records.codec import about
from keras_matrix.records.settings import KERAS, ON_BATCH

_NO_INTEGER = re.compile(r"invalid literal for int\(\) with base 10: (.*)")  # Python's message
MARK = "kbm:"
STEP, LAYER, PHASE, CLOCK = (f"{MARK}{kind}:" for kind in ("step", "layer", "phase", "clock"))

# Names by which XProf recognises a training step, and the time that it waits for its input.
TRAIN, WAIT_FOR_INPUT = "train", "IteratorGetNext"


def scope_of(mark: str) -> str:
    """Return a mark's name as the name of a scope, in which colons are not allowed."""
    return mark.replace(":", ".")


# Prefix of the scopes of one of several workers in a process; its number follows.
WORKER_SCOPE = "worker_"

# Files in the folder of a process's trace.
TRACE_NAME = "trace.json.gz"
TABLE_NAME = "table.json"
NATIVE_NAME = "native"
NAMES_NAME = "names.json"

DEFAULT_EPOCHS = (2,)
DEFAULT_STEPS = 5
MAX_EPOCH = 100
MAX_STEPS = 10_000


def untraceable(implementation: str, call: str = ON_BATCH, backend: str = "") -> str | None:
    """Return why cells of an implementation, a call of `predict` or a backend have no trace, None if they have one."""
    if backend in TABLE and not TABLE[backend].trains:
        return f"only backends that train have a profiler ({', '.join(TRAINING_BACKENDS)}), got {backend}"
    if implementation != KERAS:
        return f"only implementation: {KERAS} is traced, got {implementation}"
    return None if call == ON_BATCH else f"only call: {ON_BATCH} is traced, got {call}"


class TraceError(Exception):
    """A trace cannot be written or read; the message says which, what is wrong, and what to do."""


def problem_text(error: Exception) -> str:
    """Return what is wrong with a foreign value, from the error that reading it has raised."""
    if isinstance(error, KeyError):
        return f"has no {error}"
    number = _NO_INTEGER.fullmatch(str(error))
    return f"must be an integer, got {number[1]}" if number else str(error)


@dataclass(frozen=True, slots=True)
class Trace:
    """What to trace: these of the epochs after the measured ones, counted from 1, with `steps` steps each."""

    epochs: list[int] = field(default_factory=lambda: [*DEFAULT_EPOCHS])
    steps: int = DEFAULT_STEPS

    @property
    def all_steps(self) -> int:
        """Return the steps of all traced epochs."""
        return len(self.epochs) * self.steps


@dataclass(frozen=True, slots=True)
class TraceOrder:
    """The epochs, counted from 1, that a process records as a worker, with `steps` steps each, into a folder."""

    folder: str
    epochs: list[int]
    steps: int
    worker: int = 0


@dataclass(frozen=True, slots=True)
class Traced:
    """The result of tracing a process."""

    steps: int = about("steps to trace, of all traced epochs")
    folder: str | None = about("folder of the trace, in the run's folder; null without a trace", default=None)
    problem: str | None = about("why there is no trace", default=None)
    native_bytes: int | None = about("size of the profiler's own files", default=None)


@dataclass(frozen=True, slots=True)
class Names:
    """The names of scopes that identify operations: those of layers, the model, the optimiser.

    `phases` says whether scopes are also named after phases.
    """

    layers: list[str] = field(default_factory=list)
    model: str | None = None
    optimizer: str | None = None
    phases: bool = False


# Reported by a process before it traces, and before it is profiled for TensorBoard: its figures are complete by then.
BEGUN = "the process ended before its trace was complete"

"""What is asked to be traced, what became of it, and the marks by which a traced cell tells where it is.

Marks are annotations of the backend's own profiler. Each begins with `MARK`, so that nothing else is taken for one.
"""

from __future__ import annotations

from dataclasses import dataclass, field

MARK = "kbm:"
STEP, LAYER, PHASE, CLOCK = (f"{MARK}{kind}:" for kind in ("step", "layer", "phase", "clock"))


def scope_of(mark: str) -> str:
    """Return a mark's name as the name of a scope, where colons are not allowed."""
    return mark.replace(":", ".")


# Begins the scopes of what one of several workers of a process computes; its number follows.
WORKER_SCOPE = "worker_"

# Of the folder of a process's trace.
TRACE_NAME = "trace.json.gz"
TABLE_NAME = "table.json"
NATIVE_NAME = "native"
NAMES_NAME = "names.json"

DEFAULT_EPOCHS = (2,)
DEFAULT_STEPS = 5
MAX_EPOCH = 100
MAX_STEPS = 10_000


class TraceError(Exception):
    """A trace cannot be made or read; the message says which, what is wrong, and what to do."""


@dataclass(frozen=True, slots=True)
class Trace:
    """What to trace: these of the epochs that come after the measured ones, counted from 1, of so many steps each."""

    epochs: list[int] = field(default_factory=lambda: [*DEFAULT_EPOCHS])
    steps: int = DEFAULT_STEPS

    @property
    def all_steps(self) -> int:
        """Return the steps of all traced epochs."""
        return len(self.epochs) * self.steps


@dataclass(frozen=True, slots=True)
class TraceOrder:
    """What a process is to record: these epochs, counted from 1, of so many steps each, into a folder, as a worker."""

    folder: str
    epochs: list[int]
    steps: int
    worker: int = 0


@dataclass(frozen=True, slots=True)
class Traced:
    """What became of the trace of a process; `folder` lies in the run's and is None where there is no trace.

    `problem` says why there is none. `native_bytes` is the size of the backend's own files.
    """

    steps: int = field(metadata={"meaning": "steps that were to be traced, of all traced epochs"})
    folder: str | None = field(default=None, metadata={"meaning": "where the trace lies, in the run's folder"})
    problem: str | None = field(default=None, metadata={"meaning": "why there is no trace"})
    native_bytes: int | None = field(default=None, metadata={"meaning": "size of the profiler's own files"})


@dataclass(frozen=True, slots=True)
class Names:
    """The names of scopes by which operations are known: of layers, the model, the optimiser.

    With `phases` there are scopes of the phases' names, too.
    """

    layers: list[str] = field(default_factory=list)
    model: str | None = None
    optimizer: str | None = None
    phases: bool = False


# What a process says before it traces, and before it is profiled for TensorBoard: its figures are complete by then.
BEGUN = "the process ended before its trace was whole"

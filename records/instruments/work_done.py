"""The work that a cell's process did: counted inside the process, judged by the runner.

`WorkDone` belongs to every process that is timed. `Counts` are of processes that only count the calls, programs and
memory of a step.

`None` means not counted; never 0. Counts come from Keras's optimizer and loss metric and from the feed, through
references taken before the workload's own code is loaded. Code that modifies the interpreter or this program can forge
them: that is outside the threat model (docs/work.md).
"""

from __future__ import annotations

from dataclasses import dataclass, field

from keras_matrix.records.codec import about


@dataclass(frozen=True, slots=True)
class WorkStretch:
    """The epochs of one call: the requested work, and the counts of each epoch that ran.

    `steps` are the steps (or predict calls) requested for each of `epochs` epochs; lists have one value per epoch that
    ran. `lookahead` is how many batches Keras may draw without training on them, None if that is not bounded.
    `updates_outside` are updates during the call but outside of any timed epoch.
    """

    name: str
    steps: int
    epochs: int
    updates: list[int | None]
    samples: list[int | None]
    skipped_updates: list[int]
    batches_drawn: int | None = None
    lookahead: int | None = None
    updates_outside: int | None = None


@dataclass(frozen=True, slots=True)
class WorkDone:
    """The counted work of one process."""

    stretches: list[WorkStretch] = about("every timed call: requested work and counts")
    updates_per_step: float | None = about(
        "updates by the optimizer, or skipped by loss scaling, per step of the epochs; null if not counted",
        default=None,
    )
    samples_per_step: float | None = about(
        "samples of the loss, or predicted, per step; null if not counted", default=None
    )
    batches_drawn: int | None = about("batches drawn from the feed for the epochs; null if not counted", default=None)
    skipped_updates: int | None = about("updates that loss scaling skipped in the measured call", default=None)
    trainable_variables: int | None = about("variables that training may change", default=None)
    changed_variables: int | None = about("of these, how many the measured epochs changed", default=None)
    optimizer_state_changed: bool | None = about("whether its variables changed, except the step counter", default=None)
    changed_at_high_rate: bool | None = about(
        "whether a step at a high learning rate changed a weight, tried if the epochs changed none", default=None
    )
    optimizer_replaced: bool = about("whether the model has another optimizer after fit than before", default=False)
    own_methods: list[str] = about(
        "methods of keras.Model that determine what is trained or predicted and that the workload replaces",
        default_factory=list,
    )
    received_samples: int | None = about(
        "samples of a batch that a layer with weights receives in a step, at most batch_size, by a further step after "
        "everything timed; null if unknown, or for a model without methods of its own",
        default=None,
    )
    weight_platforms: list[str] = about("platforms of the model's weights after the epochs", default_factory=list)
    output_platforms: list[str] = about("platforms of a batch's output; empty if unknown", default_factory=list)


@dataclass(frozen=True, slots=True)
class StepCounts:
    """What a step did, counted in its main thread; means over several steps. None: not counted."""

    python_calls: float | None = about("calls of Python functions, and resumptions of generators", default=None)
    c_calls: float | None = about("calls of C functions from Python", default=None)
    python_peak_bytes: float | None = about(
        "Python's own memory at its peak above that at the beginning, by tracemalloc", default=None
    )
    programs: float | None = about(
        "programs traced or compiled; of a later step all after the first step", default=None
    )
    graph_breaks: float | None = about("graph breaks of torch.compile, over the same time", default=None)
    instructions: float | None = about("instructions of the CPU in user mode, by perf_event_open", default=None)


@dataclass(frozen=True, slots=True)
class Counts:
    """The counts of one process, which was not timed: of its first step, and of a later one."""

    method: str = about("sys.monitoring or sys.setprofile")
    python: str = about("version of Python")
    steps: int = about("later steps of which the counts are means")
    first: StepCounts = about("counts of the first step, which traces and compiles")
    later: StepCounts = about("counts of a later step")
    no_instructions: str | None = about("why no instructions were counted", default=None)


@dataclass(frozen=True, slots=True)
class CellCounts:
    """The counts of a cell's counting processes, or why one of them has none."""

    processes: list[Counts] = field(default_factory=list)
    problem: str | None = None


COUNTS_VERSION = 1


@dataclass(frozen=True, slots=True)
class RunCounts:
    """The counts of a run by cell_id, as stored in `counts.json` of its folder."""

    version: int = COUNTS_VERSION
    cells: dict[str, CellCounts] = field(default_factory=dict)

"""The keys `stalls:` and `trace:` of a matrix file, and the flags of `runner trace`. Pure.

`stalls:` replaces an entry by the arms of its stall analysis.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import replace
from itertools import product
from typing import TYPE_CHECKING, Any

from keras_matrix.records.codec import canonical
from keras_matrix.records.instruments.stall_arms import KEYS, arm_settings, base_of, decided_by_matrix
from keras_matrix.records.settings import PIPELINE, Scalar, Settings, is_script
from keras_matrix.records.traces.request import MAX_EPOCH, MAX_STEPS, Trace, untraceable
from keras_matrix.runner.matrix.entry import Entry
from keras_matrix.runner.matrix.grammar import Axes, ValueRule
from keras_matrix.runner.matrix.strict_yaml import REFUSED

if TYPE_CHECKING:
    from keras_matrix.runner.matrix.catalog import CatalogWorkload
    from keras_matrix.runner.matrix.strict_yaml import Path
    from keras_matrix.runner.matrix.value_reader import ValueReader

STALLS = "stalls"
RULE = ValueRule(
    "bool",
    meaning="measure the arms of a stall analysis: synthetic, host, warm, cold and timed, interleaved (docs/stalls.md)",
)
TRACE = "trace"
EPOCHS, STEPS = "epochs", "steps"
EPOCH = ValueRule("int", 1, MAX_EPOCH, meaning="an epoch to trace; 1 is the first after the measured ones")
STEP_COUNT = ValueRule("int", 1, MAX_STEPS, default=Trace().steps, meaning="steps of a traced epoch")
MEANING = "record a trace of the first process, in epochs after the measured ones"


def read_stalls(reader: ValueReader, path: Path, value: object, axes: Axes) -> bool | None:
    """Return whether an entry is analysed; `axes` are the axes that it sets itself. None if the value is invalid."""
    is_wanted = reader.scalar(path, RULE, value)
    if is_wanted:
        for key in KEYS:
            if key in axes and not (key == "feed" and axes[key] == (PIPELINE,)):
                reader.refuse(
                    (*path[:-1], key), f"must not be given with {STALLS}: true, which measures several; remove one"
                )
    return None if is_wanted is None else is_wanted is True


def arms(entry: Entry, *, cold: bool = True) -> list[Entry]:
    """Return the entry of each arm of an entry's stall analysis, and a usual entry as it is."""
    if not entry.stalls:
        return [entry]
    is_users = entry.workload.is_users
    decided = decided_by_matrix(entry.set_by_matrix) if is_users else entry.set_by_matrix
    return [
        replace(entry, axes=entry.axes | {key: (value,) for key, value in arm_values.items()}, set_by_matrix=decided)
        for arm_values in arm_settings(cold=cold, users=is_users)
    ]


def together(settings: Settings) -> str:
    """Return the name that the arms of an analysis share on every backend, so that they are measured interleaved."""
    return canonical(replace(base_of(settings), backend=""))


def stalls_problem(workload: CatalogWorkload, phases: Iterable[object]) -> str | None:
    """Return what is wrong with an analysed entry's workload or phases, or None."""
    if is_script(workload.name):
        return f"{STALLS} must be false for a script, whose input is its own"
    if not (workload.has_pipeline or workload.is_users):
        return f"{STALLS} must be false for {workload.name}, which has no input pipeline"
    wrong_phases = [phase for phase in phases if phase != "fit"]
    return (
        f"phase must be fit with {STALLS}: true, got {wrong_phases[0]}; write a separate entry for it"
        if wrong_phases
        else None
    )


def request_problem(request: Trace) -> str | None:
    """Return what is wrong with a trace request, or None."""
    for epoch in request.epochs:
        if value_problem := EPOCH.problem(epoch):
            return f"{EPOCHS}: {value_problem}{_advice(epoch)}"
    if len(set(request.epochs)) < len(request.epochs):
        return f"{EPOCHS}: must not repeat, got {' '.join(map(str, request.epochs))}"
    value_problem = STEP_COUNT.problem(request.steps)
    return f"{STEPS}: {value_problem}" if value_problem else None


def read_trace(reader: ValueReader, path: Path, value: object) -> Trace | None:
    """Return the trace that an entry requests; None, with the problems noted in the reader, if it is invalid."""
    problem_count = len(reader.problems)
    members = reader.mapping(path, value, (EPOCHS, STEPS))
    usual = Trace()
    epochs = _epochs(reader, (*path, EPOCHS), members[EPOCHS]) if EPOCHS in members else usual.epochs
    steps: Any = reader.scalar((*path, STEPS), STEP_COUNT, members[STEPS]) if STEPS in members else usual.steps
    return None if value is REFUSED or len(reader.problems) > problem_count else Trace(epochs, steps)


def trace_problem(implementations: Sequence[Scalar], calls: Sequence[Scalar], backends: Sequence[Scalar]) -> str | None:
    """Return why an entry with these implementations, calls and backends has no cell to trace, None if it has one."""
    problems = [untraceable(*map(str, values)) for values in product(implementations, calls, backends)]
    return None if None in problems else next(iter(problems), None)


def _epochs(reader: ValueReader, path: Path, value: object) -> list[int]:
    epochs: list[int] = []
    for index, item in reader.items(path, value):
        if item is REFUSED:
            continue
        if trace_problem := EPOCH.problem(item):
            reader.refuse((*path, index), f"{trace_problem}{_advice(item)}")
        elif item in epochs:
            reader.refuse((*path, index), f"must not repeat, got {item} twice")
        elif isinstance(item, int):
            epochs.append(item)
    return sorted(epochs)


def _advice(epoch: object) -> str:
    """Return an explanation of epochs for a number below 1."""
    if isinstance(epoch, int) and epoch < 1:
        return "; number 1 is the first epoch after the measured ones, which are never traced"
    return ""


def json_schema() -> dict[str, object]:
    """Return the key as a JSON Schema."""
    epochs = {"type": "array", "items": EPOCH.json_schema(), "minItems": 1, "uniqueItems": True}
    return {
        "type": "object",
        "description": MEANING,
        "properties": {EPOCHS: {**epochs, "default": Trace().epochs}, STEPS: STEP_COUNT.json_schema()},
        "additionalProperties": False,
    }

"""The rules of `trace:` in a matrix file and of the flags of `runner trace`. Pure."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from keras_matrix.records.settings import Scalar
from keras_matrix.records.traces.request import MAX_EPOCH, MAX_STEPS, Trace, untraceable
from keras_matrix.runner.matrix.grammar import ValueRule
from keras_matrix.runner.matrix.strict_yaml import REFUSED

if TYPE_CHECKING:
    from keras_matrix.runner.matrix.strict_yaml import Path
    from keras_matrix.runner.matrix.value_reader import ValueReader

KEY = "trace"
EPOCHS, STEPS = "epochs", "steps"
EPOCH = ValueRule("int", 1, MAX_EPOCH, meaning="an epoch to trace; 1 is the first after the measured ones")
STEP_COUNT = ValueRule("int", 1, MAX_STEPS, default=Trace().steps, meaning="steps of a traced epoch")
MEANING = "record a trace of the first process, in epochs after the measured ones"


def request_problem(request: Trace) -> str | None:
    """Return what is wrong with a trace request, or None."""
    for epoch in request.epochs:
        if found := EPOCH.problem(epoch):
            return f"{EPOCHS}: {found}{_advice(epoch)}"
    if len(set(request.epochs)) < len(request.epochs):
        return f"{EPOCHS}: must not repeat, got {' '.join(map(str, request.epochs))}"
    found = STEP_COUNT.problem(request.steps)
    return f"{STEPS}: {found}" if found else None


def read_trace(reader: ValueReader, path: Path, value: object) -> Trace | None:
    """Return the trace that an entry requests; None, with the problems noted in the reader, if it is invalid."""
    before = len(reader.problems)
    known = reader.mapping(path, value, (EPOCHS, STEPS))
    usual = Trace()
    epochs = _epochs(reader, (*path, EPOCHS), known[EPOCHS]) if EPOCHS in known else usual.epochs
    steps: Any = reader.scalar((*path, STEPS), STEP_COUNT, known[STEPS]) if STEPS in known else usual.steps
    return None if value is REFUSED or len(reader.problems) > before else Trace(epochs, steps)


def problem(implementations: Sequence[Scalar]) -> str | None:
    """Return why an entry with these implementations has no cell to trace, None if it has one."""
    problems = [untraceable(str(one)) for one in implementations]
    return None if None in problems else problems[0]


def _epochs(reader: ValueReader, path: Path, value: object) -> list[int]:
    found: list[int] = []
    for index, item in reader.items(path, value):
        if item is REFUSED:
            continue
        if problem := EPOCH.problem(item):
            reader.refuse((*path, index), f"{problem}{_advice(item)}")
        elif item in found:
            reader.refuse((*path, index), f"must not repeat, got {item} twice")
        elif isinstance(item, int):
            found.append(item)
    return sorted(found)


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

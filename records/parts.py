"""The workloads of single layers and operations of Keras: their names, and how the shapes of inputs are written.

Used by the reader of a matrix and by the cell. An input is its sizes, the batch first, as in `32x128x256`; whole
numbers and booleans have their type behind a colon, as in `32x128:int32`. Several inputs are joined by commas.
"""

from __future__ import annotations

import re
from dataclasses import dataclass

LAYER, OP = "layer", "op"
INPUT = "input"
KIND_OF_PART = {f"keras:{kind}": kind for kind in (LAYER, OP)}
"""What a part is, by the name of its workload."""
_DTYPES = ("float", "int32", "bool")
_SPEC = re.compile(rf"([1-9]\d{{0,8}}(?:x[1-9]\d{{0,8}}){{0,7}})(?::({'|'.join(_DTYPES)}))?", re.ASCII)
MOST_NUMBERS = 1 << 30


@dataclass(frozen=True, slots=True)
class ArraySpec:
    """The shape of an array, the batch first, and its type: float (of the cell's precision), int32 or bool."""

    sizes: tuple[int, ...]
    dtype: str = "float"


def is_part(workload: str) -> bool:
    """Return whether a workload is a single layer or operation."""
    return workload in KIND_OF_PART


def array_specs(text: str) -> list[ArraySpec]:
    """Return the shapes and types of inputs. Raises ValueError for a text that is none."""
    if problem := input_problem(text):
        raise ValueError(f"{INPUT}: {problem}")
    matches = [_SPEC.fullmatch(part.strip()) for part in text.split(",")]
    return [ArraySpec(tuple(map(int, match[1].split("x"))), match[2] or "float") for match in matches if match]


def input_problem(text: str) -> str | None:
    """Return why a text is not the shapes of inputs that can be measured, or None."""
    matches = [_SPEC.fullmatch(part.strip()) for part in text.split(",")]
    rule = "must be sizes such as 32x128x256, the batch first, with a type as in 32x128:int32 if it is not float"
    if not all(matches):
        return f"{rule}; several inputs joined by commas, got {text!r}"
    firsts = {match[1].partition("x")[0] for match in matches if match}
    if len(firsts) > 1:
        return f"must have the same first size, the batch, in all inputs, as in 8x32x128, 8x128x64, got {text!r}"
    numbers = [1] * len(matches)
    for index, match in enumerate(matches):
        for size in map(int, match[1].split("x")) if match else ():
            numbers[index] *= size
    if max(numbers) > MOST_NUMBERS:
        return f"must have at most {MOST_NUMBERS} numbers, got {max(numbers)}"
    return None

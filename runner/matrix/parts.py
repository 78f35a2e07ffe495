"""Entries of single layers and operations of Keras: one entry for each part and input, with what the part needs.

`layer: [Conv2D, LSTM]` is an axis like any other, but each of its parts has its own input, its own arguments, and the
first size of its input as its batch. `layer: all` is every one of the catalogue, `models/keras_parts.json`, which was
made by trying with one version of Keras. A part that the catalogue does not have, such as one of a newer version, needs
an input.

Promise: reading imports neither Keras nor a backend. Whether a part can be called is decided in its cell.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from functools import cache
from pathlib import Path
from typing import Any

from keras_matrix.records.codec import CodecError, loads
from keras_matrix.records.parts import INPUT, KIND_OF_PART, array_specs, input_problem
from keras_matrix.records.settings import PREDICT, Scalar
from keras_matrix.records.text import near
from keras_matrix.runner.errors import InfrastructureError
from keras_matrix.runner.matrix.catalog import CatalogWorkload
from keras_matrix.runner.matrix.entry import Entry
from keras_matrix.runner.matrix.grammar import Axes, ValueRule
from keras_matrix.runner.matrix.scalars import say

ALL = "all"
PARTS_PATH = Path(__file__).parents[2] / "models" / "keras_parts.json"
# Of a part that could not be called with any input that was tried: its cell tries again, and states the reason.
TRIED_INPUT = "64x256"
MEANINGS = {
    "layer": "a layer of keras.layers, or all",
    "op": "an operation of keras.ops, or all",
    INPUT: "sizes of the input, the batch first, as in 32x128x256; 32x128:int32 for whole numbers; several by commas",
}
_EXAMPLES = {"layer": "[Conv2D, LSTM]", "op": "[einsum, sort]"}
NAMED: Mapping[str, str] = {name: workload for workload, kind in KIND_OF_PART.items() for name in (kind, workload)}
"""The workload of single parts by the names that a matrix may use for it."""


@dataclass(frozen=True, slots=True)
class PartCatalogue:
    """Layers and operations by name: the input and the arguments of each, or only the problem; and Keras's version."""

    keras: str
    parts: Mapping[str, Mapping[str, Mapping[str, Any]]]


@cache
def load(path: Path = PARTS_PATH) -> PartCatalogue:
    """Read the catalogue, once. Raises `InfrastructureError` when the installation's file is missing or broken."""
    try:
        data: Any = loads(path.read_bytes())
        return PartCatalogue(data["keras"], {kind: data[kind] for kind in KIND_OF_PART.values()})
    except OSError as error:
        raise InfrastructureError(f"{path}: cannot be read ({error.strerror}); install the program again") from error
    except (CodecError, KeyError, TypeError) as error:
        raise InfrastructureError(f"{path}: not a catalogue of parts ({error}); install the program again") from error


def part_workload(name: str) -> CatalogWorkload:
    """Return the workload of single layers or of operations, as a matrix names it."""
    workload = NAMED[name]
    keys = (KIND_OF_PART[workload], INPUT)
    params = {key: ValueRule("str", meaning=MEANINGS[key]) for key in keys}
    return CatalogWorkload(workload, "part", "one layer or operation of Keras", 1, 1, ("synthetic",), params)


def problems(workload: CatalogWorkload, params: Axes, *, sets_batch: bool) -> Iterator[tuple[str, str]]:
    """Yield what is wrong with the part, the input and the batch size of an entry, each with its key."""
    kind = KIND_OF_PART[workload.name]
    catalogue = load()
    known = catalogue.parts[kind]
    if not params.get(kind):
        yield kind, f"is missing; write for example {kind}: {_EXAMPLES[kind]}, or {kind}: {ALL}"
    for name in map(str, params.get(kind, ())):
        if name not in known and name != ALL and INPUT not in params:
            names = f"must be {ALL} or a name in keras.{kind}s of Keras {catalogue.keras} (of another one with {INPUT})"
            yield kind, f"{names}, got {say(name)}{near(name, [*known, ALL])}"
    for text in map(str, params.get(INPUT, ())):
        if problem := input_problem(text):
            yield INPUT, problem
    if sets_batch:
        yield "batch_size", f"must be left out with workload: {kind}: it is the first size of {INPUT}"


def with_names(workload: CatalogWorkload, params: Axes) -> Axes:
    """Return the parameters with the names of all parts in place of `all`."""
    kind = KIND_OF_PART[workload.name]
    if ALL not in params.get(kind, ()):
        return params
    return {**params, kind: tuple(load().parts[kind])}


def by_part(entry: Entry) -> list[Entry]:
    """Return an entry for each part and input of an entry; [entry] for another workload."""
    kind = KIND_OF_PART.get(entry.workload.name)
    if kind is None:
        return [entry]
    entries = []
    for name in entry.params.get(kind, ()):
        part = load().parts[kind].get(str(name), {})
        for text in entry.params.get(INPUT, (part.get(INPUT, TRIED_INPUT),)):
            if input_problem(str(text)) is None:
                arguments: dict[str, Scalar] = part.get("params", {})
                params = {key: (value,) for key, value in arguments.items()} | entry.params
                batch = array_specs(str(text))[0].sizes[0]
                axes = {**entry.axes, "batch_size": (batch,)}
                entries.append(replace(entry, axes=axes, params={**params, kind: (name,), INPUT: (text,)}))
    return entries


def rows(kind: str) -> Iterator[tuple[str, str, str]]:
    """Yield the name of each layer or operation, its input, and its arguments or why it is not measured."""
    for name, part in load().parts[kind].items():
        arguments = ", ".join(f"{key}={value}" for key, value in part.get("params", {}).items())
        yield name, part.get(INPUT, "-"), str(part.get("problem", arguments))


def own_defaults(workload: str) -> dict[str, Scalar]:
    """Return the settings that have a part's own default."""
    return {"phase": PREDICT} if workload in KIND_OF_PART else {}

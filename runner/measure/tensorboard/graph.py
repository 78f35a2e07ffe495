"""Converts a Keras model's own description to the nodes of a graph. Pure.

`model.to_json()` is the same on every backend: layers, and for each call of a layer its input tensors with the layers
that they came from (`keras_history`). A nested model becomes a scope with its name.

Limits: the operations inside a layer, and models without a description (a subclass without `get_config`).
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

TENSOR = "__keras_tensor__"


@dataclass(frozen=True, slots=True)
class Node:
    """A layer: its scoped name, its class, and the names of its input nodes."""

    name: str
    kind: str
    inputs: tuple[str, ...]


def nodes_of(described: Mapping[str, Any]) -> list[Node]:
    """Return the layers of a model as nodes. Raises `KeyError` or `TypeError` for an invalid description."""
    found: list[Node] = []
    _expand(described, "", (), found)
    return found


def _expand(layer: Mapping[str, Any], scope: str, sources: Sequence[str], found: list[Node]) -> tuple[str, ...]:
    """Add the nodes of a layer, or of a model's layers; return the names of its output nodes."""
    config = layer["config"]
    name = scope + str(config["name"])
    if "layers" not in config:
        found.append(Node(name, str(layer["class_name"]), tuple(dict.fromkeys(sources))))
        return (name,)
    if "output_layers" in config:
        return _functional(config, name + "/", sources, found)
    ends = tuple(sources)
    for one in config["layers"]:
        ends = _expand(one, name + "/", ends, found)
    return ends


def _functional(config: Mapping[str, Any], scope: str, sources: Sequence[str], found: list[Node]) -> tuple[str, ...]:
    entrances = list(_references(config["input_layers"]))
    ends: dict[str, tuple[str, ...]] = {}
    for layer in config["layers"]:
        name = str(layer["config"]["name"])
        inner = [_end(ends, history) for history in _histories(layer.get("inbound_nodes"))]
        if name in entrances and entrances.index(name) < len(sources):
            inner = [sources[entrances.index(name)]]
        ends[name] = _expand(layer, scope, [one for one in inner if one], found)
    return tuple(end for name in _references(config["output_layers"]) for end in ends.get(name, ()))


def _end(ends: Mapping[str, Sequence[str]], history: Sequence[Any]) -> str | None:
    """Return the node that a tensor came from; a nested model has several outputs, a layer has one."""
    there = ends.get(str(history[0]), ())
    return there[min(int(history[2]), len(there) - 1)] if there else None


def _references(value: Any) -> Iterator[str]:
    """Yield the layers in a description of inputs or outputs: [name, 0, 0], or lists and maps of these."""
    if isinstance(value, list) and len(value) == 3 and isinstance(value[0], str):
        yield value[0]
    elif isinstance(value, (list, dict)):
        for inner in value.values() if isinstance(value, dict) else value:
            yield from _references(inner)


def _histories(value: Any) -> Iterator[Sequence[Any]]:
    """Yield the origin of each tensor among the arguments of a layer's calls: [layer, call, output]."""
    if isinstance(value, dict) and value.get("class_name") == TENSOR:
        yield value["config"]["keras_history"]
    elif isinstance(value, (list, dict)):
        for inner in value.values() if isinstance(value, dict) else value:
            yield from _histories(inner)

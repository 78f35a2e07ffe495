"""What a what-if is: a change of a graph, with its text and the settings that realise it."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from typing import Any

from keras_matrix.analysis.whatif.contention import exclusive
from keras_matrix.analysis.whatif.graph import Graph, GraphError, Node
from keras_matrix.records.fc import spec
from keras_matrix.records.names import SETTINGS

Scalar = bool | int | float | str
# Seconds of an operation that no trace has, such as a cost model predicts; None if it does not know.
Predict = Callable[[Node], float | None]


class WhatIfError(GraphError):
    """A what-if that is not known, or has a value that does not fit; the message says which and what fits."""


@dataclass(frozen=True, slots=True)
class Realised:
    """The settings of the matrix, or parameters of the workload, that a cell must have; None if no cell can have them.

    `reason` says why the prediction cannot be verified, or what the settings do not cover.
    """

    settings: Mapping[str, Scalar] | None
    reason: str = ""


@dataclass(frozen=True, slots=True)
class WhatIf:
    """A what-if. `change` and `settings` get a graph whose durations are free of contention, and a parsed value.

    `value` is the form of its text, empty if it has none. `changes_numerics`: a cell that realises it may reach another
    loss, so that its loss must be compared before its speed counts.
    """

    name: str
    meaning: str
    value: str
    parse: Callable[[str], Any]
    change: Callable[[Graph, Any, Predict | None], Graph]
    settings: Callable[[Graph, Any], Realised]
    changes_numerics: bool = False

    def apply(self, graph: Graph, value: Any, predict: Predict | None = None) -> Graph:
        """Return the changed graph, with the settings that realise it. Raises `GraphError` if that is impossible."""
        graph = exclusive(graph)
        realised = self.settings(graph, value)
        changed = self.change(graph, value, predict)
        settings = {**changed.header.settings, **(realised.settings or {})}
        return replace(changed, header=replace(changed.header, settings=settings))


def whole(name: str, least: int = 1) -> Callable[[str], int]:
    """Return a parser of an integer of at least `least`."""

    def parse(text: str) -> int:
        if not text.isascii() or not text.isdigit() or int(text) < least:
            raise WhatIfError(f"{name}: must be an integer of at least {least}, got {text!r}")
        return int(text)

    return parse


def no_value(name: str) -> Callable[[str], None]:
    """Return a parser of a what-if that has no value."""

    def parse(text: str) -> None:
        if text:
            raise WhatIfError(f"{name}: has no value, got {text!r}; write --what-if {name}")

    return parse


def of_fc(graph: Graph, parameter: str, settings: Mapping[str, Scalar]) -> Realised:
    """Return settings that only cells of the workload `fc` have, or why no cell can have them."""
    if not graph.header.settings:
        return Realised(None, "the trace is not of a cell of this project")
    if (workload := setting(graph, "workload")) != "fc":
        return Realised(None, f"only the workload fc has the parameter {parameter}, not {workload}")
    return Realised(settings)


def setting(graph: Graph, name: str, default: Any = None) -> Any:
    """Return a setting of the traced cell, or a parameter of the workload `fc`; `default` if it is unknown."""
    settings = graph.header.settings
    return settings.get(name, default) if name in SETTINGS else spec.parameter(settings, name, default)

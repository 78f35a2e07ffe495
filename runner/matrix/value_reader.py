"""Reads mappings, lists, axes and scalars by the rules of the grammar, and collects every problem with its line."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from typing import Any

from keras_matrix.records.backends import BACKENDS
from keras_matrix.records.compiler_options import torch_combinations
from keras_matrix.records.settings import Scalar
from keras_matrix.records.text import near
from keras_matrix.runner.matrix.grammar import Axes, ValueRule
from keras_matrix.runner.matrix.scalars import say
from keras_matrix.runner.matrix.strict_yaml import REFUSED, Document, LineProblem, Path, note


class ValueReader:
    """Reads the values of a document; `defaults` are the document's own defaults for all entries."""

    def __init__(self, document: Document) -> None:
        self.lines = document.lines
        self.problems = list(document.problems)
        self.defaults: dict[str, Scalar] = {}

    def line(self, path: Path) -> int:
        """Return the line of a path, or of its nearest ancestor that has one."""
        while path and path not in self.lines:
            path = path[:-1]
        return self.lines.get(path, 1)

    def refuse(self, path: Path, text: str) -> None:
        note(self.problems, self.problem(path, text))

    def problem(self, path: Path, text: str) -> LineProblem:
        return LineProblem(self.line(path), path, text)

    def mapping(
        self, path: Path, value: object, allowed: Iterable[str] | None, advise: Callable[[str], str] | None = None
    ) -> dict[str, Any]:
        """Return the known keys of a mapping; refuse unknown keys and values that are not a mapping."""
        if not isinstance(value, dict):
            if value is not REFUSED:
                self.refuse(path, f"must be a mapping, got {say(value)}")
            return {}
        if allowed is None:
            return dict(value)
        names = list(allowed)
        for key in [key for key in value if key not in names]:
            advice = advise(key) if advise else near(key, names)
            self.refuse((*path, key), f"unknown key, got {say(key)}{advice}")
        return {key: item for key, item in value.items() if key in names}

    def items(self, path: Path, value: object) -> list[tuple[int, object]]:
        """Return the numbered items of a list; refuse an empty one."""
        if isinstance(value, list) and value:
            return list(enumerate(value))
        if value is not REFUSED:
            self.refuse(path, f"must be a list of at least one item, got {say(value)}")
        return []

    def names(self, path: Path, value: object, allowed: tuple[str, ...] = BACKENDS) -> tuple[str, ...]:
        """Return a list of backends; refuse a single name."""
        names: list[str] = []
        for index, item in self.items(path, value):
            if item is REFUSED:
                continue
            if item not in allowed:
                advice = near(item, allowed) if isinstance(item, str) else ""
                self.refuse((*path, index), f"must be one of {', '.join(allowed)}, got {say(item)}{advice}")
            elif item in names:
                self.refuse((*path, index), f"must not repeat, got {say(item)} twice")
            else:
                names.append(str(item))
        return tuple(names)

    def axes(self, path: Path, members: Mapping[str, Any], rules: Mapping[str, ValueRule]) -> Axes:
        """Return the axes among the known keys; a single value is an axis with one value."""
        axes = {key: self.axis((*path, key), rules[key], item) for key, item in members.items() if key in rules}
        return {key: values for key, values in axes.items() if values}

    def axis(self, path: Path, rule: ValueRule, value: object) -> tuple[Scalar, ...]:
        if rule.kind == "torch_compile":
            combinations = [*torch_combinations(value)] or [value]
            value = combinations[0] if len(combinations) == 1 else combinations
        if not isinstance(value, list):
            checked = self.scalar(path, rule, value)
            return () if checked is None else (checked,)
        values: dict[str, Scalar] = {}
        for index, item in self.items(path, value):
            checked = self.scalar((*path, index), rule, item)
            if repr(checked) in values:
                self.refuse((*path, index), f"must not repeat, got {say(item)} twice")
            elif checked is not None:
                values[repr(checked)] = checked
        return tuple(values.values())

    def scalars(self, path: Path, members: Mapping[str, Any], rules: Mapping[str, ValueRule]) -> dict[str, Scalar]:
        """Return the valid values among the known keys."""
        scalars = {key: self.scalar((*path, key), rules[key], members[key]) for key in rules if key in members}
        return {key: value for key, value in scalars.items() if value is not None}

    def scalar(self, path: Path, rule: ValueRule, value: object) -> Scalar | None:
        """Return a value in its normal form, or None if it was refused."""
        parts = value.values() if isinstance(value, dict) else value if isinstance(value, list) else ()
        if value is REFUSED or REFUSED in parts:
            return None
        if problem := rule.problem(value):
            words = [choice for choice in rule.choices if isinstance(choice, str)]
            self.refuse(path, problem + (near(value, words) if isinstance(value, str) else ""))
            return None
        assert isinstance(value, (bool, int, float, str, list, dict))
        return rule.normal(value)

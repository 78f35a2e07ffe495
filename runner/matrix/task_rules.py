"""An entry of `tasks`: its grammar in one place, every key with rule, default and description; and its values.

The reader of matrix files and the JSON Schema for editors use the tables below.
"""

from __future__ import annotations

import hashlib
import re
from collections.abc import Mapping
from dataclasses import dataclass, replace

from keras_matrix.records.codec import canonical
from keras_matrix.records.settings import Scalar, Settings
from keras_matrix.records.task import ALONE, DEFINITION, PREFIX, Compute, Goal, Task
from keras_matrix.records.text import near
from keras_matrix.runner.matrix.catalog import CatalogWorkload
from keras_matrix.runner.matrix.grammar import LIMITS, SETTINGS, ValueRule
from keras_matrix.runner.matrix.scalars import value_text

# As in the files of other drivers, with blanks and capitals.
NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9_. +/%-]{0,63}", re.ASCII)
AXIS_NAME = re.compile(r"[a-z][a-z0-9_]{0,31}", re.ASCII)
PLACE = re.compile(r"(?<!\$)\{([A-Za-z_][A-Za-z0-9_]*)\}", re.ASCII)
MAX_WORD = 4096
MAX_PATTERN = 1000
MAX_METRICS = 64
MAX_WORDS = 256
# Placeholders filled when a command starts; then those that the matrix fills in addition to its params.
LATE = ("python", "outputs")
ALWAYS = ("backend", "gpus", "workers", "task")
SWITCHES: Mapping[str, ValueRule] = {
    "shell": ValueRule("bool", default=False, meaning="run the command, which is then a single text, with /bin/sh"),
    "folder": ValueRule("str", default=".", meaning="its working folder, relative to the matrix file"),
    "primary": ValueRule("str", meaning="the metric it is compared by; by default its first, or its uptime"),
    "compare": ValueRule(
        "str", meaning="the axis it is compared over; by default backend, or its first parameter's list"
    ),
    "image": ValueRule("str", meaning="the image of its container, with --executor docker"),
    "gpus": ValueRule("int", 0, 64, default=0, meaning="number of GPUs: the first of those visible to the runner"),
    "workers": ValueRule("int", 1, 10_000, default=1, meaning="number of workers, by which a total is divided"),
}
# Settings and limits of cells that also apply to commands. Their own `gpus` is a number; which GPUs, the defaults say.
SHARED: Mapping[str, ValueRule] = {
    **{key: SETTINGS[key] for key in ("cpus", "threads")},
    **{key: rule for key, rule in LIMITS.items() if key not in SWITCHES},
}
METRIC: Mapping[str, ValueRule] = {
    "unit": ValueRule("str", meaning="its unit, as displayed"),
    "compute": ValueRule(
        choices=tuple(map(str, Compute)), default="average", meaning="how its values are reduced to one"
    ),
    "goal": ValueRule(choices=tuple(map(str, Goal)), default="lower", meaning="whether lower or higher is better"),
    "discard": ValueRule("int", 0, 1_000_000, default=0, meaning="number of first values to ignore"),
}
METRIC_KEYS = ("pattern", *METRIC)
KEYS = ("task", "command", "params", "backends", "metrics", "environment", "inherit", "wrap", *SWITCHES, *SHARED)
OWN = "own"  # for settings that a command decides itself


def task_key_advice(key: str) -> str:
    """Return the advice for an unknown key of a task."""
    if key in METRIC_KEYS:
        return f"; it belongs to a metric: metrics: {{NAME: {{{key}: ...}}}}"
    if key in SETTINGS:
        return f"; write it under params, and {{{key}}} where the command takes it"
    return near(key, KEYS) or f"; must be one of {', '.join(KEYS)}"


def metric_key_advice(key: str) -> str:
    """Return the advice for an unknown key of a metric."""
    if key == "primary":
        return "; write primary: NAME in the task"
    if key in KEYS:
        return "; it belongs to the task, one level up"
    return near(key, METRIC_KEYS) or f"; must be one of {', '.join(METRIC_KEYS)}"


def pattern_problem(pattern: str) -> str | None:
    """Return what is wrong with a pattern, or None."""
    if len(pattern) > MAX_PATTERN:
        return f"must have at most {MAX_PATTERN} characters, got {len(pattern)}"
    try:
        group_count = re.compile(pattern).groups
    except (re.error, OverflowError, RecursionError) as error:
        return f"must be a regular expression of Python's re, got {pattern!r}: {error}"
    if group_count == 0:
        return f"must have one group, around the number, got none: {pattern!r}"
    if group_count > 1:
        return f"must have one group, got {group_count}; write (?: ) for groups without a value: {pattern!r}"
    return None


@dataclass(frozen=True, slots=True)
class TaskRequest:
    """A task with placeholders, the axis over which its cells are compared, if any, and its value by their label."""

    task: Task
    compared: str | None
    labels: Mapping[str, Scalar]

    @property
    def definition(self) -> str:
        """Return the hash of the task, without the values of axes, for the identity of its cells."""
        return hashlib.sha256(canonical(self.task).encode(errors="surrogatepass")).hexdigest()[:16]

    def of(self, settings: Settings) -> Task:
        """Return the task of a cell with its values filled in."""
        values = {name: value for name, value in settings.params.items() if name != DEFINITION}
        if self.compared is not None:
            values[self.compared] = self.labels[settings.backend]
        text_by_name = {name: value_text(value) for name, value in values.items()}
        text_by_name |= {"gpus": str(self.task.gpus), "workers": str(self.task.workers), "task": self.task.name}
        return replace(
            self.task,
            command=[filled(word, text_by_name) for word in self.task.command],
            wrap=[filled(word, text_by_name) for word in self.task.wrap],
            environment={name: filled(value, text_by_name) for name, value in self.task.environment.items()},
        )


def labelled(axis: str | None, values: tuple[Scalar, ...]) -> dict[str, Scalar]:
    """Return the label of each value of the compared axis: a backend's own name, else `batch_size=32`."""
    if axis is None:
        return {ALONE: ALONE}
    if axis == "backend":
        return {str(value): value for value in values}
    return {f"{axis}={value_text(value)}": value for value in values}


def workload_of(name: str) -> CatalogWorkload:
    """Return a task as a workload: one step of one sample is the full command."""
    return CatalogWorkload(f"{PREFIX}{name}", "task", "an external command", 1, 1, (OWN,))


def filled(text: str, values: Mapping[str, str]) -> str:
    """Return the text with its placeholders `{name}` filled; unknown ones and a shell's `${name}` are unchanged."""
    return PLACE.sub(lambda match: values.get(match.group(1), match.group(0)), text)

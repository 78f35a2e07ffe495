"""The grammar of an entry of `tasks`, in one place: every key with its rule, default and description.

The reader of matrix files and the JSON Schema for editors use the tables below.
"""

from __future__ import annotations

import re
from collections.abc import Mapping

from keras_matrix.records.task import Compute, Goal
from keras_matrix.records.text import near
from keras_matrix.runner.matrix.grammar import LIMITS, SETTINGS, ValueRule

# As in the files of other drivers, with blanks and capitals.
NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9_. +/%-]{0,63}", re.ASCII)
AXIS_NAME = re.compile(r"[a-z][a-z0-9_]{0,31}", re.ASCII)
VARIABLE = re.compile(r"[A-Za-z_][A-Za-z0-9_]{0,127}", re.ASCII)
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
        groups = re.compile(pattern).groups
    except (re.error, OverflowError, RecursionError) as error:
        return f"must be a regular expression of Python's re, got {pattern!r}: {error}"
    if groups == 0:
        return f"must have one group, around the number, got none: {pattern!r}"
    if groups > 1:
        return f"must have one group, got {groups}; write (?: ) for groups without a value: {pattern!r}"
    return None

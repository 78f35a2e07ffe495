"""The grammar of an entry of `tasks`, in one place: every key, its rule, its default and its meaning.

The reader of matrix files and the JSON Schema for editors derive from the tables below.
"""

from __future__ import annotations

import re
from collections.abc import Mapping

from keras_matrix.records.task import Compute, Goal
from keras_matrix.runner.matrix.grammar import LIMITS, SETTINGS, Rule, near

# As the files of other drivers have them: blanks and capitals too.
NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9_. +/%-]{0,63}", re.ASCII)
AXIS_NAME = re.compile(r"[a-z][a-z0-9_]{0,31}", re.ASCII)
VARIABLE = re.compile(r"[A-Za-z_][A-Za-z0-9_]{0,127}", re.ASCII)
PLACE = re.compile(r"(?<!\$)\{([A-Za-z_][A-Za-z0-9_]*)\}", re.ASCII)
MAX_WORD = 4096
MAX_PATTERN = 1000
MAX_METRICS = 64
MAX_WORDS = 256

# Filled in when a command starts; what the matrix fills in beside its params follows.
LATE = ("python", "outputs")
ALWAYS = ("backend", "gpus", "workers", "task")

SWITCHES: Mapping[str, Rule] = {
    "shell": Rule("bool", default=False, meaning="have /bin/sh read the command, which is then one text"),
    "folder": Rule("str", default=".", meaning="where it works; from the matrix file's own folder"),
    "primary": Rule("str", meaning="the metric it is compared by; by default its first, or its uptime"),
    "compare": Rule("str", meaning="the axis it is compared over; by default backend, or its first parameter's list"),
    "image": Rule("str", meaning="the image in whose container it runs, with --executor docker"),
    "gpus": Rule("int", 0, 64, default=0, meaning="GPUs it gets: the first that the runner may see"),
    "workers": Rule("int", 1, 10_000, default=1, meaning="its workers: a total is divided by them"),
}
# Settings and limits of any cell that a command obeys too.
SHARED: Mapping[str, Rule] = {**{key: SETTINGS[key] for key in ("cpus", "threads")}, **LIMITS}
METRIC: Mapping[str, Rule] = {
    "unit": Rule("str", meaning="its unit, as it is to be shown"),
    "compute": Rule(choices=tuple(map(str, Compute)), default="average", meaning="how its values become one"),
    "goal": Rule(choices=tuple(map(str, Goal)), default="lower", meaning="which way is better"),
    "discard": Rule("int", 0, 1_000_000, default=0, meaning="first values that do not count"),
}
METRIC_KEYS = ("pattern", *METRIC)
KEYS = (
    "task",
    "command",
    "params",
    "backends",
    "metrics",
    "environment",
    "inherit",
    "wrap",
    *SWITCHES,
    *SHARED,
)


def task_key_advice(key: str) -> str:
    """Return what to do about a key that a task does not have."""
    if key in METRIC_KEYS:
        return f"; it belongs to a metric: metrics: {{NAME: {{{key}: ...}}}}"
    if key in SETTINGS:
        return f"; write it under params, and {{{key}}} where the command takes it"
    return near(key, KEYS) or f"; must be one of {', '.join(KEYS)}"


def metric_key_advice(key: str) -> str:
    """Return what to do about a key that a metric does not have."""
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
        return f"must have one group, round the number, got none: {pattern!r}"
    if groups > 1:
        return f"must have one group, got {groups}; write (?: ) for those that only hold together: {pattern!r}"
    return None

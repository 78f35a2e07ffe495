"""The `.cfg` files of the deeplearning-benchmark driver, read as they are: a section a task, positional lists.

    [resnet50_cifar10]
    patterns = ['Speed: (\\d+\\.\\d+|\\d+) samples/sec', 'time cost: (\\d+\\.\\d+|\\d+)']
    metrics = ['speed', 'total_training_time']
    compute_method = ['average', 'total']
    command_to_execute = python train.py --gpus 8 --epochs 20
    num_gpus = 8

Values obey that driver's syntax: Python literals for the lists, `%%` for a percent sign, a shell for the command, and
the caller's environment for its process. Such a file names no goals: they follow from the metrics' names.
"""

from __future__ import annotations

import ast
import configparser
import re
import warnings
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from records.task import UPTIME, Compute, Goal, MetricAsked, Task
from runner.errors import MatrixError
from runner.grammar import near
from runner.tasks.rules import MAX_WORD, NAME, pattern_fault

LISTS = ("patterns", "metrics", "compute_method")
COMMAND, GPUS = "command_to_execute", "num_gpus"
MAX_BYTES = 1 << 20
MAX_GPUS = 64
# Words in the names of metrics of which more is better; of all others less is.
BETTER_HIGHER = re.compile(r"speed|throughput|acc|per[ _]?sec|/s\b|f1|match|bleu|map\b", re.IGNORECASE)


@dataclass(frozen=True, slots=True)
class Filled:
    """What the command line fills in: fields of the template that are None stay as they are.

    `policy` names the section whose metrics are taken for `command`, where that is given in place of a section's.
    """

    gpus: int | None = None
    epochs: int | None = None
    kvstore: str | None = None
    dtype: str | None = None
    policy: str | None = None
    command: str | None = None
    workers: int = 1


def read_cfg(path: Path, name: str | None, filled: Filled) -> Task:
    """Return a file's task of this name, by default its only one. Raises `MatrixError` with every problem of it."""
    sections = _sections(path)
    wanted = filled.policy or name
    if wanted is None:
        if len(sections) != 1:
            there = ", ".join(sections) or "none"
            raise MatrixError([f"{path}: holds {len(sections)} tasks; name one with --task-name: {there}"])
        wanted = next(iter(sections))
    if wanted not in sections:
        raise MatrixError([f"{path}: there is no section [{wanted}]{near(wanted, sections)}"])
    section = _Section(path, wanted, sections[wanted])
    task = section.task(name or wanted, filled)
    if section.problems:
        raise MatrixError(section.problems)
    return task


def substituted(command: str, filled: Filled) -> str:
    """Return a command with the template's fields filled in; without GPUs `--gpus` goes."""
    if filled.gpus is not None:
        command = re.sub(r"--gpus [0-9][0-9,]*", f"--gpus {filled.gpus}" if filled.gpus else "", command)
    for place, text in _fields(filled):
        command = re.sub(place, text.replace("\\", r"\\"), command)
    return command


def placeless(command: str, filled: Filled) -> list[str]:
    """Return the flags whose place a command does not have, so that they change nothing in it."""
    return [text for place, text in _fields(filled) if not re.search(place, command)]


def _fields(filled: Filled) -> list[tuple[str, str]]:
    """Return, of each field that is given, its place in a command and what comes there."""
    fields = (
        (r"--epochs \d+", "--epochs", filled.epochs),
        ("--kvstore device", "--kvstore", filled.kvstore),
        ("--dtype float32", "--dtype", filled.dtype),
    )
    return [(place, f"{flag} {value}") for place, flag, value in fields if value is not None]


def goal_of(metric: str) -> Goal:
    """Return which way is better, as far as a metric's name tells."""
    return Goal.HIGHER if BETTER_HIGHER.search(metric) else Goal.LOWER


def _sections(path: Path) -> dict[str, dict[str, str]]:
    parser = configparser.ConfigParser()
    try:
        with path.open("rb") as file:
            data = file.read(MAX_BYTES + 1)
        if len(data) > MAX_BYTES:
            raise MatrixError([f"{path}: must have at most {MAX_BYTES:,} bytes; take out the tasks that are not run"])
        parser.read_string(data.decode("utf-8"), str(path))
        return {name: dict(parser.items(name)) for name in parser.sections()}
    except OSError as error:
        raise MatrixError([f"{path}: cannot be read ({error.strerror}); name a file with --config"]) from error
    except UnicodeDecodeError as error:
        raise MatrixError(
            [f"{path}: must be UTF-8, got byte {error.object[error.start]:#x} at {error.start}"]
        ) from error
    except configparser.InterpolationError as error:
        raise MatrixError([f"{path}: {_one_line(error)}; write %% for a percent sign"]) from error
    except configparser.Error as error:
        raise MatrixError([f"{path}: is no .cfg file: {_one_line(error)}"]) from error


def _one_line(error: Exception) -> str:
    return " ".join(str(error).split())


class _Section:
    """One section, and what is wrong with it."""

    def __init__(self, path: Path, name: str, values: dict[str, str]) -> None:
        self.where, self.values = f"{path}: [{name}]", values
        self.problems: list[str] = []

    def task(self, name: str, filled: Filled) -> Task:
        if not NAME.fullmatch(name):
            self.refuse("", f"must be a name of at most 64 letters, digits and _.-, got {name!r}")
        metrics = self.metrics()
        return Task(
            name=name,
            command=[substituted(self.command(filled), filled)],
            metrics=metrics,
            primary=metrics[0].name if metrics else UPTIME,
            shell=True,
            inherit=None,
            gpus=self.gpus() if filled.gpus is None else filled.gpus,
            workers=filled.workers,
        )

    def command(self, filled: Filled) -> str:
        found = filled.command or self.values.get(COMMAND, "")
        if not found.strip():
            self.refuse(COMMAND, "is missing; give it there, or with --command-to-execute")
        elif len(found) > MAX_WORD or "\0" in found:
            self.refuse(COMMAND, f"must be a text of at most {MAX_WORD} characters, got {len(found)}")
        return found

    def gpus(self) -> int:
        found = self.values.get(GPUS, "0").strip()
        if not (found.isascii() and found.isdecimal() and int(found) <= MAX_GPUS):
            self.refuse(GPUS, f"must be a whole number from 0 to {MAX_GPUS}, got {found!r}")
            return 0
        return int(found)

    def metrics(self) -> list[MetricAsked]:
        patterns, names, methods = (self.texts(key) for key in LISTS)
        lengths = {key: len(found) for key, found in zip(LISTS, (patterns, names, methods), strict=True)}
        if self.problems:
            return []
        if len(set(lengths.values())) > 1:
            told = ", ".join(f"{key} has {length}" for key, length in lengths.items())
            self.refuse("", f"its lists must be of equal length, item for item; {told}")
            return []
        self.check(patterns, names, methods)
        if self.problems:
            return []
        rows = zip(names, patterns, methods, strict=True)
        return [MetricAsked(n, p, None, Compute(m), goal_of(n)) for n, p, m in rows]

    def check(self, patterns: Sequence[str], names: Sequence[str], methods: Sequence[str]) -> None:
        for pattern in patterns:
            if fault := pattern_fault(pattern):
                self.refuse(LISTS[0], fault)
        for name in names:
            if not NAME.fullmatch(name) or name == UPTIME or names.count(name) > 1:
                self.refuse(LISTS[1], f"must be different names of at most 64 letters, digits and _.-, got {name!r}")
        known = [str(one) for one in Compute]
        for method in methods:
            if method not in known:
                self.refuse(LISTS[2], f"must be one of {', '.join(known)}, got {method!r}{near(method, known)}")

    def texts(self, key: str) -> list[str]:
        """Return a list of texts, written as Python writes it."""
        if key not in self.values:
            self.refuse(key, "is missing")
            return []
        try:
            with warnings.catch_warnings():
                warnings.simplefilter(
                    "ignore"
                )  # such files write '\\d', which Python reads as it is meant and warns of
                found = ast.literal_eval(self.values[key])
        except (ValueError, SyntaxError, MemoryError, RecursionError, TypeError):
            found = None
        if not isinstance(found, list) or not all(isinstance(item, str) for item in found):
            self.refuse(key, f"must be a list of texts as Python writes it, got {self.values[key][:80]!r}")
            return []
        return found

    def refuse(self, key: str, text: str) -> None:
        self.problems.append(f"{self.where}{' ' if key else ''}{key}: {text}")

r"""Reads the `.cfg` files of the deeplearning-benchmark driver: a section per task, with positional lists.

    [resnet50_cifar10]
    patterns = ['Speed: (\d+\.\d+|\d+) samples/sec', 'time cost: (\d+\.\d+|\d+)']
    metrics = ['speed', 'total_training_time']
    compute_method = ['average', 'total']
    command_to_execute = python train.py --gpus 8 --epochs 20
    num_gpus = 8

Values have that driver's syntax: Python literals for the lists, percent signs as described below,
a shell for the command, and the caller's environment, except its credentials, for its process. The files have no goals;
these are derived from the metrics' names. A section may define its own keys for `%(key)s`; another unknown key is
refused if it resembles a missing one, and reported otherwise.

Only requested values are interpolated, so that the contents of other sections do not matter. In a value `%%` is a
percent sign, `%(key)s` is another value of the section, and any other percent sign is literal, as in the driver. Python
2's `ConfigParser` interpolated only values that contain `%(`; six sections of the driver's own template have a bare
`\%` in their patterns, which Python 3's `configparser` refuses. `%%` follows Python 3.
"""

from __future__ import annotations

import ast
import configparser
import io
import re
import warnings
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from keras_matrix.records.task import UPTIME, Compute, Goal, MetricSpec, Task
from keras_matrix.records.text import near
from keras_matrix.runner.errors import MatrixError
from keras_matrix.runner.matrix.task_rules import KEYS, MAX_WORD, METRIC_KEYS, NAME, pattern_problem

LISTS = ("patterns", "metrics", "compute_method")
COMMAND, GPUS = "command_to_execute", "num_gpus"
KNOWN = (*LISTS, COMMAND, GPUS)
MAX_GPUS = 64
# Words in the names of metrics for which higher is better; for all others lower is better.
BETTER_HIGHER = re.compile(r"speed|throughput|acc|per[ _]?sec|/s\b|f1|match|bleu|map\b", re.IGNORECASE)
MAX_BYTES = 1 << 20
MAX_DEPTH = 10  # of references to values that contain references, as in Python's configparser
_PERCENT = re.compile(r"%%|%\(([^)]*)\)s|%\(")
_HEADER = re.compile(r"\[(.+)\]")
_KEY = re.compile(r"[^=:]*")

Lines = Mapping[tuple[str, str], int]
"""The line of each (section, key); the line of a section's header has an empty key."""


@dataclass(frozen=True, slots=True)
class Filled:
    """The values that the command line fills in; fields of the template remain unchanged for None.

    `policy` names the section with the metrics for `command`, if that replaces a section's own command.
    """

    gpus: int | None = None
    epochs: int | None = None
    kvstore: str | None = None
    dtype: str | None = None
    policy: str | None = None
    command: str | None = None
    workers: int = 1


def read_cfg(path: Path, name: str | None, filled: Filled) -> Task:
    """Return a file's task named `name`, by default its only one. Raises `MatrixError` with all its problems."""
    chosen_section = _chosen(path, name, filled)
    section = _Section(chosen_section)
    task = section.task(name or chosen_section.name, filled)
    if section.problems:
        raise MatrixError(section.problems)
    return task


def unused_keys(path: Path, name: str | None, filled: Filled) -> list[str]:
    """Return a message for each key of the chosen section that has no effect."""
    section = _chosen(path, name, filled)
    return [
        f"{section.where(key)}: unknown key without effect{_advice(key)}"
        for key in _unknown(section)
        if _misspelt(section, key) is None
    ]


def _chosen(path: Path, name: str | None, filled: Filled) -> CfgSection:
    sections = read_sections(path)
    section_name = filled.policy or name
    if section_name is None:
        if len(sections) != 1:
            names_text = ", ".join(sections)
            raise MatrixError([f"{path}: has {len(sections)} tasks; choose one with --task-name: {names_text}"])
        section_name = next(iter(sections))
    if section_name not in sections:
        raise MatrixError([f"{path}: no section [{section_name}]{near(section_name, sections)}"])
    return sections[section_name]


def _unknown(section: CfgSection) -> Iterator[str]:
    """Yield the section's keys that neither the driver defines nor another value refers to."""
    yield from (key for key in section.raw if key not in {*KNOWN, *section.shared, *section.referenced()})


def _misspelt(section: CfgSection, key: str) -> str | None:
    """Return the advice on an unknown key that resembles one that the section lacks, or None."""
    missing_keys = [known_key for known_key in KNOWN if known_key not in section.raw]
    begun = next((known_key for known_key in missing_keys if known_key.startswith(key)), None)  # such as command
    return f"; did you mean {begun}?" if begun else near(key, missing_keys) or None


def _advice(key: str) -> str:
    if key in (*KEYS, *METRIC_KEYS):
        return f"; to set {key}, write the task under tasks: in a matrix file (docs/tasks.md)"
    return f"{near(key, KNOWN)}; a section has {', '.join(KNOWN)}"


def substituted(command: str, filled: Filled) -> str:
    """Return a command with the template's fields filled in; with 0 GPUs `--gpus` is removed."""
    if filled.gpus is not None:
        command = re.sub(r"--gpus [0-9][0-9,]*", f"--gpus {filled.gpus}" if filled.gpus else "", command)
    for place, text in _fields(filled):
        command = re.sub(place, text.replace("\\", r"\\"), command)
    return command


def flags_without_place(command: str, filled: Filled) -> list[str]:
    """Return the flags without a place in a command, which therefore have no effect."""
    return [text for place, text in _fields(filled) if not re.search(place, command)]


def _fields(filled: Filled) -> list[tuple[str, str]]:
    """Return the place in a command and the replacement of each given field."""
    fields = (
        (r"--epochs \d+", "--epochs", filled.epochs),
        ("--kvstore device", "--kvstore", filled.kvstore),
        ("--dtype float32", "--dtype", filled.dtype),
    )
    return [(place, f"{flag} {value}") for place, flag, value in fields if value is not None]


def goal_of(metric: str) -> Goal:
    """Return whether lower or higher is better, judged by a metric's name."""
    return Goal.HIGHER if BETTER_HIGHER.search(metric) else Goal.LOWER


class _Section:
    """Reads a section as a task, and collects its problems."""

    def __init__(self, section: CfgSection) -> None:
        self.section = section
        self.problems = [
            f"{section.where(key)}: unknown key{hint}"
            for key in _unknown(section)
            if (hint := _misspelt(section, key)) is not None
        ]

    def task(self, name: str, filled: Filled) -> Task:
        if not NAME.fullmatch(name):
            self.refuse("", f"must be a name of at most 64 letters, digits and _.-, got {name!r}")
        metrics = self.metrics()
        return Task(  # noqa: S604 - a field of the task, which starts nothing
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
        command_text = filled.command or self.value(COMMAND)
        if command_text is None and COMMAND in self.section.raw:
            return ""  # refused already
        if command_text is None or not command_text.strip():
            self.refuse(COMMAND, "is missing; give it there, or with --command-to-execute")
            return ""
        if len(command_text) > MAX_WORD or "\0" in command_text:
            self.refuse(COMMAND, f"must be a text of at most {MAX_WORD} characters, got {len(command_text)}")
        return command_text

    def gpus(self) -> int:
        number_text = (self.value(GPUS) or "0").strip()
        if not (number_text.isascii() and number_text.isdecimal() and int(number_text) <= MAX_GPUS):
            self.refuse(GPUS, f"must be a whole number from 0 to {MAX_GPUS}, got {number_text!r}")
            return 0
        return int(number_text)

    def metrics(self) -> list[MetricSpec]:
        patterns, names, methods = (self.texts(key) for key in LISTS)
        lengths = {key: len(texts) for key, texts in zip(LISTS, (patterns, names, methods), strict=True)}
        if self.problems:
            return []
        if len(set(lengths.values())) > 1:
            text = ", ".join(f"{key} has {length}" for key, length in lengths.items())
            self.refuse("", f"its lists must have the same length; {text}")
            return []
        self.check(patterns, names, methods)
        if self.problems:
            return []
        rows = zip(names, patterns, methods, strict=True)
        return [MetricSpec(n, p, None, Compute(m), goal_of(n)) for n, p, m in rows]

    def check(self, patterns: Sequence[str], names: Sequence[str], methods: Sequence[str]) -> None:
        for pattern in patterns:
            if problem := pattern_problem(pattern):
                self.refuse(LISTS[0], problem)
        for name in dict.fromkeys(names):
            if not NAME.fullmatch(name) or name == UPTIME or names.count(name) > 1:
                self.refuse(LISTS[1], f"must be different names of at most 64 letters, digits and _.-, got {name!r}")
        allowed_methods = [str(compute) for compute in Compute]
        for method in methods:
            if method not in allowed_methods:
                self.refuse(
                    LISTS[2],
                    f"must be one of {', '.join(allowed_methods)}, got {method!r}{near(method, allowed_methods)}",
                )

    def texts(self, key: str) -> list[str]:
        """Return a list of texts from a Python literal."""
        text = self.value(key)
        if text is None:
            return []
        try:
            with warnings.catch_warnings():
                warnings.simplefilter("ignore")  # such files contain '\\d', which Python reads as intended but warns of
                parsed = ast.literal_eval(text)
        except (ValueError, SyntaxError, MemoryError, RecursionError, TypeError):
            parsed = None
        if not isinstance(parsed, list) or not all(isinstance(item, str) for item in parsed):
            self.refuse(key, f"must be a Python list of texts, got {text[:80]!r}")
            return []
        return parsed

    def value(self, key: str) -> str | None:
        """Return a value with its references replaced, or None if it is missing or refused."""
        if key not in self.section.raw:
            if key in LISTS:
                self.refuse(key, "is missing")
            return None
        try:
            return self.section.value(key)
        except ValueError as error:
            self.refuse(key, str(error))
            return None

    def refuse(self, key: str, text: str) -> None:
        self.problems.append(f"{self.section.where(key)}: {text}")


@dataclass(frozen=True, slots=True)
class CfgSection:
    """A section: its raw values, including the `shared` ones of [DEFAULT], and the line of each."""

    path: Path
    name: str
    raw: Mapping[str, str]
    shared: frozenset[str]
    lines: Lines

    def where(self, key: str = "") -> str:
        """Return the place of a key, or of the section, for messages: `task.cfg:4: [name] key`."""
        places = [(self.name, key), (configparser.DEFAULTSECT, key), (self.name, "")]
        line = next(self.lines[place] for place in places if place in self.lines)
        return f"{self.path}:{line}: [{self.name}]{' ' if key else ''}{key}"

    def value(self, key: str) -> str:
        """Return a value with its references replaced. Raises `ValueError` for a wrong reference."""
        return _interpolated(self.raw, key, ())

    def referenced(self) -> set[str]:
        """Return the keys that other values of the section refer to."""
        return {name.lower() for text in self.raw.values() for name in _PERCENT.findall(text)}


def read_sections(path: Path) -> dict[str, CfgSection]:
    """Return the sections of a file by name. Raises `MatrixError`."""
    text = _text(path)
    parser, lines = configparser.ConfigParser(interpolation=None), lines_of(text)
    try:
        parser.read_string(text, str(path))
    except configparser.Error as error:
        raise MatrixError([_syntax_problem(path, error, text)]) from error
    shared_keys = frozenset(parser.defaults())
    return {name: CfgSection(path, name, dict(parser.items(name)), shared_keys, lines) for name in parser.sections()}


def lines_of(text: str) -> Lines:
    """Return the line of each section and key, by configparser's rules: a deeper indentation continues a value."""
    line_numbers: dict[tuple[str, str], int] = {}
    section, indent = "", None
    for number, line in enumerate(io.StringIO(text), 1):
        stripped = line.strip()
        depth = len(line) - len(line.lstrip())
        if not stripped or stripped[0] in "#;" or (indent is not None and depth > indent):
            continue
        if header_match := _HEADER.match(stripped):
            section, indent = header_match[1], None
            line_numbers.setdefault((section, ""), number)
        elif key_match := _KEY.match(stripped):
            line_numbers.setdefault((section, key_match[0].strip().lower()), number)
            indent = depth
    return line_numbers


def _interpolated(raw: Mapping[str, str], key: str, referring_keys: tuple[str, ...]) -> str:
    if len(referring_keys) > MAX_DEPTH:
        raise ValueError(
            f"refers to itself, or through more than {MAX_DEPTH} other keys: {' -> '.join(referring_keys)}"
        )

    def replacement(match: re.Match[str]) -> str:
        if match[0] == "%%":
            return "%"
        if match[1] is None:
            raise ValueError("has %( without )s; write %%( for the text itself")
        name = match[1].lower()
        if name not in raw:
            advice = f"{near(name, raw)}; write %{match[0]} for the text itself"
            raise ValueError(f"refers to {match[0]}, which the section does not have{advice}")
        return _interpolated(raw, name, (*referring_keys, key))

    return _PERCENT.sub(replacement, raw[key])


def _text(path: Path) -> str:
    try:
        with path.open("rb") as file:
            data = file.read(MAX_BYTES + 1)
    except OSError as error:
        raise MatrixError([f"{path}: cannot be read ({error.strerror}); give a file with --config"]) from error
    if len(data) > MAX_BYTES:
        raise MatrixError([f"{path}: must have at most {MAX_BYTES:,} bytes; remove the tasks that are not run"])
    try:
        return data.decode("utf-8").removeprefix("\ufeff")
    except UnicodeDecodeError as error:
        byte_text = f"byte {error.object[error.start]:#x} at {error.start}"
        raise MatrixError([f"{path}: must be UTF-8, got {byte_text}"]) from error


def _syntax_problem(path: Path, error: configparser.Error, text: str) -> str:
    if isinstance(error, configparser.DuplicateSectionError):
        return f"{path}:{error.lineno}: [{error.section}]: must not appear twice; rename or remove one"
    if isinstance(error, configparser.DuplicateOptionError):
        return f"{path}:{error.lineno}: [{error.section}] {error.option}: must not appear twice; remove one"
    if isinstance(error, configparser.MissingSectionHeaderError):
        return f"{path}:{error.lineno}: must begin with the [name] of a task, got {error.line.strip()!r}"
    if isinstance(error, configparser.ParsingError) and error.errors:
        number = error.errors[0][0]
        line = list(io.StringIO(text))[number - 1].strip()  # the error has it quoted before Python 3.13, then as it is
        sections_before = [
            (line_number, section)
            for (section, key), line_number in lines_of(text).items()
            if not key and line_number < number
        ]
        section = max(sections_before)[1] if sections_before else ""
        return f"{path}:{number}: [{section}]: must be key = value, got {line!r}"
    return f"{path}: must be a .cfg file: {' '.join(str(error).split())}"

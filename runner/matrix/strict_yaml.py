"""Reads YAML strictly, as plain data: ambiguous input is refused with its line.

Promise: for any bytes, `read` returns within a fraction of a second and does not raise; problems are listed in
`Document.problems`. It refuses duplicate keys, keys that are not text, anchors, aliases, merge keys, tags, several
documents, tabs as indentation, control characters, text that is not UTF-8, and files that are too large or too deep.

The values are those of `scalars`.

The grammar of a matrix is not part of this module.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any, Final

import yaml

from keras_matrix.records.text import escaped
from keras_matrix.runner.matrix.scalars import resolve, say

MAX_BYTES = 1 << 20
MAX_PROBLEMS = 50  # a reader stops there: so many problems usually have one cause
MAX_DEPTH = 20
MAX_NODES = 20_000  # limits the slowest file to 0.1 s; a matrix with 20,000 written values is a mistake

Path = tuple[str | int, ...]

_LOADER: Any = getattr(yaml, "CSafeLoader", yaml.SafeLoader)
_TAB = re.compile(r"^[ ]*\t", re.MULTILINE)
_CONTROL = re.compile("[^\t\n\r\x20-\x7e\x85\xa0-\ud7ff\ue000-\ufffd\U00010000-\U0010ffff]")


class RefusedValue:
    """Replaces a refused value, so that later rules do not report it again."""


REFUSED: Final = RefusedValue()


@dataclass(frozen=True, slots=True)
class LineProblem:
    """A problem of a file: `line` counts from 1; `path` is empty if the problem concerns the full file."""

    line: int
    path: Path
    text: str

    def text_in(self, name: str) -> str:
        """Return the problem as one line, `NAME:LINE: path: text`, for a file of this name."""
        place_text = f"{escaped(path_text(self.path))}: " if self.path else ""
        return f"{name}:{self.line}: {place_text}{self.text}"


@dataclass(frozen=True, slots=True)
class Document:
    """A document that was read: plain values, the line of each path, and the problems."""

    value: object = REFUSED
    lines: dict[Path, int] = field(default_factory=dict)
    problems: list[LineProblem] = field(default_factory=list)


class Stop(Exception):
    """Ends the reading of a document."""


def note(problems: list[LineProblem], problem: LineProblem) -> None:
    """Add a problem; raises `Stop` at `MAX_PROBLEMS`."""
    problems.append(problem)
    if len(problems) >= MAX_PROBLEMS:
        last_line = max(earlier.line for earlier in problems)
        problems.append(LineProblem(last_line, (), f"stopped after {MAX_PROBLEMS} problems; fix these first"))
        raise Stop


def read(data: bytes) -> Document:
    """Read one YAML document. Does not raise: see `Document.problems`; `value` is `REFUSED` without a value."""
    text, problems = _decode(data)
    if problems:
        return Document(problems=problems)
    reader = _EventReader(_events(text, problems), problems)
    try:
        value = reader.document()
    except Stop:
        return Document(REFUSED, reader.lines, problems)
    return Document(value, reader.lines, problems)


def path_text(path: Path) -> str:
    """Return a path in the notation of messages: `cells[0].batch_size[1]`."""
    return "".join(f"[{step}]" if isinstance(step, int) else f".{step}" for step in path).removeprefix(".")


def _decode(data: bytes) -> tuple[str, list[LineProblem]]:
    """Return the text without its byte order mark, or the problem with it."""
    if len(data) > MAX_BYTES:
        return "", [LineProblem(1, (), f"a file must be at most {MAX_BYTES} bytes, got more")]
    try:
        text = data.decode("utf-8").removeprefix("\ufeff")
    except UnicodeDecodeError as error:
        line = data.count(b"\n", 0, error.start) + 1
        return "", [LineProblem(line, (), f"must be UTF-8, got byte 0x{data[error.start]:02x}")]
    if match := _CONTROL.search(text):
        problem = f"control characters are not allowed, got U+{ord(match[0]):04X}"
        return "", [LineProblem(text.count("\n", 0, match.start()) + 1, (), problem)]
    if match := _TAB.search(text):
        return "", [LineProblem(text.count("\n", 0, match.start()) + 1, (), "indentation must be spaces, got a tab")]
    return text, []


def _events(text: str, problems: list[LineProblem]) -> Iterator[Any]:
    """Yield the parser's events; a syntax error ends them as a problem."""
    try:
        yield from yaml.parse(text, Loader=_LOADER)
    except yaml.MarkedYAMLError as error:
        mark = error.problem_mark or error.context_mark
        reason = " ".join(part for part in (error.context, error.problem) if part)
        problems.append(LineProblem(mark.line + 1 if mark else 1, (), f"not YAML: {reason}"))
        raise Stop from error
    except yaml.YAMLError as error:
        problems.append(LineProblem(1, (), f"not YAML: {say(str(error))}"))
        raise Stop from error


class _EventReader:
    """Builds plain values from events, with their lines and problems."""

    def __init__(self, events: Iterator[Any], problems: list[LineProblem]) -> None:
        self.events = events
        self.problems = problems
        self.lines: dict[Path, int] = {}
        self.nodes = 0

    def document(self) -> object:
        next(self.events)  # stream start
        if isinstance(next(self.events), yaml.StreamEndEvent):
            self.stop(1, (), "the file is empty")
        value = self.node(next(self.events), ())
        next(self.events)  # document end
        if not isinstance(next_event := next(self.events), yaml.StreamEndEvent):
            self.stop(_at(next_event), (), "must be one document, got a second one")
        return value

    def node(self, event: Any, path: Path) -> object:
        self.lines.setdefault(path, _at(event))
        self.nodes += 1
        if self.nodes > MAX_NODES:
            self.stop(_at(event), (), f"must have at most {MAX_NODES} values, got more")
        if isinstance(event, yaml.AliasEvent):
            self.refuse(event, path, f"aliases are not allowed, got *{event.anchor}")
            return REFUSED
        if event.anchor is not None:
            self.refuse(event, path, f"anchors are not allowed, got &{event.anchor}")
        if event.tag is not None:
            self.refuse(event, path, f"tags are not allowed, got {say(event.tag)}")
        value = self.untagged(event, path)
        return value if event.tag is None else REFUSED

    def untagged(self, event: Any, path: Path) -> object:
        if isinstance(event, yaml.ScalarEvent):
            return resolve(event.value) if event.implicit[0] else event.value
        if len(path) >= MAX_DEPTH:
            self.stop(_at(event), (), f"must be nested at most {MAX_DEPTH} deep, got more")
        return self.sequence(path) if isinstance(event, yaml.SequenceStartEvent) else self.mapping(path)

    def sequence(self, path: Path) -> list[object]:
        items: list[object] = []
        while not isinstance(event := next(self.events), yaml.SequenceEndEvent):
            items.append(self.node(event, (*path, len(items))))
        return items

    def mapping(self, path: Path) -> dict[str, object]:
        items: dict[str, object] = {}
        while not isinstance(event := next(self.events), yaml.MappingEndEvent):
            key = self.key(event, path)
            if key is None:
                self.node(next(self.events), (*path, "?"))
            elif key in items:
                first_line = self.lines[*path, key]
                self.refuse(event, (*path, key), f"keys must not repeat, first used on line {first_line}")
                self.node(next(self.events), (*path, key))
            else:
                self.lines[*path, key] = _at(event)
                items[key] = self.node(next(self.events), (*path, key))
        return items

    def key(self, event: Any, path: Path) -> str | None:
        key = self.node(event, (*path, "?"))
        if isinstance(key, str) and key != "<<":
            return key
        if key is not REFUSED:
            rule_text = "merge keys are not allowed, got <<" if key == "<<" else f"keys must be text, got {say(key)}"
            self.refuse(event, path, rule_text)
        return None

    def refuse(self, event: Any, path: Path, text: str) -> None:
        note(self.problems, LineProblem(_at(event), path, text))

    def stop(self, line: int, path: Path, text: str) -> None:
        self.problems.append(LineProblem(line, path, text))
        raise Stop


def _at(event: Any) -> int:
    return int(event.start_mark.line) + 1

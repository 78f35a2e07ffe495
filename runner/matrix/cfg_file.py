"""Reads the text of a `.cfg` file: its sections as written, and values of one with their references replaced.

Only requested values are interpolated, so that the contents of other sections do not matter. In a value `%%` is a
percent sign, `%(key)s` is another value of the section, and any other percent sign is literal, as in the driver. Python
2's `ConfigParser` interpolated only values that contain `%(`; six sections of the driver's own template have a bare
`\\%` in their patterns, which Python 3's `configparser` refuses. `%%` follows Python 3.
"""

from __future__ import annotations

import configparser
import io
import re
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from keras_matrix.records.text import near
from keras_matrix.runner.errors import MatrixError

MAX_BYTES = 1 << 20
MAX_DEPTH = 10  # of references to values that contain references, as in Python's configparser
_PERCENT = re.compile(r"%%|%\(([^)]*)\)s|%\(")
_HEADER = re.compile(r"\[(.+)\]")
_KEY = re.compile(r"[^=:]*")

Lines = Mapping[tuple[str, str], int]
"""The line of each (section, key); the line of a section's header has an empty key."""


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
        raise MatrixError([_syntax_problem(path, error, lines)]) from error
    shared = frozenset(parser.defaults())
    return {name: CfgSection(path, name, dict(parser.items(name)), shared, lines) for name in parser.sections()}


def lines_of(text: str) -> Lines:
    """Return the line of each section and key, by configparser's rules: a deeper indentation continues a value."""
    found: dict[tuple[str, str], int] = {}
    section, indent = "", None
    for number, line in enumerate(io.StringIO(text), 1):
        stripped = line.strip()
        depth = len(line) - len(line.lstrip())
        if not stripped or stripped[0] in "#;" or (indent is not None and depth > indent):
            continue
        if header := _HEADER.match(stripped):
            section, indent = header[1], None
            found.setdefault((section, ""), number)
        elif key := _KEY.match(stripped):
            found.setdefault((section, key[0].strip().lower()), number)
            indent = depth
    return found


def _interpolated(raw: Mapping[str, str], key: str, above: tuple[str, ...]) -> str:
    if len(above) > MAX_DEPTH:
        raise ValueError(f"refers to itself, or through more than {MAX_DEPTH} other keys: {' -> '.join(above)}")

    def replacement(found: re.Match[str]) -> str:
        if found[0] == "%%":
            return "%"
        if found[1] is None:
            raise ValueError("has %( without )s; write %%( for the text itself")
        name = found[1].lower()
        if name not in raw:
            advice = f"{near(name, raw)}; write %{found[0]} for the text itself"
            raise ValueError(f"refers to {found[0]}, which the section does not have{advice}")
        return _interpolated(raw, name, (*above, key))

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
        found = f"byte {error.object[error.start]:#x} at {error.start}"
        raise MatrixError([f"{path}: must be UTF-8, got {found}"]) from error


def _syntax_problem(path: Path, error: configparser.Error, lines: Lines) -> str:
    if isinstance(error, configparser.DuplicateSectionError):
        return f"{path}:{error.lineno}: [{error.section}]: must not appear twice; rename or remove one"
    if isinstance(error, configparser.DuplicateOptionError):
        return f"{path}:{error.lineno}: [{error.section}] {error.option}: must not appear twice; remove one"
    if isinstance(error, configparser.MissingSectionHeaderError):
        return f"{path}:{error.lineno}: must begin with the [name] of a task, got {error.line.strip()!r}"
    if isinstance(error, configparser.ParsingError) and error.errors:
        number, line = error.errors[0]
        before = [(at, section) for (section, key), at in lines.items() if not key and at < number]
        section = max(before)[1] if before else ""
        return f"{path}:{number}: [{section}]: must be key = value, got {line}"
    return f"{path}: must be a .cfg file: {' '.join(str(error).split())}"

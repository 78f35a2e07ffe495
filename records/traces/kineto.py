"""Reads PyTorch's own file, a Chrome trace in JSON, as a stream: one event at a time is in memory.

Its members are `traceEvents`, a list, and a few small ones, such as `baseTimeNanoseconds`, the time base of the events.
"""

from __future__ import annotations

import gzip
import json
import re
import zlib
from collections.abc import Iterator
from json.scanner import make_scanner
from pathlib import Path
from typing import IO, Any

from keras_matrix.records.traces.request import TraceError

EVENTS = "traceEvents"
CHUNK_CHARACTERS = 1 << 20
# A larger value is not an event of a profiler.
MAX_VALUE_CHARACTERS = 64 << 20

DELIMITERS = frozenset(",:]} \t\r\n")
_BLANK = re.compile(r"[ \t\r\n]*")
# A comma with what follows it: only then the next value has begun, and the text before it is complete.
_COMMA = re.compile(r"[ \t\r\n]*,[ \t\r\n]*(?=[^ \t\r\n])")
_DECODER = json.JSONDecoder()
_SCAN = make_scanner(_DECODER)  # type: ignore[arg-type]  # typed as if it took itself


def members(path: Path) -> Iterator[tuple[str, Any]]:
    """Yield (name, value) for each member of the file, and for each event of `traceEvents`. Raises `TraceError`."""
    opened = gzip.open if path.suffix == ".gz" else open
    try:
        with opened(path, "rt", encoding="utf-8", errors="replace") as file:
            yield from _members(_Reading(file))
    except (OSError, EOFError, zlib.error) as error:
        raise TraceError(f"{path}: cannot be read: {error}") from error
    except (ValueError, RecursionError) as error:
        raise TraceError(f"{path}: is not a complete Chrome trace: {error}; record it again") from error


class _Reading:
    """A text that is read on demand, and a position in it."""

    def __init__(self, file: IO[str]) -> None:
        self._file = file
        self._text = ""
        self._at = 0

    def next(self) -> str:
        """Return the next non-blank character without passing it. Raises `ValueError` at the end."""
        while True:
            found = _BLANK.match(self._text, self._at)
            self._at = found.end() if found else self._at
            if self._at < len(self._text):
                return self._text[self._at]
            if not self._more():
                raise ValueError("unexpected end of file")

    def skip(self, wanted: str) -> str:
        """Pass the next character, which must be one of `wanted`, and return it."""
        found = self.next()
        if found not in wanted:
            raise ValueError(f"expected one of {wanted!r}, got {found!r}")
        self._at += 1
        return found

    def value(self) -> Any:
        """Return the next complete value."""
        self.next()
        while True:
            try:
                value, end = _DECODER.raw_decode(self._text, self._at)
            except ValueError as error:
                if len(self._text) - self._at > MAX_VALUE_CHARACTERS or not self._more():
                    raise ValueError(f"a value is incomplete ({error})") from error
                continue
            # Without a delimiter, such as `0` of `0.5`, the value may continue in the next chunk.
            if self._text[end : end + 1] in DELIMITERS or not self._more():
                self._at = end
                return value

    def values(self) -> Iterator[Any]:
        """Yield the next values that are complete in the text that is in memory, each with a comma after it.

        It is what `value` and `skip` would do, in half of the time: nothing is asked twice of a character.
        """
        after = _COMMA.match
        while True:
            try:
                value, end = _SCAN(self._text, self._at)
            except (StopIteration, ValueError):
                return
            found = after(self._text, end)
            if found is None:
                return
            self._at = found.end()
            yield value

    def _more(self) -> bool:
        piece = self._file.read(CHUNK_CHARACTERS)
        self._text = self._text[self._at :] + piece
        self._at = 0
        return bool(piece)


def _members(reading: _Reading) -> Iterator[tuple[str, Any]]:
    if reading.next() == "[":
        yield from ((EVENTS, event) for event in _items(reading))
        return
    reading.skip("{")
    if reading.next() == "}":
        return
    while True:
        name = reading.value()
        reading.skip(":")
        if name == EVENTS and reading.next() == "[":
            for event in _items(reading):
                yield EVENTS, event
        else:
            yield str(name), reading.value()
        if reading.skip(",}") == "}":
            return


def _items(reading: _Reading) -> Iterator[Any]:
    reading.skip("[")
    if reading.next() == "]":
        reading.skip("]")
        return
    while True:
        yield from reading.values()
        yield reading.value()
        if reading.skip(",]") == "]":
            return

"""PyTorch's own file, a Chrome trace in JSON, read piece by piece: one event at a time is in memory.

Its members are `traceEvents`, a list, and a few small ones round it, such as `baseTimeNanoseconds`, to which the times
of the events are added.
"""

from __future__ import annotations

import gzip
import json
import re
import zlib
from collections.abc import Iterator
from pathlib import Path
from typing import IO, Any

from keras_matrix.records.traces.request import TraceError

EVENTS = "traceEvents"
CHUNK_CHARACTERS = 1 << 20
# A single value that takes more is no event of a profiler's.
MAX_VALUE_CHARACTERS = 64 << 20

DELIMITERS = frozenset(",:]} \t\r\n")
_BLANK = re.compile(r"[ \t\r\n]*")
_DECODER = json.JSONDecoder()


def members(path: Path) -> Iterator[tuple[str, Any]]:
    """Yield (name, value) of each member of the file, of `traceEvents` each event. Raises `TraceError`."""
    opened = gzip.open if path.suffix == ".gz" else open
    try:
        with opened(path, "rt", encoding="utf-8", errors="replace") as file:
            yield from _members(_Reading(file))
    except (OSError, EOFError, zlib.error) as error:
        raise TraceError(f"{path}: cannot be read: {error}") from error
    except (ValueError, RecursionError) as error:
        raise TraceError(f"{path}: is no whole Chrome trace: {error}; record it again") from error


class _Reading:
    """A text that is read as it is needed, and a place in it."""

    def __init__(self, file: IO[str]) -> None:
        self._file = file
        self._text = ""
        self._at = 0

    def next(self) -> str:
        """Return the next character that is no blank, and stay before it. Raises `ValueError` at the end."""
        while True:
            found = _BLANK.match(self._text, self._at)
            self._at = found.end() if found else self._at
            if self._at < len(self._text):
                return self._text[self._at]
            if not self._more():
                raise ValueError("it ends too early")

    def skip(self, wanted: str) -> str:
        """Pass the next character, one of those wanted, and return it."""
        found = self.next()
        if found not in wanted:
            raise ValueError(f"it has {found!r} where one of {wanted!r} should stand")
        self._at += 1
        return found

    def value(self) -> Any:
        """Return the next value whole."""
        self.next()
        while True:
            try:
                value, end = _DECODER.raw_decode(self._text, self._at)
            except ValueError as error:
                if len(self._text) - self._at > MAX_VALUE_CHARACTERS or not self._more():
                    raise ValueError(f"a value is not whole ({error})") from error
                continue
            # What has no delimiter behind it, such as `0` of `0.5`, may go on in what is not read yet.
            if self._text[end : end + 1] in DELIMITERS or not self._more():
                self._at = end
                return value

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
        yield reading.value()
        if reading.skip(",]") == "]":
            return

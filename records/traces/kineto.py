"""Reads PyTorch's own file, a Chrome trace in JSON, as a stream: one event at a time is in memory.

Its members are `traceEvents`, a list, and a few small ones, such as `baseTimeNanoseconds`, the time base of the events.

The categories of events in PyTorch's file, by their names of today, and which are of accelerators that nobody reads.

Until PyTorch 1.10 they were `Operator`, `Runtime`, `Kernel`, `Memcpy` and `Memset`, and an annotation was an operator.
Other accelerators call their runtime something else, with the same events (`xpu_runtime`), or have events of their own
kinds (`mtia_ccp_events`), whose meaning is theirs.
"""

from __future__ import annotations

import gzip
import io
import json
import math
import os
import re
import zlib
from collections import Counter
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import IO, Any

from keras_matrix.records.files import UnfitFile, open_plain
from keras_matrix.records.traces.request import MARK, TraceError, problem_text

EVENTS = "traceEvents"
CHUNK_CHARACTERS = 1 << 20
# A larger value is not an event of a profiler.
MAX_VALUE_CHARACTERS = 64 << 20
DELIMITERS = frozenset(",:]} \t\r\n")
_BLANK = re.compile(r"[ \t\r\n]*")
_DECODER = json.JSONDecoder()
RENAMED = {
    "Operator": "cpu_op",
    "Runtime": "cuda_runtime",
    "Kernel": "kernel",
    "Memcpy": "gpu_memcpy",
    "Memset": "gpu_memset",
    "xpu_runtime": "cuda_runtime",
    "xpu_driver": "cuda_driver",
}
ANNOTATED = (MARK, "ProfilerStep#", "Optimizer.", "enumerate(DataLoader)#", "DistributedDataParallel.", "## ")
# What a category of an accelerator begins with; events of its runtime are on the host.
ACCELERATORS = ("mtia_", "hpu_", "privateuse1_", "glow_", "npu_")
OF_HOST = ": the times are those of its host"
ON_HOST = ("_runtime", "_driver")
MOST_NAMED = 5


def members(path: Path) -> Iterator[tuple[str, Any]]:
    """Yield (name, value) for each member of the file, and for each event of `traceEvents`. Raises `TraceError`."""
    try:
        descriptor, _ = open_plain(os.path.realpath(path))  # named by a user, who may name a link
        with os.fdopen(descriptor, "rb") as source:
            unpacked = gzip.GzipFile(fileobj=source) if path.suffix == ".gz" else source
            with io.TextIOWrapper(unpacked, encoding="utf-8", errors="replace") as file:
                yield from _members(_Reading(file))
    except (OSError, EOFError, zlib.error, UnfitFile) as error:
        raise TraceError(f"{path}: cannot be read: {getattr(error, 'strerror', None) or error}") from error
    except (ValueError, RecursionError) as error:
        raise TraceError(f"{path}: is not a complete Chrome trace: {error}; record it again") from error


def invalid(path: Path, member: str, value: object, number: int, error: Exception) -> TraceError:
    """Return the error for a value that is not one of PyTorch's; of an event, it names its number and its name."""
    if member != EVENTS:
        return TraceError(f"{path}: {member}: {problem_text(error)}; record it again")
    if not isinstance(value, dict):
        return TraceError(f"{path}: event {number}: must be an object, got {value!r:.80}; record it again")
    text = _event_problem(value) or problem_text(error)
    return TraceError(f"{path}: event {number} ({value.get('name')!r:.80}): {text}; record it again")


def _event_problem(event: Mapping[str, object]) -> str | None:
    """Return which member of an event is of another type, if one is."""
    for key in ("ts", "dur"):
        if not isinstance(time := event.get(key, 0), int | float) or not math.isfinite(time):
            return f"{key} must be a number of microseconds, got {time!r:.80}"
    args = event.get("args")
    return None if args is None or isinstance(args, dict) else f"args must be an object, got {args!r:.80}"


class _Reading:
    """A text that is read on demand, and a position in it."""

    def __init__(self, file: IO[str]) -> None:
        self._file = file
        self._text = ""
        self._at = 0
        self._together = True

    def next(self) -> str:
        """Return the next non-blank character without passing it. Raises `ValueError` at the end."""
        while True:
            match = _BLANK.match(self._text, self._at)
            self._at = match.end() if match else self._at
            if self._at < len(self._text):
                return self._text[self._at]
            if not self._more():
                raise ValueError("unexpected end of file")

    def skip(self, expected: str) -> str:
        """Pass the next character, which must be one of `expected`, and return it."""
        character = self.next()
        if character not in expected:
            raise ValueError(f"expected one of {expected!r}, got {character!r}")
        self._at += 1
        return character

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

    def values(self) -> list[Any]:
        """Return the next values of a list up to the last one that clearly ends in memory; often none.

        Decoded together they take half the time. The last `},` ends a value unless it is within one, or after the list:
        then the text before it is no list of values, and all that follow are read one by one.
        """
        end = self._text.rfind("},", self._at) if self._together else -1
        if end < 0:
            return []
        try:
            values: list[Any] = _DECODER.decode(f"[{self._text[self._at : end + 1]}]")
        except ValueError:
            self._together = False
            return []
        self._at = end + 2
        return values

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


def category_of(event: Mapping[str, Any]) -> str | None:
    """Return the category of an event by its name of today; None if it has none."""
    category = event.get("cat")
    if category == "Operator" and str(event.get("name")).startswith(ANNOTATED):
        return "user_annotation"
    return RENAMED.get(category, category) if isinstance(category, str) else None


def is_unread_work(category: str) -> bool:
    """Return whether events of a category are work of an accelerator that is not read."""
    return category.startswith(ACCELERATORS) and not category.endswith(ON_HOST)


def unread(others: Counter[str], *, has_device: bool) -> str:
    """Return a sentence about the work of an accelerator that is not read, given the number of events by category.

    With work of a device that is read, the times are not those of the host.
    """
    counts = {category: count for category, count in others.items() if is_unread_work(category)}
    if not counts:
        return ""
    return (
        f"{sum(counts.values()):,} events of an accelerator ({', '.join(sorted(counts))}) are left out, because this"
        f" program does not know what they mean{'' if has_device else OF_HOST}"
    )


def kinds(others: Counter[str]) -> str:
    """Return which categories of events a file has in place of those that are read, in brackets; "" without any."""
    return f" (of the categories {', '.join(name for name, _ in others.most_common(MOST_NAMED))})" if others else ""

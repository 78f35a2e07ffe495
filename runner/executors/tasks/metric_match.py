"""Finds metrics in a log, in a separate process, because Python cannot interrupt a regular expression that backtracks.

`python -P -m keras_matrix.runner.executors.tasks.metric_match` reads a JSON object from its standard input. It prints
a JSON line for each metric when it is found, so that a caller that ends it after a time limit knows the current metric.
Standard library only.

A pattern is matched against each line separately: `^` and `$` match the ends of a line. Lines end with a newline or, as
in progress bars, a carriage return; the last one may be open. Terminal sequences and backspaces are removed before.
Bytes that are not UTF-8 match only patterns for any character or negated sets. A line longer than `LINE_BYTES` is cut.

A text that every match of a pattern contains selects the lines to match by a plain text search. It is found by reading
the parse tree of Python's `re`, whose form is not guaranteed: for another form no text is found, and the pattern is
searched in all lines, which is slower and finds the same.

The values of a metric are reduced to one. Promise: memory does not grow with the log, except for order statistics,
which store at most `MOST_VALUES` values.
"""

from __future__ import annotations

import importlib
import json
import math
import re
import sys
from array import array
from collections.abc import Callable, Iterable, Iterator
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import IO, Any, AnyStr, Generic, TypeAlias

CHUNK_BYTES = 4 << 20
LINE_BYTES = 1 << 20
MOST_UNREQUESTED = 64
NAME_CHARACTERS = 64
SHOWN_BYTES = 60
_ESCAPES = re.compile(rb"\x1b(?:\[[0-?]*[ -/]*[@-~]|\][^\x07\x1b\n]*(?:\x07|\x1b\\)?|[@-Z\\-_])|\x08")
# Signs that are no ASCII but can only be a minus; dashes that also stand for one; the full-width forms of a number.
_SIGNS = "\u2212\ufe63\uff0d"
_AS_ASCII = str.maketrans({**dict.fromkeys(_SIGNS + "\u2010\u2011\u2012\u2013", "-"), "\uff0b": "+", "\uff0e": "."})
MOST_VALUES = 2_000_000
FOLD_AT = 1 << 16
Result = tuple[float | None, str | None]
SHARES = {"median": 0.5, "p50": 0.5, "p90": 0.9, "p99": 0.99}
_AS_ASCII |= str.maketrans({"\uff0c": ",", "\uff25": "E", "\uff45": "e"})
# What makes another number of the one beside it: a sign apart, a dash, a power, a fraction, a hexadecimal prefix.
_UNCLEAR = re.compile(
    r"^\s*[-+]\s+[\d.]|[\u2014\u2015]\.?\d|\d\s*[\u00b2\u00b3\u00b9\u00bc-\u00be\u2070-\u207e^]|\b0[xX]"
)
# What belongs to a number that a pattern ended too early: its exponent, and after one to three digits its thousands.
_EXPONENT = "[eE](?:[-+]|\u2212)?[0-9]{1,3}(?![A-Za-z0-9_])"
_THOUSANDS = "(?:[,'][0-9]{3})+(?:[.][0-9]+)?(?![A-Za-z0-9_,])"
_Around: TypeAlias = tuple[tuple[AnyStr, ...], re.Pattern[AnyStr], re.Pattern[AnyStr]]
_TEXT_AROUND: _Around[str] = (tuple(_SIGNS), re.compile(_EXPONENT), re.compile(_THOUSANDS))
_BYTES_AROUND: _Around[bytes] = (
    tuple(sign.encode() for sign in _SIGNS),
    re.compile(_EXPONENT.encode()),
    re.compile(_THOUSANDS.encode()),
)
_NUMBER = re.compile(r"[-+]?(?:\d+\.?\d*|\.\d+)(?:[eE][-+]?\d+)?|[-+]?\b(?:nan|inf(?:inity)?)\b", re.IGNORECASE)
# Patterns with non-ASCII letters or character classes are matched against text, which is slower than against bytes.
_LETTERS = re.compile(r"\\[xuUN0-3]|\(\?[a-zA-Z]*u")
_TEXT_ENDS = re.compile(r"\\[AZ]")


def chunks(file: IO[bytes]) -> Iterator[bytes]:
    """Yield the log in chunks of complete lines that end with newlines, without terminal sequences."""
    incomplete = b""
    while data := file.read(CHUNK_BYTES):
        data = incomplete + data
        cut = max(data.rfind(b"\n"), data.rfind(b"\r")) + 1
        if len(data) - cut > LINE_BYTES:
            cut = len(data)
        incomplete = data[cut:]
        if cut:
            yield _plain(data[:cut])
    if incomplete:
        yield _plain(incomplete)


@dataclass(frozen=True, slots=True)
class PatternSearch(Generic[AnyStr]):
    """A pattern, a word that all its matches contain (or empty), and the end of a line.

    With `apart` every line is matched separately, for a pattern that tests the begin or end of its text.
    """

    pattern: re.Pattern[AnyStr]
    word: AnyStr
    newline: AnyStr
    apart: bool

    def groups(self, text: AnyStr) -> Iterator[AnyStr | None]:
        """Yield the pattern's group of each match, line by line.

        Lines that cannot match are skipped quickly; the line of a match is then matched separately, since a match must
        not extend over the end of a line.
        """
        position = 0
        while (place := self._next(text, position)) >= 0:
            begin = max(text.rfind(self.newline, position, place) + 1, position)
            end = text.find(self.newline, place)
            end = len(text) if end < 0 else end
            yield from map(_with_its_number, self.pattern.finditer(text[begin:end]))
            position = end + 1
            if position > len(text):
                return

    def _next(self, text: AnyStr, position: int) -> int:
        if self.apart:
            return position
        if self.word:
            return text.find(self.word, position)
        match = self.pattern.search(text, position)
        return match.start() if match else -1


def _with_its_number(match: re.Match[AnyStr]) -> AnyStr | None:
    """Return the group of a match, with the parts of its number that the pattern left out.

    The group `\\d+[.]\\d+` finds 9.8 in `9.8e-05` and in `\u22129.8`, `\\d+` finds 1 in `1,234`: wrong figures. A
    pattern that matches what follows its group, such as a comma, says that it does not belong to the number.
    """
    group, (begin, end), text = match.group(1), match.span(1), match.string
    if not group or not group[-1:].isdigit():
        return group
    signs, exponent, thousands = _BYTES_AROUND if isinstance(text, bytes) else _TEXT_AROUND
    if group[:1].isdigit():
        begin -= next((len(sign) for sign in signs if text.endswith(sign, 0, begin)), 0)
    longer_match = exponent.match(text, end) or (
        thousands.match(text, end) if len(group) <= 3 and group.isdigit() else None
    )
    return text[begin : longer_match.end() if longer_match and end == match.end() else end]


def in_log(path: Path, pattern: str) -> Iterator[str | None]:
    """Yield the pattern's group of each match in a log of any size."""
    word, has_text_ends = required(pattern), bool(_TEXT_ENDS.search(pattern))
    with path.open("rb") as file:
        if not pattern.isascii() or _LETTERS.search(pattern):
            search = PatternSearch(re.compile(pattern, re.MULTILINE), word, "\n", has_text_ends)
            for chunk in chunks(file):
                yield from search.groups(chunk.decode("utf-8", errors="replace"))
            return
        search_bytes = PatternSearch(re.compile(pattern.encode(), re.MULTILINE), word.encode(), b"\n", has_text_ends)
        for chunk in chunks(file):
            for group in search_bytes.groups(chunk):
                yield None if group is None else group.decode("utf-8", errors="replace")


def number(text: str | None) -> float | None:
    """Return the number in a text with sign and exponent, or nan or inf; None unless there is exactly one.

    A minus of typography, as in `\u22123.5` or `1e\u22123`, and full-width digits count; thousands separators do not.
    """
    if text is None:
        return None
    text = text.translate(_AS_ASCII)
    with suppress(ValueError):
        return float(text)
    number_texts = _NUMBER.findall(text)
    return float(number_texts[0]) if len(number_texts) == 1 and not _UNCLEAR.search(text) else None


def reported(path: Path) -> tuple[dict[str, list[float]], dict[str, str], int]:
    """Return the values and units of the metrics that a command reported over its pipe, and the number of bad lines."""
    values, units, bad_lines = dict[str, list[float]](), dict[str, str](), 0
    if not path.is_file():
        return values, units, bad_lines
    with path.open("rb") as file:
        for line in file:
            reported_value = _reported_line(line)
            if reported_value is None:
                bad_lines += bool(line.strip())
            elif reported_value[0] in values or len(values) < MOST_UNREQUESTED:
                values.setdefault(reported_value[0], []).append(reported_value[1])
                units[reported_value[0]] = reported_value[2]
    return values, units, bad_lines


def measure(order: dict[str, Any]) -> Iterator[dict[str, Any]]:
    """Yield the value of each metric of the order, the number of its values, and its problem."""
    workers, log = int(order["workers"]), Path(order["log"])
    values, units, bad_lines = reported(Path(order["reported"]))
    for metric in order["metrics"]:
        metric_values = Values(metric["compute"], metric["discard"], workers)
        if metric["pattern"] is None:
            problem = _take(metric_values, values.pop(metric["name"], []))
            yield _line(metric["name"], metric_values, problem, units.get(metric["name"]))
        else:
            yield _line(metric["name"], metric_values, _take(metric_values, in_log(log, metric["pattern"])))
    for name, texts in values.items() if order["unrequested"] else ():
        metric_values = Values("last", 0, workers)
        yield _line(name, metric_values, _take(metric_values, texts), units[name]) | {"unrequested": True}
    if bad_lines and order["unrequested"]:
        yield {"bad_lines": bad_lines}


def _take(metric_values: Values, texts: Iterable[str | float | None]) -> str | None:
    """Add every value; return the problem with them."""
    strange, first_strange = 0, ""
    for text in texts:
        value = text if isinstance(text, float) else number(text)
        if value is None:
            first_strange = first_strange or repr((text if isinstance(text, str) else "")[:SHOWN_BYTES])
            strange += 1
        else:
            metric_values.add(value)
        if metric_values.full:
            return f"too_many: more than {MOST_VALUES:,} values; take their average, or match fewer"
    if strange:
        return (
            f"no_number: {strange} of {strange + metric_values.count} matches are not a single number, "
            f"such as {first_strange}"
        )
    return None


def _line(name: str, metric_values: Values, problem: str | None, unit: str | None = None) -> dict[str, Any]:
    value, why = (None, problem) if problem else metric_values.result()
    return {"name": name, "value": value, "matches": metric_values.count, "problem": why, "unit": unit}


def _reported_line(line: bytes) -> tuple[str, float, str] | None:
    try:
        report = json.loads(line)
        name, value, unit = report["metric"], report["value"], report.get("unit") or ""
        has_types = isinstance(name, str) and isinstance(unit, str) and type(value) in (int, float)
        fits = has_types and name.isprintable() and 0 < len(name) <= NAME_CHARACTERS and len(unit) <= NAME_CHARACTERS
        return (name, float(value), unit) if fits else None
    except (ValueError, KeyError, TypeError, AttributeError, OverflowError, RecursionError):
        return None


def _plain(data: bytes) -> bytes:
    if b"\x1b" in data or b"\x08" in data:
        data = _ESCAPES.sub(b"", data)
    return data.replace(b"\r", b"\n") if b"\r" in data else data


def required(pattern: str) -> str:
    """Return the longest text that every match of a valid pattern contains, or an empty text."""
    try:
        tree: Any = importlib.import_module("re._parser").parse(pattern)
        if tree.state.flags & re.IGNORECASE:
            return ""
        runs = _runs(tree, [""])
    except (ImportError, AttributeError, TypeError, ValueError, RecursionError):
        return ""
    return max(runs, key=len)


def _runs(items: Iterable[tuple[Any, Any]], runs: list[str]) -> list[str]:
    """Return the contiguous texts in a sequence of required items; the last one may be continued."""
    for operation, argument in items:
        name = str(operation)
        if name == "LITERAL":
            runs[-1] += chr(argument)
        elif name == "SUBPATTERN" and not argument[1] and not argument[2]:  # a group without flags of its own
            _runs(argument[3], runs)
        else:
            runs.append("")
    return runs


class Values:
    """Collects the values of a metric; the first `discard` of them are ignored."""

    def __init__(self, compute: str, discard: int = 0, workers: int = 1) -> None:
        """Take the name of the reduction from the matrix, and the number of workers that share a total."""
        self._compute, self._discard, self._workers = compute, discard, workers
        self._pending = array("d")
        self._sums: list[float] = []
        self._first = self._last = self._smallest = self._largest = math.nan
        self._folded = 0
        self._not_finite = 0

    @property
    def count(self) -> int:
        """The number of values that count."""
        return self._folded + len(self._pending)

    def add(self, value: float) -> None:
        """Add the next value."""
        if self._discard:
            self._discard -= 1
            return
        if not self.count:
            self._first = value
        self._last = value
        self._not_finite += not math.isfinite(value)
        self._pending.append(value)
        if len(self._pending) >= FOLD_AT and self._compute not in SHARES:
            self._fold()

    @property
    def full(self) -> bool:
        """Whether no more values can be stored."""
        return len(self._pending) >= MOST_VALUES

    def result(self) -> Result:
        """Return the reduced value, or None and the reason."""
        if not self.count:
            return None, "no_match: no line of the output matches"
        ends = {"first": self._first, "last": self._last}
        if self._compute in ends:
            value = ends[self._compute]
            return (value, None) if math.isfinite(value) else (None, f"not_finite: its {self._compute} is {value}")
        if self._not_finite:
            return None, f"not_finite: {self._not_finite} of {self.count} values are nan or infinite"
        value = self._reduced()
        return (value, None) if math.isfinite(value) else (None, "not_finite: the values are too large to be summed")

    def _reduced(self) -> float:
        if self._compute in SHARES:
            return quantile(sorted(self._pending), SHARES[self._compute])
        self._fold()
        reductions: dict[str, Callable[[], float]] = {
            "min": lambda: self._smallest,
            "max": lambda: self._largest,
            "total": lambda: _sum(self._sums) / self._workers,
            "average": lambda: _sum(self._sums) / self._folded,
            "average_aggregate": lambda: _sum(self._sums) / self._folded * self._workers,
        }
        return reductions[self._compute]()

    def _fold(self) -> None:
        if not self._pending:
            return
        self._sums = [_sum([*self._sums, *self._pending])]
        self._smallest = min(self._pending) if math.isnan(self._smallest) else min(self._smallest, *self._pending)
        self._largest = max(self._pending) if math.isnan(self._largest) else max(self._largest, *self._pending)
        self._folded += len(self._pending)
        self._pending = array("d")


def quantile(ordered: list[float], share: float) -> float:
    """Return the quantile of the sorted values, interpolated linearly between neighbours."""
    place = share * (len(ordered) - 1)
    lower_index = math.floor(place)
    upper_index = min(lower_index + 1, len(ordered) - 1)
    return ordered[lower_index] + (ordered[upper_index] - ordered[lower_index]) * (place - lower_index)


def _sum(values: list[float]) -> float:
    """Return the correctly rounded sum, or nan if it is not finite."""
    try:
        return math.fsum(values)
    except (OverflowError, ValueError):
        return math.nan


def main() -> None:
    """Process the order from the standard input."""
    for line in measure(json.load(sys.stdin)):
        if line.get("value") is not None and not math.isfinite(line["value"]):
            line |= {"value": None, "problem": "not_finite: too large a number"}
        print(json.dumps(line, allow_nan=False), flush=True)


if __name__ == "__main__":
    main()

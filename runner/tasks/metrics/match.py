"""Finding metrics in a log, in a process of its own: nothing in Python interrupts a regular expression that backtracks.

`python -P -m keras_matrix.runner.tasks.metrics.match` reads one JSON object from its standard input and prints a JSON
line for each metric as it is found, so that whoever ends it for taking too long knows at which it was. Standard library
only.

A pattern is matched against each line by itself: `^` and `$` are a line's ends. Lines end with a newline or a carriage
return, as progress bars have it; the last may have no end. Terminal sequences and backspaces are taken out before.
What is not UTF-8 is matched only by what takes any character, or all but some. A line longer than `LINE_BYTES` is cut.
"""

from __future__ import annotations

import json
import math
import re
import sys
from collections.abc import Iterable, Iterator
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import IO, Any, AnyStr, Generic

from keras_matrix.runner.tasks.metrics.literals import required
from keras_matrix.runner.tasks.metrics.values import MOST_VALUES, Values

CHUNK_BYTES = 4 << 20
LINE_BYTES = 1 << 20
MOST_UNASKED = 64
NAME_CHARACTERS = 64
SHOWN_BYTES = 60

_ESCAPES = re.compile(rb"\x1b(?:\[[0-?]*[ -/]*[@-~]|\][^\x07\x1b\n]*(?:\x07|\x1b\\)?|[@-Z\\-_])|\x08")
_NUMBER = re.compile(r"[-+]?(?:\d+\.?\d*|\.\d+)(?:[eE][-+]?\d+)?|[-+]?\b(?:nan|inf(?:inity)?)\b", re.IGNORECASE)
# What names letters beyond ASCII, or says what a letter is: matched against text, which is slower than against bytes.
_LETTERS = re.compile(r"\\[xuUN0-3]|\(\?[a-zA-Z]*u")
_WHOLE_TEXT = re.compile(r"\\[AZ]")


def chunks(file: IO[bytes]) -> Iterator[bytes]:
    """Yield the log in pieces of whole lines, without terminal sequences, every line's end a newline."""
    rest = b""
    while data := file.read(CHUNK_BYTES):
        data = rest + data
        cut = max(data.rfind(b"\n"), data.rfind(b"\r")) + 1
        if len(data) - cut > LINE_BYTES:
            cut = len(data)
        rest = data[cut:]
        if cut:
            yield _plain(data[:cut])
    if rest:
        yield _plain(rest)


@dataclass(frozen=True, slots=True)
class Search(Generic[AnyStr]):
    """A pattern, the word that all its matches hold (empty for none), and what ends a line.

    `apart` has every line looked at by itself, for a pattern that asks where its text begins or ends.
    """

    pattern: re.Pattern[AnyStr]
    word: AnyStr
    newline: AnyStr
    apart: bool

    def groups(self, text: AnyStr) -> Iterator[AnyStr | None]:
        """Yield what the pattern's group holds at each of its matches, line by line.

        Lines that cannot match are passed over at once; the line of a match is then matched by itself, since a match
        over a line's end is none.
        """
        at = 0
        while (place := self._next(text, at)) >= 0:
            begin = max(text.rfind(self.newline, at, place) + 1, at)
            end = text.find(self.newline, place)
            end = len(text) if end < 0 else end
            yield from (one.group(1) for one in self.pattern.finditer(text[begin:end]))
            at = end + 1
            if at > len(text):
                return

    def _next(self, text: AnyStr, at: int) -> int:
        if self.apart:
            return at
        if self.word:
            return text.find(self.word, at)
        match = self.pattern.search(text, at)
        return match.start() if match else -1


def in_log(path: Path, pattern: str) -> Iterator[str | None]:
    """Yield what the pattern's group holds at each match in a log of any size."""
    word, apart = required(pattern), bool(_WHOLE_TEXT.search(pattern))
    with path.open("rb") as file:
        if not pattern.isascii() or _LETTERS.search(pattern):
            search = Search(re.compile(pattern, re.MULTILINE), word, "\n", apart)
            for chunk in chunks(file):
                yield from search.groups(chunk.decode("utf-8", errors="replace"))
            return
        quick = Search(re.compile(pattern.encode(), re.MULTILINE), word.encode(), b"\n", apart)
        for chunk in chunks(file):
            for group in quick.groups(chunk):
                yield None if group is None else group.decode("utf-8", errors="replace")


def number(text: str | None) -> float | None:
    """Return the one number in a text, with its sign and exponent, nan and inf too; None for none or several."""
    if text is None:
        return None
    with suppress(ValueError):
        return float(text)
    several = _NUMBER.findall(text)
    return float(several[0]) if len(several) == 1 else None


def reported(path: Path) -> tuple[dict[str, list[float]], dict[str, str], int]:
    """Return what a command reported over its pipe: values and unit of each metric, and how many lines were none."""
    values: dict[str, list[float]] = {}
    units: dict[str, str] = {}
    bad = 0
    if not path.is_file():
        return values, units, bad
    with path.open("rb") as file:
        for line in file:
            read = _reported_line(line)
            if read is None:
                bad += bool(line.strip())
            elif read[0] in values or len(values) < MOST_UNASKED:
                values.setdefault(read[0], []).append(read[1])
                units[read[0]] = read[2]
    return values, units, bad


def measure(order: dict[str, Any]) -> Iterator[dict[str, Any]]:
    """Yield, for each metric of the order, its value, how many values it was made of, and what was wrong."""
    workers, log = int(order["workers"]), Path(order["log"])
    values, units, bad = reported(Path(order["reported"]))
    for metric in order["metrics"]:
        kept = Values(metric["compute"], metric["discard"], workers)
        if metric["pattern"] is None:
            problem = _take(kept, values.pop(metric["name"], []))
            yield _line(metric["name"], kept, problem, units.get(metric["name"]))
        else:
            yield _line(metric["name"], kept, _take(kept, in_log(log, metric["pattern"])))
    for name, own in values.items() if order["unasked"] else ():
        kept = Values("last", 0, workers)
        yield _line(name, kept, _take(kept, own), units[name]) | {"unasked": True}
    if bad and order["unasked"]:
        yield {"bad_lines": bad}


def _take(kept: Values, texts: Iterable[str | float | None]) -> str | None:
    """Add every value; return what is wrong with them."""
    strange, first = 0, ""
    for text in texts:
        value = text if isinstance(text, float) else number(text)
        if value is None:
            first = first or repr((text if isinstance(text, str) else "")[:SHOWN_BYTES])
            strange += 1
        else:
            kept.add(value)
        if kept.full:
            return f"too_many: more than {MOST_VALUES:,} values; take their average, or match fewer"
    if strange:
        return f"no_number: {strange} of {strange + kept.count} matches hold no single number, such as {first}"
    return None


def _line(name: str, kept: Values, problem: str | None, unit: str | None = None) -> dict[str, Any]:
    value, why = (None, problem) if problem else kept.result()
    return {"name": name, "value": value, "matches": kept.count, "problem": why, "unit": unit}


def _reported_line(line: bytes) -> tuple[str, float, str] | None:
    try:
        told = json.loads(line)
        name, value, unit = told["metric"], told["value"], told.get("unit") or ""
        known = isinstance(name, str) and isinstance(unit, str) and type(value) in (int, float)
        fits = known and name.isprintable() and 0 < len(name) <= NAME_CHARACTERS and len(unit) <= NAME_CHARACTERS
        return (name, float(value), unit) if fits else None
    except (ValueError, KeyError, TypeError, AttributeError, OverflowError, RecursionError):
        return None


def _plain(data: bytes) -> bytes:
    if b"\x1b" in data or b"\x08" in data:
        data = _ESCAPES.sub(b"", data)
    return data.replace(b"\r", b"\n") if b"\r" in data else data


def main() -> None:
    """Answer the order on the standard input."""
    for line in measure(json.load(sys.stdin)):
        if line.get("value") is not None and not math.isfinite(line["value"]):
            line |= {"value": None, "problem": "not_finite: too large a number"}
        print(json.dumps(line, allow_nan=False), flush=True)


if __name__ == "__main__":
    main()

"""The one place of text: numbers with their unit, intervals, percentages, bytes, moments, and text from outside.

One notation each, in the terminal, a page, a notification and a document: three significant digits, `4.21 ms`; an
interval in brackets behind its centre, in the same unit, `1.66x [1.48 1.86]`; a percentage, `5.2 %`; bytes in powers
of 1024, `1.40 GiB`. `None`, which is not measured, and what is not finite become `NOTHING`, never 0.

The text of an exception, a file name, the output of a cell, a user's name, a value of the environment and a record of
somebody else may contain half of a surrogate pair, which no file and no terminal can encode, a terminal's control
sequences, or characters that reverse the order of what is read. `printable` is the one function that replaces them.
It knows nothing of the markup of an output: a page, a console and Markdown escape its result themselves.
"""

from __future__ import annotations

import math
import re
from collections.abc import Iterable
from typing import Any, NamedTuple

NOTHING = "-"
LONGEST_NAME = 64  # of which a near one is looked for

# ECMA-48 control sequences (CSI, OSC and two-byte escapes), and what else only moves a terminal's cursor or rings.
_SEQUENCE = re.compile(r"\x1b(?:\[[0-?]*[ -/]*[@-~]|\][^\x07\x1b]*(?:\x07|\x1b\\)?|[@-Z\\-_])|[\x07\x08]")
_LINE_END = re.compile(r"\r\n|[\r\x0b\x0c]")
_ANY_LINE_END = re.compile(r"\r\n|[\n\r\x0b\x0c\x1c-\x1e\x85\u2028\u2029]")
# Control characters but tab and newline; the marks, embeddings and isolates of bidirectional text; characters without
# width or meaning that make two names look equal (not the joiners of scripts and emoji); surrogates.
_UNPRINTABLE = re.compile(
    "[\\x00-\\x08\\x0b-\\x1f\\x7f-\\x9f\\xad\\u061c\\u180e\\u200b\\u200e\\u200f\\u2028-\\u202e\\u2060-\\u206f\\ufeff"
    "\\ufff9-\\ufffb\\U000e0000-\\U000e007f\\ud800-\\udfff]"
)


def printable(text: str, newline: str = "\n") -> str:
    r"""Return a text that every output can show.

    Control sequences of a terminal are removed, and a lone carriage return ends a line. `newline` replaces the ends of
    lines: with " " the text is one line, without tabs. Any other unprintable character becomes its escape sequence:
    `\ud800` is half of a surrogate pair, `\u202e` a change of direction, `\xe9` a byte of a file name that is not
    UTF-8. All but the last are the same value in a JSON document.
    """
    if text.isprintable() or (newline == "\n" and not _UNPRINTABLE.search(text)):
        return text
    plain_text = _SEQUENCE.sub("", text)
    plain_text = (
        _LINE_END.sub("\n", plain_text)
        if newline == "\n"
        else _ANY_LINE_END.sub(newline, plain_text).replace("\t", " ")
    )
    return _UNPRINTABLE.sub(_escape, plain_text)


def _escape(match: re.Match[str]) -> str:
    code = ord(match.group())
    if 0xDC80 <= code <= 0xDCFF:  # how Python decodes a byte that is not UTF-8: surrogateescape
        return f"\\x{code - 0xDC00:02x}"
    units = match.group().encode("utf-16-be", "surrogatepass")
    return "".join(f"\\u{units[i]:02x}{units[i + 1]:02x}" for i in range(0, len(units), 2))


def escaped(text: str, most: int | None = 120) -> str:
    """Return a text as it was received, for a message: one line of at most `most` characters, nothing removed."""
    safe = text if text.isprintable() else ascii(text)[1:-1]
    return safe if most is None or len(safe) <= most else safe[: most - 3] + "..."


def near(word: str, names: Iterable[str]) -> str:
    """Return `; did you mean NAME?`, or an empty text if no name is similar."""
    import difflib  # only after a mistake: `--help` stays fast

    matches = difflib.get_close_matches(word, list(names), n=1, cutoff=0.6) if len(word) <= LONGEST_NAME else []
    return f"; did you mean {matches[0]}?" if matches else ""


def printable_values(value: Any) -> Any:
    """Return JSON values with every text and every key made printable."""
    if isinstance(value, str):
        return printable(value)
    if isinstance(value, dict):
        return {printable(key): printable_values(item) for key, item in value.items()}
    return [printable_values(item) for item in value] if isinstance(value, list) else value


class Unit(NamedTuple):
    """A unit's name and its size in the base unit (seconds or bytes)."""

    name: str
    size: float


PLAIN = Unit("", 1.0)
SECOND, MILLISECOND = Unit("s", 1.0), Unit("ms", 1e-3)
TIME_UNITS = (SECOND, MILLISECOND, Unit("us", 1e-6), Unit("ns", 1e-9))
KIB, MIB, GIB, TIB = 2**10, 2**20, 2**30, 2**40
MEBIBYTE = Unit("MiB", MIB)
MEMORY_UNITS = (Unit("TiB", TIB), Unit("GiB", GIB), MEBIBYTE, Unit("KiB", KIB), Unit("B", 1.0))
COUNT_UNITS = (Unit("T", 1e12), Unit("G", 1e9), Unit("M", 1e6), Unit("k", 1e3))
MILLIJOULE = Unit("mJ/sample", 1e-3)
PERCENT = Unit("%", 0.01)
DIGITS = 3
MOST_PERCENT_DECIMALS = 6
# Per cent: all, the most below it that is told apart, with its decimals, and what a sum of shares may miss.
ALL, NEARLY_ALL, NEARLY_DECIMALS, ROUNDING = 100.0, 99.999, 3, 1e-9


def unit_for(values: Iterable[float], units: tuple[Unit, ...] = TIME_UNITS) -> Unit:
    """Return the largest unit in which the largest of the values is at least 1."""
    largest_value = max((abs(value) for value in values), default=0.0)
    return next((unit for unit in units if largest_value >= unit.size), units[-1 if largest_value > 0 else 0])


def number(value: float | None, unit: float = 1.0, *, digits: int = DIGITS) -> str:
    """Return a value in units of `unit`, with so many significant digits and no exponent; whole from 100 on."""
    if value is None or not math.isfinite(value / unit):
        return NOTHING
    return f"{value / unit:,.{_decimals(value / unit, digits)}f}" if value else "0"


def _decimals(value: float, digits: int = DIGITS) -> int:
    if value == 0:
        return 0
    places = digits - 1 - math.floor(math.log10(abs(value)))
    # Rounding may carry: 9.996 becomes 10.0, with one decimal less.
    return max(0, digits - 1 - math.floor(math.log10(abs(round(value, places) or value))))


def integer(value: int | None) -> str:
    """Return a whole number with thousands separators."""
    return NOTHING if value is None else f"{value:,}"


def count(value: float | None) -> str:
    """Return a large count such as `25.6 M`."""
    unit = next((unit for unit in COUNT_UNITS if value is not None and value >= unit.size), None)
    return quantity(value, unit) if unit else NOTHING if value is None else str(value)


def quantity(value: float | None, unit: Unit, low: float | None = None, high: float | None = None) -> str:
    """Return a value with its unit and, if it is known, its interval in that unit: `4.21 ms [4.10 4.33]`."""
    if value is None or not math.isfinite(value) or unit.name == PERCENT.name:
        return percentage(value, low, high)
    bounds = interval(low, high, value, unit.size)
    return f"{number(value, unit.size)} {unit.name}".rstrip() + (f" {bounds}" if bounds else "")


def seconds(value: float | None, low: float | None = None, high: float | None = None) -> str:
    """Return a time in a suitable unit: `4.21 ms`, or `4.21 ms [4.10 4.33]`."""
    return NOTHING if value is None else quantity(value, unit_for([value]), low, high)


def amount(value: float | None, unit: str, low: float | None = None, high: float | None = None) -> str:
    """Return a figure with the name of its unit; that of seconds is chosen: `825 samples/s`, `4.21 ms`."""
    return seconds(value, low, high) if unit == SECOND.name else quantity(value, Unit(unit, 1.0), low, high)


def bytes_text(value: float | None) -> str:
    """Return a number of bytes in a suitable unit: `1.40 GiB`, `812 MiB`."""
    return NOTHING if value is None else quantity(value, unit_for([max(abs(value), 1.0)], MEMORY_UNITS))


def interval(low: float | None, high: float | None, centre: float | None = None, unit: float = 1.0) -> str | None:
    """Return an interval without its unit, `[1.48 1.86]`, with the decimals of the centre; None without one."""
    if low is None or high is None:
        return None
    places = _decimals((max(abs(low), abs(high)) if centre is None else centre) / unit)
    return _bounds(low / unit, high / unit, places)


def _bounds(low: float, high: float, places: int) -> str:
    return f"[{low:z,.{places}f} {high:z,.{places}f}]"


def interval_text(low: float, high: float, unit: str) -> str:
    """Return an interval that stands alone, with its unit: `[4.10 4.33] ms`."""
    chosen_unit = unit_for([low, high]) if unit == SECOND.name else Unit(unit, 1.0)
    return f"{interval(low, high, unit=chosen_unit.size)} {chosen_unit.name}".rstrip()


def ratio_text(ratio: float, low: float | None = None, high: float | None = None) -> str:
    """Return a ratio with its interval, if it has one: `1.66x [1.48 1.86]`."""
    return f"{ratio:,.2f}x" + (f" {_bounds(low, high, 2)}" if low is not None and high is not None else "")


def percentage(
    share: float | None, low: float | None = None, high: float | None = None, *, signed: bool = False
) -> str:
    """Return a share as a percentage, with its interval if it has one: `5.2 %`, `5.2 % [4.9 5.5]`.

    It has one decimal and, below 1 %, two significant digits in at most six decimals. What is less than 100 % is not
    rounded to it: `99.97 %`, `> 99.999 %`.
    """
    if share is None or not math.isfinite(share):
        return NOTHING
    percent = share / PERCENT.size
    bounds = () if low is None or high is None else (low / PERCENT.size, high / PERCENT.size)
    places = _percent_decimals(percent, *bounds)
    prefix = "> " if _is_rounded_to_all(percent, places) else ""
    text = f"{prefix}{NEARLY_ALL if prefix else percent:{'+' if signed else ''}z,.{places}f} %"
    return f"{text} {_bounds(*bounds, places)}" if bounds else text


def percentage_interval(low: float | None, high: float | None) -> str:
    """Return an interval of shares that stands alone: `[4.9 5.5] %`."""
    if low is None or high is None:
        return NOTHING
    bounds = low / PERCENT.size, high / PERCENT.size
    return f"{_bounds(*bounds, _percent_decimals(*bounds))} %"


def _percent_decimals(*percents: float) -> int:
    """Return the decimals of a percentage and its interval, of which the largest decides."""
    largest_percent = max(map(abs, percents))
    if round(largest_percent, MOST_PERCENT_DECIMALS) == 0:
        return 1
    if largest_percent < 1:
        return min(max(1, _decimals(largest_percent, 2)), MOST_PERCENT_DECIMALS)
    enough_places = (
        places for places in range(1, NEARLY_DECIMALS) if not any(_is_rounded_to_all(p, places) for p in percents)
    )
    return next(enough_places, NEARLY_DECIMALS)


def _is_rounded_to_all(percent: float, places: int) -> bool:
    """Return whether rounding makes 100 % of less; a sum of shares may miss it in its last bits."""
    return percent < ALL - ROUNDING and round(percent, places) >= ALL


def percent_change(ratio: float | None, low: float | None = None, high: float | None = None) -> str:
    """Return a ratio as a change in percent: `+5.2 %`, `-3.1 % [-4.0 -2.2]`."""
    low_change, high_change = (None if bound is None else bound - 1 for bound in (low, high))
    return percentage(None if ratio is None else ratio - 1, low_change, high_change, signed=True)


def duration(value: float) -> str:
    """Return a duration in whole minutes and seconds, such as `3 min 05 s`."""
    whole_seconds = round(value)
    if whole_seconds < 60:
        return f"{whole_seconds} s"
    if whole_seconds < 3600:
        return f"{whole_seconds // 60} min {whole_seconds % 60:02d} s"
    return f"{whole_seconds // 3600} h {whole_seconds % 3600 // 60:02d} min"


def plural(count: int, singular: str, many: str | None = None) -> str:
    """Return `1 repeat`, `2 repeats`."""
    return f"{count:,} {singular if count == 1 else many or singular + 's'}"


def moment(label: object) -> str:
    """Return an ISO 8601 time as `21 November 2025, 05:25 UTC`; any other text unchanged."""
    from datetime import UTC, datetime

    try:
        when = datetime.fromisoformat(str(label))
    except ValueError:
        return str(label)
    when = when.replace(tzinfo=UTC) if when.tzinfo is None else when.astimezone(UTC)
    return f"{when.day} {when:%B %Y, %H:%M} UTC"

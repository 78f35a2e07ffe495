"""Text that came from outside, made fit for every output.

The text of an exception, a file name, the output of a cell, a user's name, a value of the environment and a record of
somebody else may contain half of a surrogate pair, which no file and no terminal can encode, a terminal's control
sequences, or characters that reverse the order of what is read. `printable` is the one function that replaces them.
It knows nothing of the markup of an output: a page, a console and Markdown escape its result themselves.
"""

from __future__ import annotations

import re
from collections.abc import Iterable
from typing import Any

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
    plain = _SEQUENCE.sub("", text)
    plain = _LINE_END.sub("\n", plain) if newline == "\n" else _ANY_LINE_END.sub(newline, plain).replace("\t", " ")
    return _UNPRINTABLE.sub(_escape, plain)


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

    found = difflib.get_close_matches(word, list(names), n=1, cutoff=0.6) if len(word) <= LONGEST_NAME else []
    return f"; did you mean {found[0]}?" if found else ""


def printable_values(value: Any) -> Any:
    """Return JSON values with every text and every key made printable."""
    if isinstance(value, str):
        return printable(value)
    if isinstance(value, dict):
        return {printable(key): printable_values(item) for key, item in value.items()}
    return [printable_values(item) for item in value] if isinstance(value, list) else value


def duration(value: float) -> str:
    """Return a duration in whole minutes and seconds, such as `3 min 05 s`."""
    whole = round(value)
    if whole < 60:
        return f"{whole} s"
    if whole < 3600:
        return f"{whole // 60} min {whole % 60:02d} s"
    return f"{whole // 3600} h {whole % 3600 // 60:02d} min"

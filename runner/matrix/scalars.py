"""The values of a matrix as they are written: read from a file or a flag, and as text.

Values follow a subset of the core schema of YAML 1.2: `true` and `false` are booleans; decimal integers and floats
(`1e-3` included) are numbers; an empty value, `~` and `null` are null; everything else is text. So `no`, `on`, `012`,
`0x10` and `16:30` are text, and a rule for a number refuses them.
"""

from __future__ import annotations

import math
import re

from keras_matrix.records.settings import Scalar

_INTEGER = re.compile(r"[-+]?(?:0|[1-9][0-9]{0,17})")
_FLOAT = re.compile(r"[-+]?(?:(?:0|[1-9][0-9]*)(?:\.[0-9]*)?|\.[0-9]+)(?:[eE][-+]?[0-9]+)?")
_BOOLEANS = {"true": True, "True": True, "TRUE": True, "false": False, "False": False, "FALSE": False}
_NULLS = frozenset({"", "~", "null", "Null", "NULL"})


def resolve(text: str) -> Scalar | None:
    """Return the value of an unquoted scalar."""
    if text in _NULLS:
        return None
    if text in _BOOLEANS:
        return _BOOLEANS[text]
    if _INTEGER.fullmatch(text):
        return int(text)
    if _FLOAT.fullmatch(text) and not text.lstrip("+-").isdigit():
        number = float(text)
        return number if math.isfinite(number) else text
    return text


def say(value: object) -> str:
    """Return a received value for a message: short, printable, text in quotes."""
    if isinstance(value, bool):
        return "true" if value else "false"
    if value is None:
        return "nothing"
    if isinstance(value, (list, dict)):
        kind = "list" if isinstance(value, list) else "mapping"
        return f"a {kind} of {len(value)}" if value else f"an empty {kind}"
    text = ascii(value) if isinstance(value, str) else repr(value)
    return text if len(text) <= 60 else text[:57] + "..."


def value_text(value: Scalar) -> str:
    """Return a value as it is written in a matrix file."""
    return value if isinstance(value, str) else say(value)

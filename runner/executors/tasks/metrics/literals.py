"""Finds a text that every match of a pattern contains, so that a plain text search can select the lines to match.

It reads the parse tree of Python's `re`, whose form is not guaranteed: for another form no text is found, and the
pattern is searched in all lines, which is slower and finds the same.
"""

from __future__ import annotations

import importlib
import re
from collections.abc import Iterable
from typing import Any


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

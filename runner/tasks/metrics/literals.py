"""The words that every match of a pattern holds: to find the few lines worth matching at the speed of memory.

It reads the parse tree of Python's own `re`, whose shape is not promised: where it is another than is known here,
no word is found, and the pattern is searched for everywhere, which is slower and finds the same.
"""

from __future__ import annotations

import importlib
import re
from collections.abc import Iterable
from typing import Any


def required(pattern: str) -> str:
    """Return the longest text that stands in every match, empty where none is known. `pattern` is a valid one."""
    try:
        tree: Any = importlib.import_module("re._parser").parse(pattern)
        if tree.state.flags & re.IGNORECASE:
            return ""
        runs = _runs(tree, [""])
    except (ImportError, AttributeError, TypeError, ValueError, RecursionError):
        return ""
    return max(runs, key=len)


def _runs(items: Iterable[tuple[Any, Any]], runs: list[str]) -> list[str]:
    """Return the texts that stand in a row of what must all match; the last may still go on."""
    for operation, argument in items:
        name = str(operation)
        if name == "LITERAL":
            runs[-1] += chr(argument)
        elif name == "SUBPATTERN" and not argument[1] and not argument[2]:  # a group without flags of its own
            _runs(argument[3], runs)
        else:
            runs.append("")
    return runs

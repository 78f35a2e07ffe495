"""The exit codes of `runner`: one table, which the help prints and the commands use; see docs/troubleshooting.md.

An error ends a command with the code of its class in `runner.errors`. A verdict ends it with that of `VERDICTS`.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import NamedTuple

OK, NOT_OK, BAD_INPUT, INFRASTRUCTURE, INTERRUPTED = 0, 1, 2, 3, 130
OPPOSITE, UNDECIDED = 4, 5


class ExitCode(NamedTuple):
    """A code, what it means, and the command that it belongs to; empty for every command."""

    code: int
    meaning: str
    command: str = ""


TABLE = (
    ExitCode(OK, "all cells ok"),
    ExitCode(NOT_OK, "some cell not ok"),
    ExitCode(BAD_INPUT, "bad input"),
    ExitCode(INFRASTRUCTURE, "infrastructure"),
    ExitCode(INTERRUPTED, "interrupted"),
    ExitCode(OPPOSITE, "regressed", "gate"),
    ExitCode(UNDECIDED, "undecided", "gate"),
    ExitCode(OPPOSITE, "differs", "reproduce"),
    ExitCode(UNDECIDED, "undecided", "reproduce"),
    ExitCode(OPPOSITE, "the bad end is not slower", "bisect"),
    ExitCode(UNDECIDED, "undecided", "bisect"),
    ExitCode(UNDECIDED, "undecided", "tune"),
)
# The code of each verdict of a command, by the verdict's value.
VERDICTS: Mapping[str, Mapping[str, int]] = {
    "gate": {"no worse": OK, "not measured": NOT_OK, "regressed": OPPOSITE, "undecided": UNDECIDED},
    "reproduce": {"reproduced": OK, "not measured": NOT_OK, "differs": OPPOSITE, "undecided": UNDECIDED},
    "bisect": {
        "found": OK,
        "not measured": NOT_OK,
        "the bad end is not slower": OPPOSITE,
        "the ends are undecided": UNDECIDED,
        "within a range": UNDECIDED,
        "not confirmed": UNDECIDED,
    },
    "tune": {"decided": OK, "all candidates failed": NOT_OK, "undecided": UNDECIDED},
}


def help_text() -> str:
    """Return the table as the help prints it: the codes of every command, then those of single ones."""
    texts = {
        command: ", ".join(f"{row.code} {row.meaning}" for row in TABLE if row.command == command)
        for command in ("", *VERDICTS)
    }
    gate, reproduce, bisect, tune = (f"of {command}: {texts[command]}" for command in VERDICTS)
    return f"exit codes: {texts['']};\n{gate}; {reproduce};\n{bisect}; {tune}"

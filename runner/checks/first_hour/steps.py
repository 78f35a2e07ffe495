"""The steps of a first hour: what each expects, what came of it, and the command's exit code. Pure."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from enum import StrEnum
from typing import Any


class Outcome(StrEnum):
    """What came of a step."""

    OK = "ok"
    FAILED = "failed"
    NOT_RUN = "not run"


@dataclass(frozen=True, slots=True)
class Found:
    """What a step found: one line, what else is worth a line, and its figures."""

    outcome: Outcome
    summary: str
    details: tuple[str, ...] = ()
    figures: dict[str, Any] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class Step:
    """One step: its name, what is expected of it, and what runs it. Where an `essential` one fails, none follows."""

    name: str
    expected: str
    run: Callable[[], Found]
    essential: bool = False


@dataclass(frozen=True, slots=True)
class Done:
    """A step that was run, how long it took and, where a command ended it, that command's exit code."""

    name: str
    expected: str
    found: Found
    duration_s: float
    exit_code: int = 1


def exit_code(done: Sequence[Done]) -> int:
    """Return 0 where all went as expected; 2 or 3 where an essential command ended so; else 1."""
    failed = [one for one in done if one.found.outcome is Outcome.FAILED]
    return failed[0].exit_code if failed else 0

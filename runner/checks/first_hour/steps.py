"""The steps of a first hour with their expectations and results, and the command's exit code. Pure."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from enum import StrEnum
from typing import Any


class StepOutcome(StrEnum):
    """The outcome of a step."""

    OK = "ok"
    FAILED = "failed"
    NOT_RUN = "not run"


@dataclass(frozen=True, slots=True)
class StepResult:
    """The result of a step: a summary line, further lines, and its figures."""

    outcome: StepOutcome
    summary: str
    details: tuple[str, ...] = ()
    figures: dict[str, Any] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class CheckStep:
    """A step: its name, the expectation and its function. After a failed `essential` step, the others are skipped."""

    name: str
    expected: str
    run: Callable[[], StepResult]
    essential: bool = False


@dataclass(frozen=True, slots=True)
class Done:
    """A completed step, its duration and, if a command ended it, the exit code of that command."""

    name: str
    expected: str
    found: StepResult
    duration_s: float
    exit_code: int = 1


def exit_code(done: Sequence[Done]) -> int:
    """Return 0 if all steps were as expected; 2 or 3 if an essential command exited so; else 1."""
    failed = [one for one in done if one.found.outcome is StepOutcome.FAILED]
    return failed[0].exit_code if failed else 0

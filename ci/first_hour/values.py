"""What a first hour on BigQuery is made of: steps, what came of each, and what a query cost. Pure."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from enum import StrEnum
from typing import Any

from uploader.price import cost_usd


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


@dataclass(frozen=True, slots=True)
class QueryCost:
    """What one query of the dashboards read. Bytes are None where the service does not report them."""

    name: str
    rows: int
    duration_s: float
    dry_run_bytes: int | None
    processed_bytes: int | None
    billed_bytes: int | None

    @property
    def cost_usd(self) -> float | None:
        """Its price on demand."""
        return price_usd(self.billed_bytes)

    @property
    def within_estimate(self) -> bool:
        """Whether it read no more than its dry run said; where either is not reported nothing is known against it."""
        if self.dry_run_bytes is None or self.processed_bytes is None:
            return True
        return self.processed_bytes <= self.dry_run_bytes


def price_usd(billed_bytes: int | None) -> float | None:
    """Return what so many bytes cost on demand."""
    return None if billed_bytes is None else cost_usd(billed_bytes)


def days_text(days: float) -> str:
    """Return a number of days for a reader."""
    return f"{days:g} day" if days == 1 else f"{days:g} days"


def exit_code(done: list[Done]) -> int:
    """Return 0 where all went as expected; 2 or 3 where an essential command ended so; else 1."""
    failed = [one for one in done if one.found.outcome is Outcome.FAILED]
    return failed[0].exit_code if failed else 0

"""What a service could not run of a matrix, as `run.json` keeps it.

Promise: `read` takes whatever a `run.json` holds; what is not such a list gives none.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

KEY = "left_out"
MOST_LISTED = 20


@dataclass(frozen=True, slots=True)
class LeftOut:
    """A part of a matrix that is not measured: `place` is the entry's file and line, `reason` also says what to do."""

    place: str
    workload: str
    reason: str

    def __str__(self) -> str:
        return f"{self.place}: {self.workload}: {self.reason}"


def read(about: Mapping[str, object]) -> tuple[LeftOut, ...]:
    """Return what a run's `run.json` lists as left out."""
    listed = about.get(KEY)
    items = [item for item in listed if isinstance(item, Mapping)] if isinstance(listed, list) else []
    return tuple(LeftOut(*(str(item.get(name, "")) for name in ("place", "workload", "reason"))) for item in items)


def lines(left_out: Sequence[LeftOut]) -> list[str]:
    """Return a heading and a line for each, of many the first ones; nothing where nothing was left out."""
    return ["left out, since this service cannot run it:", *listed(left_out)] if left_out else []


def listed(left_out: Sequence[LeftOut]) -> list[str]:
    """Return each as an indented line, of many the first ones."""
    more = len(left_out) - MOST_LISTED
    return [*(f"  {one}" for one in left_out[:MOST_LISTED]), *([f"  and {more} more"] if more > 0 else [])]

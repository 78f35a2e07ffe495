"""The entries of a matrix that a service could not run, as listed in `run.json`.

`read` accepts any `run.json`: one without a valid list gives no entries.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

KEY = "left_out"
MOST_LISTED = 20


@dataclass(frozen=True, slots=True)
class LeftOut:
    """An entry that is not measured: `place` is its file and line, `reason` says why and what to do."""

    place: str
    workload: str
    reason: str

    def __str__(self) -> str:
        return f"{self.place}: {self.workload}: {self.reason}"


def read(about: Mapping[str, object]) -> tuple[LeftOut, ...]:
    """Return the entries that a run's `run.json` lists as left out."""
    listed_items = about.get(KEY)
    items = [item for item in listed_items if isinstance(item, Mapping)] if isinstance(listed_items, list) else []
    return tuple(LeftOut(*(str(item.get(name, "")) for name in ("place", "workload", "reason"))) for item in items)


def lines(left_out: Sequence[LeftOut]) -> list[str]:
    """Return a heading and the lines of `listed`; no line if nothing was left out."""
    return ["left out, since this service cannot run it:", *listed(left_out)] if left_out else []


def listed(left_out: Sequence[LeftOut]) -> list[str]:
    """Return an indented line for each entry, at most `MOST_LISTED`, and the number of further ones."""
    unlisted_count = len(left_out) - MOST_LISTED
    return [
        *(f"  {entry}" for entry in left_out[:MOST_LISTED]),
        *([f"  and {unlisted_count} more"] if unlisted_count > 0 else []),
    ]

"""A trace as it is shown: the device's time by operation, layer, phase and kind of work, of a step. Pure.

Terminal, report and the page of a trace render it; what else they show are figures of the summary, which is also the
JSON document.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from keras_matrix.records.traces.table import TimeShare, TraceSummary


@dataclass(frozen=True, slots=True)
class StepPart:
    """A part of a step, or of a trace without steps: its share of the device's time, that time, and its operations.

    `name` is None for what is not reported; `others` counts the parts that are summed, 0 for one alone.
    """

    name: str | None
    share: float
    time_s: float
    count: float
    others: int = 0


@dataclass(frozen=True, slots=True)
class PartTable:
    """The parts by something such as operation, the largest first; `unit` is " a step", empty without steps."""

    by: str
    unit: str
    parts: tuple[StepPart, ...]
    rest: StepPart | None


def part_tables(summary: TraceSummary, most: int) -> list[PartTable]:
    """Return the tables of a trace, each with the largest parts and the sum of the rest; by kind, if it has several."""
    kind_tables = {"kind": summary.by_kind} if len(summary.by_kind) > 1 else {}
    tables = {"operation": summary.by_operation, "layer": summary.by_layer, "phase": summary.by_phase, **kind_tables}
    return [
        PartTable(
            grouped_by,
            " a step" if summary.steps else "",
            tuple(_part(part.name, [part], summary) for part in shares[:most]),
            _part(None, shares[most:], summary, other_count=len(shares) - most) if len(shares) > most else None,
        )
        for grouped_by, shares in tables.items()
    ]


def _part(name: str | None, shares: Sequence[TimeShare], summary: TraceSummary, other_count: int = 0) -> StepPart:
    share, time_s, count = (sum(getattr(share, figure) for share in shares) for figure in ("share", "time_s", "count"))
    steps = summary.steps or 1
    return StepPart(name, share, time_s / steps, count / steps, other_count)

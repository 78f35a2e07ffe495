"""What a kind of difference is: a group of rows with a title; and texts that several kinds share."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from keras_matrix.analysis.explain.alignment import Row
from keras_matrix.analysis.explain.parts import WORKING
from keras_matrix.analysis.whatif.cost.kinds import OperationKind, kind_of
from keras_matrix.records.schema import Record
from keras_matrix.records.text import seconds

MOST_NAMES = 3
LONGEST_NAME = 60
_FUSION = re.compile(r"fusion \((.*)\)")
LEAST_NAMED = 0.02  # of the change of all


@dataclass(frozen=True, slots=True)
class Pair:
    """Both sides: a measured record of each, and all rows."""

    base: Record
    new: Record
    rows: tuple[Row, ...]

    @property
    def same_backend(self) -> bool:
        """Whether both sides have one backend, so that their operations can be compared."""
        return self.base.settings.backend == self.new.settings.backend


@dataclass(frozen=True, slots=True)
class Claim:
    """The rows that a kind explains together, under a title; `details` are further lines."""

    title: str
    rows: tuple[Row, ...]
    details: tuple[str, ...] = ()


def total_s(rows: Iterable[Row]) -> float:
    """Return by how much these rows became longer, in seconds."""
    return sum(row.change_s for row in rows)


def kind_of_row(row: Row) -> OperationKind:
    """Return the kind of a row's operation; of XLA's fusions, that of the operation that gives the fusion its name."""
    op = row.key.op or ""
    named = _FUSION.fullmatch(op)
    return kind_of(named[1] if named else op)


def both_times(base_s: float, new_s: float) -> str:
    """Return two times as `1.20 ms -> 3.40 ms`."""
    return f"{seconds(base_s)} -> {seconds(new_s)}"


def counted(rows: Iterable[Row]) -> str:
    """Return how often these operations run in a step: `2 -> 4 a step`, or `2 a step`."""
    pairs = [row.counts for row in rows]
    base, new = (f"{sum(counts):.3g}" for counts in zip(*pairs, strict=True))
    return f"{base} -> {new} a step" if base != new else f"{base} a step"


def named(rows: Sequence[Row]) -> str:
    """Return the names of the operations that changed most."""
    changes: Counter[str] = Counter()
    for row in rows:
        if row.key.op:
            changes[_short(row.key.op)] += abs(row.change_s)  # type: ignore[assignment]
    names = [name for name, change in changes.most_common() if change >= LEAST_NAMED * changes.total()]
    return ", ".join(names[:MOST_NAMES]) + (", ..." if len(names) > MOST_NAMES else "")


def by_phase(rows: Sequence[Row]) -> tuple[str, ...]:
    """Return a line with the time of each phase on both sides."""
    phases = dict.fromkeys(row.key.phase for row in rows)
    if set(phases) == {None}:
        return ()
    texts = []
    for phase in phases:
        own = [row for row in rows if row.key.phase == phase]
        times = both_times(sum(row.base_s for row in own), sum(row.new_s for row in own))
        texts.append(f"{phase or 'phase not reported'} {times}")
    return ("; ".join(texts),)


def is_work(row: Row) -> bool:
    """Return whether a row is an operation, not a wait or a gap."""
    return row.key.place in WORKING


def _short(name: str) -> str:
    return name if len(name) <= LONGEST_NAME else f"{name[: LONGEST_NAME - 3]}..."

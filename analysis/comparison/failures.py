"""Cells that fail in part: in how many of their repeats, in which way, and whether new does so more often than base.

What is left of a cell some of whose processes crash is a sample of the crash's choosing: those that were quick, or used
little memory. Its ratio may stand, but nothing has passed by it.

Promise: infrastructure is no fault of the cell and is not counted. It does not know why a process failed, nor whether
one failure more is chance: a gate has what did not run not pass.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass

from keras_matrix.records.schema import MEASURED, Record, Status


@dataclass(frozen=True, slots=True)
class PartialFailure:
    """One way in which a side failed: in `count` of its `of` repeats, with the reason of the first of them."""

    side: str
    status: Status
    count: int
    of: int
    reason: str | None

    def __str__(self) -> str:
        """Return it in words, without the reason."""
        return f"{self.side}: {self.status} in {self.count} of {self.of} repeats"


def partial_failures(
    sides: Mapping[str, Sequence[Record]], repeats: Collection[int] | None = None
) -> list[PartialFailure]:
    """Return every way in which these sides failed; `repeats` are those that count, None for all.

    The records are the attempts that count, one a repeat.
    """
    found = []
    for side, records in sides.items():
        tried = [r for r in records if r.status is not Status.INFRA and (repeats is None or r.repeat in repeats)]
        reasons = {record.status: record.reason for record in reversed(tried)}
        counts = Counter(record.status for record in tried if record.status not in MEASURED)
        found += [PartialFailure(side, status, n, len(tried), reasons[status]) for status, n in sorted(counts.items())]
    return found


def increased_failure(found: Sequence[PartialFailure], new: str) -> PartialFailure | None:
    """Return the first way in which the side `new` failed in a larger share of its repeats than the other; or None."""
    before = {one.status: one.count / one.of for one in found if one.side != new}
    return next((one for one in found if one.side == new and one.count / one.of > before.get(one.status, 0.0)), None)

"""Cells that fail in part: in how many of their repeats, with which status, and whether new fails more often than base.

If some processes of a cell crash, the others are a biased sample: those that were quick, or used little memory. Their
ratio is shown, but it does not pass a gate.

Guarantee: infrastructure failures are not the cell's and are not counted. Limits: the cause of a failure is not known,
nor whether one more failure is due to chance; a gate does not pass what did not run.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass

from keras_matrix.records.schema import MEASURED, Record, Status


@dataclass(frozen=True, slots=True)
class PartialFailure:
    """Failures of one side with one status: in `count` of its `of` repeats, with the reason of the first."""

    side: str
    status: Status
    count: int
    of: int
    reason: str | None

    def __str__(self) -> str:
        """Return the failure as text, without the reason."""
        return f"{self.side}: {self.status} in {self.count} of {self.of} repeats"


def partial_failures(
    sides: Mapping[str, Sequence[Record]], repeats: Collection[int] | None = None
) -> list[PartialFailure]:
    """Return the failures of these sides by status; `repeats` are those that count, None for all.

    The records are the valid attempts, one a repeat.
    """
    found = []
    for side, records in sides.items():
        tried = [r for r in records if r.status is not Status.INFRA and (repeats is None or r.repeat in repeats)]
        reasons = {record.status: record.reason for record in reversed(tried)}
        counts = Counter(record.status for record in tried if record.status not in MEASURED)
        found += [PartialFailure(side, status, n, len(tried), reasons[status]) for status, n in sorted(counts.items())]
    return found


def increased_failure(found: Sequence[PartialFailure], new: str) -> PartialFailure | None:
    """Return the first failure of the side `new` with a larger share of its repeats than on the other side; or None."""
    before = {one.status: one.count / one.of for one in found if one.side != new}
    return next((one for one in found if one.side == new and one.count / one.of > before.get(one.status, 0.0)), None)

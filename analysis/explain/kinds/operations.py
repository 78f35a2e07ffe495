"""Operations without a layer, such as those of the optimiser, by phase and kind.

By kind and not by name: a kernel that was renamed or replaced by another one of its kind is one difference.
"""

from __future__ import annotations

from collections.abc import Sequence

from keras_matrix.analysis.explain.alignment import Row
from keras_matrix.analysis.explain.kinds.kind import Claim, Pair, both_times, counted, is_work, kind_of_row, named
from keras_matrix.records.traces.neutral import Phase

NAMES = {Phase.UPDATE: "optimizer", None: "operations without layer and phase"}


def claims(pair: Pair, rows: Sequence[Row]) -> list[Claim]:
    """Return a claim for each phase and kind of operation.

    Between two backends what has neither layer nor phase has no counterpart, and stays unexplained.
    """
    groups: dict[tuple[str | None, str], list[Row]] = {}
    for row in rows:
        if is_work(row) and (pair.same_backend or row.key.phase is not None):
            kind = str(kind_of_row(row)) if pair.same_backend else ""
            groups.setdefault((row.key.phase, kind), []).append(row)
    return [_claim(*group, own) for group, own in groups.items()]


def _claim(phase: str | None, kind: str, rows: Sequence[Row]) -> Claim:
    place = NAMES.get(Phase(phase) if phase else None, f"{phase} pass, outside of layers")
    times = both_times(sum(row.base_s for row in rows), sum(row.new_s for row in rows))
    if not kind:
        return Claim(f"{place}: {times}", tuple(rows))
    return Claim(f"{place}: {kind} {counted(rows)} ({named(rows)})", tuple(rows), (times,))

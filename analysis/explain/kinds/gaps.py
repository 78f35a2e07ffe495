"""Gaps: no operation runs within a step, while the program dispatches the next one or waits."""

from __future__ import annotations

from collections.abc import Sequence

from keras_matrix.analysis.explain.alignment import Row
from keras_matrix.analysis.explain.kinds.kind import Claim, Pair, counted
from keras_matrix.analysis.explain.parts import Place


def claims(pair: Pair, rows: Sequence[Row]) -> list[Claim]:
    """Return the gaps within the step."""
    own = tuple(row for row in rows if row.key.place is Place.GAP)
    return [Claim(f"gaps between operations of a step, {counted(own)}: dispatch and waiting", own)] if own else []

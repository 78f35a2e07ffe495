"""Input: the device waits while a batch is fetched, and operations that fetch it."""

from __future__ import annotations

from collections.abc import Sequence

from keras_matrix.analysis.explain.alignment import Row
from keras_matrix.analysis.explain.kinds.kind import Claim, Pair
from keras_matrix.analysis.explain.parts import Place
from keras_matrix.records.traces.neutral import Phase


def claims(pair: Pair, rows: Sequence[Row]) -> list[Claim]:
    """Return the fetches of batches."""
    own = tuple(row for row in rows if row.key.place is Place.INPUT or row.key.phase == Phase.INPUT)
    return [Claim("input: fetching batches", own)] if own else []

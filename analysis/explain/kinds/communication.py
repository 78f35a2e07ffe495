"""Communication: collectives of several workers, with the waiting inside them."""

from __future__ import annotations

from collections.abc import Sequence

from keras_matrix.analysis.explain.alignment import Row
from keras_matrix.analysis.explain.kinds.kind import Claim, Pair, counted, named
from keras_matrix.analysis.explain.parts import Place


def claims(pair: Pair, rows: Sequence[Row]) -> list[Claim]:
    """Return the collectives."""
    own = tuple(row for row in rows if row.key.place is Place.COMMUNICATION)
    return [Claim(f"communication: {counted(own)}", own, tuple(filter(None, [named(own)])))] if own else []

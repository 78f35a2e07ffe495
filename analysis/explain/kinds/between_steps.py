"""Between steps: no operation runs while the program does what comes between two calls of the step.

Callbacks, metrics and logging are there; the trace does not say which of them.
"""

from __future__ import annotations

from collections.abc import Sequence

from keras_matrix.analysis.explain.alignment import Row
from keras_matrix.analysis.explain.kinds.kind import Claim, Pair
from keras_matrix.analysis.explain.parts import Place


def claims(pair: Pair, rows: Sequence[Row]) -> list[Claim]:
    """Return the time between steps."""
    own = tuple(row for row in rows if row.key.place is Place.BETWEEN)
    return [Claim("between steps: callbacks, metrics and logging on the host", own)] if own else []

"""The step is compiled on one side only, or differently: its operations have no counterparts on the other side.

All operations and gaps of the step are one difference. Another cause within the step cannot be separated from it.
"""

from __future__ import annotations

from collections.abc import Sequence

from keras_matrix.analysis.explain.alignment import Row
from keras_matrix.analysis.explain.kinds.kind import Claim, Pair, by_phase, is_work
from keras_matrix.analysis.explain.parts import Place
from keras_matrix.records.schema import Record
from keras_matrix.records.traces.neutral import Phase


def claims(pair: Pair, rows: Sequence[Row]) -> list[Claim]:
    """Return everything within the step, if the two sides of a backend do not compile it alike."""
    base, new = mode(pair.base), mode(pair.new)
    if not pair.same_backend or base == new or "not known" in (base, new):
        return []
    own = tuple(row for row in rows if row.key.place is Place.GAP or (is_work(row) and row.key.phase != Phase.INPUT))
    if not own:
        return []
    base_count, new_count = (sum(row.counts[side] for row in own if is_work(row)) for side in (0, 1))
    lines = [f"{base_count:.0f} -> {new_count:.0f} operations a step", *by_phase(own)]
    lines.append("a compiled operation has no counterpart in the other step: other causes within it are included")
    return [Claim(f"compilation of the step: {base} -> {new}", own, tuple(lines))]


def mode(record: Record) -> str:
    """Return how the step of a cell runs."""
    resolved = record.resolved
    if resolved is None or (resolved.jit_compile is None and resolved.eager is None):
        return "not known"
    if resolved.eager:
        return "eager"
    return "jit" if resolved.jit_compile else "no jit"

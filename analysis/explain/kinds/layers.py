"""A layer: all of its operations in all phases. The title names the kind of operation that changed most."""

from __future__ import annotations

from collections.abc import Sequence

from keras_matrix.analysis.explain.alignment import Row
from keras_matrix.analysis.explain.kinds.kind import (
    Claim,
    Pair,
    both_times,
    by_phase,
    counted,
    is_work,
    kind_of_row,
    named,
    total_s,
)


def claims(pair: Pair, rows: Sequence[Row]) -> list[Claim]:
    """Return a claim for each layer."""
    layers: dict[str, list[Row]] = {}
    for row in rows:
        if row.key.layer is not None and is_work(row):
            layers.setdefault(row.key.layer, []).append(row)
    return [_claim(pair, layer, own) for layer, own in layers.items()]


def _claim(pair: Pair, layer: str, rows: Sequence[Row]) -> Claim:
    times = both_times(sum(row.base_s for row in rows), sum(row.new_s for row in rows))
    if not pair.same_backend:
        return Claim(f"layer {layer}: {times}", tuple(rows), by_phase(rows))
    kinds = dict.fromkeys(map(kind_of_row, rows))
    most = max(kinds, key=lambda kind: abs(total_s(row for row in rows if kind_of_row(row) is kind)))
    own = [row for row in rows if kind_of_row(row) is most]
    return Claim(f"layer {layer}: {most} {counted(own)} ({named(own)})", tuple(rows), (times, *by_phase(rows)))

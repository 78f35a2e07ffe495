"""The kinds of differences, in the order in which they claim rows: what explains more comes first."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from keras_matrix.analysis.explain.alignment import Row
from keras_matrix.analysis.explain.kinds import (
    between_steps,
    communication,
    compile_mode,
    gaps,
    input_wait,
    layers,
    operations,
)
from keras_matrix.analysis.explain.kinds.kind import Claim, Pair

KINDS: dict[str, Callable[[Pair, Sequence[Row]], list[Claim]]] = {
    "input": input_wait.claims,
    "between_steps": between_steps.claims,
    "compilation": compile_mode.claims,
    "communication": communication.claims,
    "layer": layers.claims,
    "operations": operations.claims,
    "gaps": gaps.claims,
}


def claimed(pair: Pair) -> list[tuple[str, Claim]]:
    """Return every claim with the name of its kind; each row is in at most one."""
    left = list(pair.rows)
    found = []
    for name, claims in KINDS.items():
        own = claims(pair, left)
        found += [(name, claim) for claim in own]
        taken = {row.key for claim in own for row in claim.rows}
        left = [row for row in left if row.key not in taken]
    return found

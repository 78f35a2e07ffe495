"""How the number of repeats of a session is decided, which its confidence intervals must take into account.

fixed      in advance: plain intervals
width      repeats are added until the intervals are narrow enough
decision   repeats are added until a gate has decided
race       candidates are dropped until one is known to be among the fastest, by `runner tune`
quick      one process of each cell, by `runner quick`: no other command continues it
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from keras_matrix.analysis.stats.sequential import Looks
    from keras_matrix.runner.matrix.reader import Cell

FIXED, WIDTH, DECISION, RACE = "fixed", "width", "decision", "race"


def stopping(cells: Iterable[Cell], *, to_decide: bool) -> str:
    """Return how the repeats of these cells are decided."""
    if not any(cell.auto for cell in cells):
        return FIXED
    return DECISION if to_decide else WIDTH


def looks_of(about: Mapping[str, object]) -> Looks:
    """Return the looks that determine the confidence of a run's intervals, from its `run.json`."""
    from keras_matrix.analysis.regression import gate
    from keras_matrix.analysis.stats import sequential

    looks = {WIDTH: sequential.LOOKS, DECISION: gate.GATE_LOOKS, RACE: sequential.LOOKS}
    name = str(about.get("stopping")).partition(" ")[0]  # of a race, what it is for follows
    return looks.get(name, sequential.FIXED)

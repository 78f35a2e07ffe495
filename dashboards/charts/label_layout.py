"""Places labels in a picture so that none covers another label, a mark or a line.

Greedy: each label takes the first of its positions that is free, in the given order. A label without a free position is
left out, and the caller must show it elsewhere. Sizes are in the units of the picture; the width of a label is an
upper estimate from its length.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

WIDTH_PER_CHARACTER = 6.6  # of text 12 high in the sans-serif faces of our style sheet; measured 5.5 to 6.4
ASCENT = 10.0
DESCENT = 4.0
PADDING = 2.0


@dataclass(frozen=True, slots=True)
class Box:
    """A rectangle."""

    left: float
    top: float
    right: float
    bottom: float

    def meets(self, other: Box) -> bool:
        """Return whether the two overlap."""
        apart = self.right <= other.left or other.right <= self.left
        return not (apart or self.bottom <= other.top or other.bottom <= self.top)

    def within(self, other: Box) -> bool:
        """Return whether it is completely inside another."""
        across = self.left >= other.left and self.right <= other.right
        return across and self.top >= other.top and self.bottom <= other.bottom


@dataclass(frozen=True, slots=True)
class Spot:
    """A position for a label: the start, middle or end of its baseline."""

    x: float
    y: float
    anchor: str = "start"

    def box(self, text: str) -> Box:
        """Return the rectangle that a label covers there."""
        width = len(text) * WIDTH_PER_CHARACTER
        left = self.x - {"start": 0.0, "middle": width / 2, "end": width}[self.anchor]
        return Box(left - PADDING, self.y - ASCENT - PADDING, left + width + PADDING, self.y + DESCENT + PADDING)


def place(wishes: Iterable[tuple[str, Sequence[Spot]]], taken: Iterable[Box], frame: Box) -> list[Spot | None]:
    """Return for each (text, spots) its first free spot, None if all are occupied."""
    covered = list(taken)
    found: list[Spot | None] = []
    for text, spots in wishes:
        boxes = {spot: spot.box(text) for spot in spots}
        free = (s for s, box in boxes.items() if box.within(frame) and not any(map(box.meets, covered)))
        spot = next(free, None)
        if spot is not None:
            covered.append(boxes[spot])
        found.append(spot)
    return found

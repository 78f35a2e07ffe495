"""Placing words in a picture so that none covers another, a mark or a line.

Greedy: each word takes the first of its places that is free, in the order the words are given. A word that finds none
is left out, and whoever draws must tell it elsewhere. Sizes are in the picture's own units; a word's width is estimated
from its length, on the wide side.
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
        """Return whether the two share any place."""
        apart = self.right <= other.left or other.right <= self.left
        return not (apart or self.bottom <= other.top or other.bottom <= self.top)

    def within(self, other: Box) -> bool:
        """Return whether it lies wholly inside another."""
        across = self.left >= other.left and self.right <= other.right
        return across and self.top >= other.top and self.bottom <= other.bottom


@dataclass(frozen=True, slots=True)
class Spot:
    """A place for a word: its baseline's start, middle or end."""

    x: float
    y: float
    anchor: str = "start"

    def box(self, text: str) -> Box:
        """Return what the word covers there."""
        width = len(text) * WIDTH_PER_CHARACTER
        left = self.x - {"start": 0.0, "middle": width / 2, "end": width}[self.anchor]
        return Box(left - PADDING, self.y - ASCENT - PADDING, left + width + PADDING, self.y + DESCENT + PADDING)


def place(wishes: Iterable[tuple[str, Sequence[Spot]]], taken: Iterable[Box], frame: Box) -> list[Spot | None]:
    """Return for each (text, spots) the spot it gets, None where none of them is free."""
    covered = list(taken)
    found: list[Spot | None] = []
    for text, spots in wishes:
        spot = next((s for s in spots if _free(s.box(text), covered, frame)), None)
        if spot is not None:
            covered.append(spot.box(text))
        found.append(spot)
    return found


def _free(box: Box, covered: Sequence[Box], frame: Box) -> bool:
    return box.within(frame) and not any(box.meets(other) for other in covered)

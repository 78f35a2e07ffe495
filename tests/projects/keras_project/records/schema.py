"""The shape of a sample."""

from dataclasses import dataclass


@dataclass(frozen=True)
class Row:
    """How many numbers a sample has."""

    features: int
    targets: int

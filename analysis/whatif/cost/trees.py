"""Boosted regression trees as plain numbers, so that a model file holds no code and its reader needs no library.

A pickled model of a library runs whatever code its author put into it; these trees are JSON, and are checked when they
are read: children follow their parents, so that every path ends.
"""

from __future__ import annotations

import math
import struct
from collections.abc import Sequence
from dataclasses import dataclass

MOST_FACTOR = 1000.0


@dataclass(frozen=True, slots=True)
class DecisionTree:
    """A tree by its nodes, the root first. A leaf has `left` and `right` -1 and its `value`.

    A row goes to the left if its value of `feature` is at most the `threshold`.
    """

    feature: list[int]
    threshold: list[float]
    left: list[int]
    right: list[int]
    value: list[float]

    def problem(self, features: int) -> str | None:
        """Return what is wrong with the tree, None if nothing is."""
        count = len(self.value)
        if not count or {len(self.feature), len(self.threshold), len(self.left), len(self.right)} != {count}:
            return "its lists differ in length or are empty"
        for at, (left, right) in enumerate(zip(self.left, self.right, strict=True)):
            is_leaf = left == right == -1
            if not is_leaf and not (at < left < count and at < right < count):
                return f"node {at} has the children {left} and {right}"
            if not is_leaf and not 0 <= self.feature[at] < features:
                return f"node {at} compares feature {self.feature[at]} of {features}"
        return None

    def of(self, row: Sequence[float]) -> float:
        """Return the value of a row."""
        at = 0
        while self.left[at] >= 0:
            at = self.left[at] if row[self.feature[at]] <= self.threshold[at] else self.right[at]
        return self.value[at]


def predicted(trees: Sequence[DecisionTree], learning_rate: float, row: Sequence[float]) -> float:
    """Return the prediction for a row, whose values are compared in single precision, as while it was learned."""
    single = struct.unpack(f"{len(row)}f", struct.pack(f"{len(row)}f", *row))
    return learning_rate * sum(tree.of(single) for tree in trees)


def factor(trees: Sequence[DecisionTree], learning_rate: float, row: Sequence[float]) -> float:
    """Return the factor whose logarithm the trees predict, within `MOST_FACTOR` in both directions."""
    most = math.log(MOST_FACTOR)
    return math.exp(min(max(predicted(trees, learning_rate, row), -most), most))

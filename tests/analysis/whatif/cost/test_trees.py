"""Trees are plain numbers: they are evaluated and checked without the library that learned them."""

from __future__ import annotations

import math
from dataclasses import replace
from typing import Any

import pytest

from keras_matrix.analysis.whatif.cost_model import MOST_FACTOR, DecisionTree, factor, predicted

TREE = DecisionTree(
    feature=[1, 0, 0, 0, 0],
    threshold=[2.0, 5.0, 0, 0, 0],
    left=[1, 3, -1, -1, -1],
    right=[2, 4, -1, -1, -1],
    value=[0.0, 0.0, 3.0, 4.0, 5.0],
)


@pytest.mark.parametrize(("row", "value"), [([0, 3], 3.0), ([5, 2], 4.0), ([6, 2], 5.0)])
def test_a_row_goes_left_up_to_the_threshold(row: list[float], value: float) -> None:
    assert value == TREE.of(row)


def test_a_prediction_is_the_scaled_sum_of_the_trees() -> None:
    assert predicted([TREE, TREE], 0.1, [0, 3]) == 0.1 * (3 + 3)


def test_a_factor_is_limited() -> None:
    assert factor([TREE], 0.1, [0, 3]) == pytest.approx(math.exp(0.3))
    assert factor([replace(TREE, value=[1e300] * 5)], 1.0, [0, 3]) == pytest.approx(MOST_FACTOR)
    assert factor([replace(TREE, value=[-1e300] * 5)], 1.0, [0, 3]) == pytest.approx(1 / MOST_FACTOR)


def test_values_are_compared_in_single_precision() -> None:
    third = replace(TREE, threshold=[1 / 3, 5.0, 0, 0, 0])
    assert predicted([third], 1.0, [0, 1 / 3]) == 3.0  # single precision rounds a third up


@pytest.mark.parametrize(
    ("changes", "problem"),
    [
        ({"value": []}, "its lists differ in length or are empty"),
        ({"left": [0, 3, -1, -1, -1]}, "node 0 has the children 0 and 2"),
        ({"right": [2, 9, -1, -1, -1]}, "node 1 has the children 3 and 9"),
        ({"left": [1, 3, -1, -1, 3]}, "node 4 has the children 3 and -1"),
        ({"feature": [2, 0, 0, 0, 0]}, "node 0 compares feature 2 of 2"),
        ({"feature": [-1, 0, 0, 0, 0]}, "node 0 compares feature -1 of 2"),
        ({}, None),
    ],
)
def test_a_damaged_tree_is_found(changes: dict[str, Any], problem: str | None) -> None:
    assert problem == replace(TREE, **changes).problem(2)

"""The same operation in successive steps is found by its name and its order."""

from __future__ import annotations

import pytest

from keras_matrix.analysis.whatif.reconstruct.nodes import match, unusual
from keras_matrix.analysis.whatif.reconstruct.pieces import Lane
from tests.analysis.whatif.reconstruct.pieces import work


def lane(names: str) -> Lane:
    """Operations of 10 us with these letters as names, every 100 us."""
    return [work(name, 100 * at, 100 * at + 10) for at, name in enumerate(names)]


@pytest.mark.parametrize(
    ("steps", "rows", "others"),
    [
        (["abc", "abc"], "abc", {}),
        (["abac", "abac", "abac"], "abac", {}),
        (["abc", "axbc"], "abc", {"x": 10_000}),
        (["abc", "axbc", "abyc"], "abc", {"x": 10_000, "y": 10_000}),
        (["aabb", "aab"], "aab", {"b": 10_000}),
        (["abc", "acb", "acb"], "ac", {"b": 30_000}),
        (["", "ab"], "", {"a": 10_000, "b": 10_000}),
    ],
)
def test_operations_that_all_steps_have_in_the_same_order_are_matched(
    steps: list[str], rows: str, others: dict[str, int]
) -> None:
    found = match([lane(names) for names in steps])
    assert "".join(row[0].name for row in found.rows) == rows
    assert dict(found.others_ns) == others


def test_a_row_has_the_piece_of_each_step_in_the_order_of_the_steps() -> None:
    steps = [lane("abc"), lane("axbc")]
    assert match(steps).rows[1] == (steps[0][1], steps[1][2])


@pytest.mark.parametrize(
    ("steps", "found"),
    [
        (["abcdefghij"] * 3, set()),
        (["klmno", "abcdefghij", "abcdefghij"], {0}),
        (["abcdefghijk", "abcdefghij", "abcdefghij"], set()),
        (["abcdefghij", "klmno"], {0}),
        (["ab"], set()),
    ],
)
def test_step_that_shares_few_operations_with_the_others_is_unusual(steps: list[str], found: set[int]) -> None:
    assert unusual([lane(names) for names in steps]) == found

"""The last marked step of a file is unfinished if it has only the beginning, or a part, of the step before."""

from __future__ import annotations

from collections import Counter

import pytest

from keras_matrix.records.traces.neutral import is_part, is_unfinished


@pytest.mark.parametrize(
    ("steps", "expected"),
    [
        ([], False),
        (["abc"], False),
        (["abc", "abc"], False),
        (["abc", ""], True),
        (["abc", "ab"], True),
        (["abcd", "abx"], True),  # the operation in which the profiler stopped has another name
        (["abcd", "axc"], False),  # another step, and not much shorter
        (["abc" * 10, "xy"], True),  # nearly nothing
        (["abc" * 10, "xyz"], False),
        (["abc", "ab", "abc", "ab"], False),  # every second step is short: accumulation of gradients
        (["ab", "abc"], False),
    ],
)
def test_last_step_is_unfinished_if_it_is_only_the_beginning_of_the_one_before(
    steps: list[str], expected: bool
) -> None:
    assert is_unfinished([list(names) for names in steps]) is expected


@pytest.mark.parametrize(
    ("steps", "expected"),
    [
        (["aaaaabbbbb"], False),
        (["aaaaabbbbb", "bbbaa"], True),
        (["aaaaabbbbb", "aaaabbbb"], False),  # eight tenths
        (["aaaaabbbbb", "aaaabbb"], True),
        (["aaaaabbbbb", "bc"], False),
        (["aaaaabbbbb", "ab", "aaaaabbbbb", "ab"], False),
    ],
)
def test_last_step_of_unordered_operations_is_a_part_if_most_of_another_one_is_missing(
    steps: list[str], expected: bool
) -> None:
    assert is_part([Counter(names) for names in steps]) is expected

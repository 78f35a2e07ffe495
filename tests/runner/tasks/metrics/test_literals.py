"""Words that every match holds: long ones where there are some, and never one that a match can do without."""

from __future__ import annotations

import re

import pytest

from keras_matrix.runner.tasks.metrics.literals import required


@pytest.mark.parametrize(
    ("pattern", "word"),
    [
        (r"Speed: (\d+\.\d+|\d+) samples/sec", " samples/sec"),
        (r"(\d+) images", " images"),
        (r"(?:ab)(c\d)", "abc"),
        (r"a+(\d)", ""),
        (r"(?i)speed (\d)", ""),
        (r"(?i:speed) (\d)", " "),
        (r"speed (\d)|time (\d)", ""),
        (r"(?:speed )?(\d)x", "x"),
        (r"^loss=(\S+)$", "loss="),
        (r"(?!no)yes(\d)", "yes"),
        (r"", ""),
    ],
)
def test_the_longest_word_of_every_match_is_known(pattern: str, word: str) -> None:
    assert required(pattern) == word


@pytest.mark.parametrize(
    ("pattern", "text"),
    [(r"a(?:bc|bd)e(\d)", "abde1"), (r"x{2,3}y(\d)", "xxy1"), (r"(?x) a b (\d)", "ab1"), (r"a[bc]d(\d)", "acd1")],
)
def test_no_word_is_asked_for_that_a_match_does_not_hold(pattern: str, text: str) -> None:
    found = re.search(pattern, text)
    assert found is not None
    assert required(pattern) in found.group(0)


def test_another_shape_of_the_parse_tree_finds_no_word(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("keras_matrix.runner.tasks.metrics.literals.importlib.import_module", lambda name: object())
    assert required("speed") == ""

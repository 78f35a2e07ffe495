"""Texts that every match contains: long ones if possible, and never one that a match may lack."""

from __future__ import annotations

import re

import pytest

from keras_matrix.runner.executors.tasks.metric_match import required


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
def test_longest_common_text_of_all_matches_is_found(pattern: str, word: str) -> None:
    assert required(pattern) == word


@pytest.mark.parametrize(
    ("pattern", "text"),
    [(r"a(?:bc|bd)e(\d)", "abde1"), (r"x{2,3}y(\d)", "xxy1"), (r"(?x) a b (\d)", "ab1"), (r"a[bc]d(\d)", "acd1")],
)
def test_required_text_is_contained_in_every_match(pattern: str, text: str) -> None:
    found = re.search(pattern, text)
    assert found is not None
    assert required(pattern) in found.group(0)


def test_unknown_parse_tree_has_no_required_text(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(
        "keras_matrix.runner.executors.tasks.metric_match.importlib.import_module", lambda name: object()
    )
    assert required("speed") == ""

"""docs/bisect.md states what `lab/run bisect` computes from the recordings, and that fulfils the criterion."""

from __future__ import annotations

import itertools
import re

import pytest

from lab import bisect

VERSIONS, SLOWDOWN, TRIALS, RECORDINGS = 64, 0.05, 20, 6
ROW = re.compile(r"\| \w+, \w+ \| (\d+) \| (\d+) \| (\d+) \| \d+, (\d+) \|")

pytestmark = pytest.mark.process


@pytest.fixture(scope="module")
def document() -> list[str]:
    """The measured part of the document."""
    measured = bisect.DOCUMENT.read_text(encoding="utf-8").partition(bisect.BEGIN)[2].partition(bisect.END)[0]
    return measured.strip("\n").splitlines()


def test_right_version_is_found_in_17_of_20_trials_and_never_a_wrong_one(document: list[str]) -> None:
    """On the noise of each recording, in at most 8 steps. Mutation: `search` measures the first candidate."""
    many = f"| {bisect.MANY} trials"
    found = list(itertools.takewhile(lambda one: many not in one, bisect.tables(VERSIONS, SLOWDOWN, TRIALS)))
    assert found == document[: len(found)]
    rows = [tuple(map(int, row.groups())) for line in found if (row := ROW.match(line))]
    assert len(rows) == RECORDINGS
    for right, wrong, undecided, steps in rows:
        assert (right >= 17, wrong, undecided <= 3, steps <= 8) == (True, 0, True, True)


@pytest.mark.nightly
def test_document_states_the_shares_of_many_trials(document: list[str]) -> None:
    """Mutation: `--write` was not run after a change of the rules."""
    assert list(bisect.tables(VERSIONS, SLOWDOWN, TRIALS)) == document

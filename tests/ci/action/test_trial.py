"""The action on a real pair of commits: installed, measured alternately, and judged."""

from __future__ import annotations

from pathlib import Path

import pytest

from ci.github.trial import EXPECTED, trial

pytestmark = [
    pytest.mark.process,
    pytest.mark.alone,
    pytest.mark.nightly(why="installs three environments and measures for minutes"),
]


@pytest.mark.parametrize("name", EXPECTED)
def test_equal_commits_pass_and_a_slowdown_fails_the_job_with_the_cells_name(tmp_path: Path, name: str) -> None:
    trial(name, tmp_path)

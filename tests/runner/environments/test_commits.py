"""Commits of a checkout as worktrees: the checkout stays as it is, and what cannot be searched is refused."""

from __future__ import annotations

from pathlib import Path

import pytest

from keras_matrix.runner.environments.commits import Checkout, checkout
from keras_matrix.runner.errors import UsageError
from tests.git import git

pytestmark = pytest.mark.process


@pytest.fixture
def project(tmp_path: Path) -> Path:
    """A checkout of four commits on main, of which the third is a merge of a side branch; tag v1 is the first."""
    folder = tmp_path / "project"
    folder.mkdir()
    git(folder, "init", "--quiet")
    for number in (1, 2):
        (folder / "mine.py").write_text(f"VALUE = {number}\n")
        git(folder, "add", ".")
        git(folder, "commit", "--quiet", "-m", f"Set {number}")
        if number == 1:
            git(folder, "tag", "v1")
    git(folder, "checkout", "--quiet", "-b", "side", "v1")
    git(folder, "commit", "--quiet", "--allow-empty", "-m", "Aside")
    git(folder, "checkout", "--quiet", "main")
    git(folder, "merge", "--quiet", "--no-edit", "side")
    (folder / "mine.py").write_text("VALUE = 4\n")
    git(folder, "commit", "--quiet", "-am", "Set 4")
    return folder


def test_commits_follow_the_first_parents_from_good_to_bad(project: Path) -> None:
    found = checkout(project).commits("v1", "main")
    assert [one.subject.strip() for one in found] == ["Set 1", "Set 2", "Merge branch 'side'", "Set 4"]
    assert found[-1].label == f"{git(project, 'rev-parse', 'main')[:10]} Set 4"


def test_line_separators_in_a_subject_are_no_commits(project: Path) -> None:
    """Mutation: `commits` splits the output at every line separator of Unicode."""
    git(project, "commit", "--quiet", "--allow-empty", "-m", "One\u2028subject\x0cof one")
    found = checkout(project).commits("v1", "main")
    assert len(found) == 5
    assert found[-1].subject.strip() == "One\u2028subject\x0cof one"


def test_each_commit_has_its_files_and_the_checkout_is_not_changed(project: Path, tmp_path: Path) -> None:
    (project / ".git" / "hooks" / "post-checkout").write_text("#!/bin/sh\nexit 1\n")
    (project / ".git" / "hooks" / "post-checkout").chmod(0o755)
    tree, cache = checkout(project), tmp_path / "cache"
    first, *_, last = tree.commits("v1", "main")
    trees = [tree.worktree(one, cache) for one in (first, last, last)]
    assert [(one / "mine.py").read_text() for one in trees] == ["VALUE = 1\n", "VALUE = 4\n", "VALUE = 4\n"]
    assert git(project, "status", "--porcelain") == ""
    assert git(project, "rev-parse", "--abbrev-ref", "HEAD") == "main"
    tree.remove_worktrees(cache)
    assert git(project, "worktree", "list").count("\n") == 0
    assert not any(one.exists() for one in trees)


@pytest.mark.parametrize(
    ("good", "bad", "message"),
    [
        ("v1", "mian", "--bad: .* has no branch, tag or commit 'mian'; did you mean main?"),
        ("main", "main", "--bad: must be another commit than --good, got main and main, both "),
        ("main", "v1", r"--good: must be an ancestor of --bad, got main \("),
        ("side", "main~2", r"--good: must be an ancestor of --bad, got side \("),
    ],
)
def test_refs_that_cannot_be_searched_are_refused(project: Path, good: str, bad: str, message: str) -> None:
    with pytest.raises(UsageError, match=message):
        checkout(project).commits(good, bad)


def test_incomplete_checkouts_are_refused_with_the_command_that_helps(project: Path, tmp_path: Path) -> None:
    shallow = tmp_path / "shallow"
    git(tmp_path, "clone", "--quiet", "--depth", "1", f"file://{project}", str(shallow))
    with pytest.raises(UsageError, match="is shallow, so that commits are missing; run: git fetch --unshallow"):
        checkout(shallow)
    (project / "new.py").write_text("")  # not part of any commit, and not of a worktree
    assert checkout(project) == Checkout(project)
    (project / "mine.py").write_text("VALUE = 5\n")
    with pytest.raises(UsageError, match=r"such as M mine\.py; commit them or run: git stash"):
        checkout(project)
    with pytest.raises(UsageError, match="--checkout: must be a folder of a git checkout, got "):
        checkout(tmp_path)

"""The commits of a local checkout, each as a worktree of its own in the cache. The checkout itself is not changed.

A worktree is imported from as it is, like an editable installation: nothing is built, and no hook runs.
"""

from __future__ import annotations

import hashlib
import os
import subprocess
from dataclasses import dataclass
from pathlib import Path

from keras_matrix.records.text import near
from keras_matrix.records.trees import remove_tree
from keras_matrix.runner.environments.rebuilt import LIMIT_S, CannotRebuild, failure
from keras_matrix.runner.errors import UsageError

SUBJECT_LENGTH = 60


@dataclass(frozen=True, slots=True)
class Commit:
    """A commit by its full name, with the first line of its message."""

    sha: str
    subject: str

    @property
    def label(self) -> str:
        """The text that names it in messages."""
        return f"{self.sha[:10]} {self.subject[:SUBJECT_LENGTH]}".strip()


@dataclass(frozen=True, slots=True)
class Checkout:
    """A git checkout by its top folder."""

    folder: Path

    def commits(self, good: str, bad: str) -> list[Commit]:
        """Return the commits from the good to the bad one along the first parents. Raises `UsageError`."""
        good_sha, bad_sha = self._commit("--good", good), self._commit("--bad", bad)
        if good_sha == bad_sha:
            raise UsageError(f"--bad: must be another commit than --good, got {bad} and {good}, both {good_sha[:10]}")
        if self._git("merge-base", "--is-ancestor", good_sha, bad_sha, check=False).returncode:
            raise UsageError(
                f"--good: must be an ancestor of --bad, got {good} ({good_sha[:10]}) and {bad} ({bad_sha[:10]})"
            )
        log = ("log", "--first-parent", "--reverse", "--format=%H %s")
        text = self._git(*log, "--max-count=1", good_sha).stdout + self._git(*log, f"{good_sha}..{bad_sha}").stdout
        return [Commit(*f"{line} ".split(" ", 1)) for line in text.split("\n") if line]

    def worktree(self, commit: Commit, cache: Path) -> Path:
        """Return a folder with the files of a commit. Raises `CannotRebuild`."""
        folder = self._worktrees(cache) / commit.sha
        if not (folder / ".git").is_file():
            remove_tree(folder)
            command = ("worktree", "add", "--force", "--detach", "--quiet", str(folder), commit.sha)
            completed = self._git("-c", f"core.hooksPath={os.devnull}", *command, check=False)
            if completed.returncode:
                raise failure(completed.stderr)(f"git makes no worktree of {commit.label}: {completed.stderr.strip()}")
        return folder

    def remove_worktrees(self, cache: Path) -> None:
        """Remove the worktrees in the cache, and what git knows of them."""
        for folder in self._worktrees(cache).glob("*"):
            self._git("worktree", "remove", "--force", str(folder), check=False)

    def _worktrees(self, cache: Path) -> Path:
        return cache / f"worktrees-{hashlib.sha256(os.fsencode(self.folder)).hexdigest()[:16]}"

    def _commit(self, flag: str, ref: str) -> str:
        completed = self._git("rev-parse", "--verify", "--quiet", "--end-of-options", f"{ref}^{{commit}}", check=False)
        if completed.returncode:
            names = self._git("for-each-ref", "--format=%(refname:short)").stdout.split()
            raise UsageError(f"{flag}: {self.folder} has no branch, tag or commit {ref!r}{near(ref, names)}")
        return completed.stdout.strip()

    def _git(self, *arguments: str, check: bool = True) -> subprocess.CompletedProcess[str]:
        return git(self.folder, *arguments, check=check)


def git(folder: Path, *arguments: str, check: bool = True) -> subprocess.CompletedProcess[str]:
    """Run git in a folder and return its output. Raises `CannotRebuild` if it fails and that is not checked."""
    environment = {name: value for name, value in os.environ.items() if not name.startswith("GIT_")}
    command = ["git", "-C", str(folder), *arguments]
    try:
        completed = subprocess.run(
            command, capture_output=True, text=True, errors="replace", timeout=LIMIT_S, env=environment, check=False
        )
    except FileNotFoundError as error:
        raise UsageError("commits need git, which is not installed") from error
    if check and completed.returncode:
        raise CannotRebuild(f"git {arguments[0]}: {completed.stderr.strip() or completed.returncode}")
    return completed


def checkout(folder: Path) -> Checkout:
    """Return the checkout that contains a folder. Raises `UsageError` if its history or its files are not complete."""
    top = git(folder, "rev-parse", "--show-toplevel", check=False) if folder.is_dir() else None
    if top is None or top.returncode:
        raise UsageError(f"--checkout: must be a folder of a git checkout, got {folder}")
    opened = Checkout(Path(top.stdout.strip()))
    if git(opened.folder, "rev-parse", "--is-shallow-repository").stdout.strip() == "true":
        raise UsageError(f"--checkout: {folder} is shallow, so that commits are missing; run: git fetch --unshallow")
    if changed_lines := git(opened.folder, "status", "--porcelain", "--untracked-files=no").stdout.splitlines():
        raise UsageError(
            f"--checkout: {folder} has changes that no commit contains, such as {changed_lines[0].strip()}; "
            "commit them or run: git stash"
        )
    return opened

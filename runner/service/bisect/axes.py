"""What `runner bisect` searches: versions of a package, locks by date, or commits; each version as an arm of a session.

An axis makes the environment of a version when it is first measured. A version that cannot be made raises
`CannotRebuild`, which leaves it out unless it is an end.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol

from keras_matrix.runner.environments import commits, dated
from keras_matrix.runner.environments.layered import BaseEnvironment, Layer, distributions, layered
from keras_matrix.runner.executors.process.interpreter import Interpreter
from keras_matrix.runner.plan.session import ArmRequest


@dataclass(frozen=True, slots=True)
class Cache:
    """The folder of cached environments, and how it is reported that one is made."""

    folder: Path
    say: Callable[[str], None]


class VersionAxis(Protocol):
    """A sequence of versions, the good end first and the bad one last. `subject` names what they are versions of."""

    @property
    def subject(self) -> str:
        """What is searched."""

    @property
    def labels(self) -> Sequence[str]:
        """The names of the versions."""

    @property
    def identity(self) -> Mapping[str, Any]:
        """The values that must be equal for a search to be continued."""

    def arm(self, position: int) -> ArmRequest:
        """Return the arm of a version, with its environment. Raises `CannotRebuild`."""

    def differences(self, before: int, found: int) -> list[str]:
        """Return what else differs between two versions."""

    def close(self) -> None:
        """Remove what is not worth keeping."""


@dataclass(frozen=True, slots=True)
class PackageAxis:
    """The versions of one package, or of one set, each on top of the same base environment.

    `wheels` are those of its versions in the user's own folders, with their hashes.
    """

    name: str
    labels: Sequence[str]
    base: BaseEnvironment
    listing: dated.Listing
    cache: Cache
    wheels: Sequence[str] = ()

    @property
    def subject(self) -> str:
        """The package."""
        return self.name

    @property
    def identity(self) -> Mapping[str, Any]:
        """The package, its versions, the wheels of the user's own folders, and the environment of the others."""
        found = {"package": self.name, "versions": list(self.labels), "base": dict(self.base.versions)}
        return found | ({"wheels": list(self.wheels)} if self.wheels else {})

    def arm(self, position: int) -> ArmRequest:
        """Return the arm of a version."""
        return arm_of(self._environment(position))

    def differences(self, before: int, found: int) -> list[str]:
        """Return the other packages that differ: those that pip changed along with it."""
        lists = [distributions(str(self._environment(one) / "bin" / "python")) for one in (before, found)]
        then, now = ("\n".join(f"{k}=={v}" for k, v in one.items() if k != self.name) for one in lists)
        return dated.changed(then, now)

    def close(self) -> None:
        """Keep the environments, which the next command may need."""

    def _environment(self, position: int) -> Path:
        wanted = dated.requirements(self.name, self.labels[position], self.base.versions, self.listing)
        return layered(Layer(wanted, (), self.base), self.cache.folder, self.cache.say)


@dataclass(frozen=True, slots=True)
class DateAxis:
    """The different locks between two days."""

    locks: Sequence[dated.DatedLock]
    python: str
    cache: Cache

    @property
    def subject(self) -> str:
        """The lock."""
        return "the lock"

    @property
    def labels(self) -> Sequence[str]:
        """The first day of each lock."""
        return [str(one.day) for one in self.locks]

    @property
    def identity(self) -> Mapping[str, Any]:
        """The locks and the Python."""
        return {"locks": [one.lock for one in self.locks], "python": self.python}

    def arm(self, position: int) -> ArmRequest:
        """Return the arm of a lock."""
        lock = self.locks[position].lock
        return arm_of(dated.locked_environment(lock, self.python, self.cache.folder, self.cache.say))

    def differences(self, before: int, found: int) -> list[str]:
        """Return the packages that changed on that day."""
        return dated.changed(self.locks[before].lock, self.locks[found].lock)

    def close(self) -> None:
        """Keep the environments."""


@dataclass(frozen=True, slots=True)
class CheckoutAxis:
    """The commits of a checkout, each imported from a worktree, on top of the same base environment."""

    checkout: commits.Checkout
    commits: Sequence[commits.Commit]
    base: BaseEnvironment
    cache: Cache

    @property
    def subject(self) -> str:
        """The checkout's folder."""
        return str(self.checkout.folder)

    @property
    def labels(self) -> Sequence[str]:
        """The commits, with their subjects."""
        return [one.label for one in self.commits]

    @property
    def identity(self) -> Mapping[str, Any]:
        """The checkout, its commits, and the environment."""
        shas = [one.sha for one in self.commits]
        return {"checkout": str(self.checkout.folder), "commits": shas, "base": dict(self.base.versions)}

    def arm(self, position: int) -> ArmRequest:
        """Return the arm of a commit; the user's own modules in the checkout also come from the worktree."""
        tree = self.checkout.worktree(self.commits[position], self.cache.folder)
        paths = [str(one) for one in (tree / "src", tree) if one.is_dir()]
        found = arm_of(layered(Layer((), paths, self.base), self.cache.folder, self.cache.say))
        return ArmRequest(found.python, None, found.versions, worktree=(str(self.checkout.folder), str(tree)))

    def differences(self, before: int, found: int) -> list[str]:
        """Return the command that shows the commits."""
        return [f"git -C {self.checkout.folder} log -p {self.commits[before].sha[:10]}..{self.commits[found].sha[:10]}"]

    def close(self) -> None:
        """Remove the worktrees."""
        self.checkout.remove_worktrees(self.cache.folder)


def arm_of(environment: Path) -> ArmRequest:
    """Return the arm that is measured in an environment of the cache."""
    python = str(environment / "bin" / "python")
    return ArmRequest(python, None, Interpreter(python, foreign=True).versions())

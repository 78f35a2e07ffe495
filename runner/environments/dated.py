"""Complete locks by date: what an installation of some packages would have been on a day, by uv's --exclude-newer.

The lock of a day has the newest versions that were uploaded by its end (UTC), of wheels only; as everywhere, KerasHub
without tensorflow-text. uv uses the user's own settings (UV_INDEX_URL and others). Limit: an index that states no
upload times has no history.

The versions of a package that can be installed, from pip: the index, or a folder of wheels, as the user has set it.

Yanked versions, and those without a wheel for this Python, are left out; pre-releases, which includes nightly wheels,
too unless they are asked for. Packages that only work together, such as jax and jaxlib, move as one set.
"""

from __future__ import annotations

import hashlib
import importlib.util
import re
import shutil
import sys
import tempfile
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from datetime import date, timedelta
from pathlib import Path

from packaging.version import InvalidVersion, Version

from keras_matrix.records.backends import NOT_NEEDED, TABLE
from keras_matrix.runner.environments.rebuilt import CannotRebuild, NoNetwork, made_once, run_connected, run_tool
from keras_matrix.runner.errors import UsageError

LockOn = Callable[[date], str]
# Packages that move together, the one that gives the version first.
SETS = tuple(
    (*backend.packages, *(name for plugin in backend.plugins for name in (plugin, plugin.replace("-plugin", "-pjrt"))))
    for backend in TABLE.values()
    if backend.plugins
)
# Names of the same package built for other devices: the installed one is meant.
VARIANTS = (("tensorflow", "tensorflow-cpu", "tensorflow-rocm", "tf-nightly", "tf-nightly-cpu"),)
SHOWN = 10
ONLY_FOLDER = (
    "the package index cannot be reached, so that only versions in PIP_FIND_LINKS are known; connect, or set "
    "PIP_NO_INDEX to search the folder alone"
)


@dataclass(frozen=True, slots=True)
class DatedLock:
    """A lock, as requirements with exact versions, and the first day that has it."""

    day: date
    lock: str


def uv() -> list[str]:
    """Return the command of uv: that of the extra `bisect`, or one on the path. Raises `UsageError`."""
    if importlib.util.find_spec("uv"):
        return [sys.executable, "-m", "uv"]
    if path := shutil.which("uv"):
        return [path]
    raise UsageError("--dates: needs uv; install it with: pip install 'keras-matrix[bisect]'")


def day(flag: str, text: str, today: date) -> date:
    """Read a date until today. Raises `UsageError`."""
    try:
        parsed = date.fromisoformat(text)
    except ValueError as error:
        raise UsageError(f"{flag}: must be a date such as 2026-05-01, got {text!r}") from error
    if parsed > today:
        raise UsageError(f"{flag}: must not be after today, {today}, got {text}")
    return parsed


def lock_on(required: Sequence[str], python: str) -> LockOn:
    """Return a function that returns the lock of a day. It raises `CannotRebuild` if there is none."""

    def lock(lock_day: date) -> str:
        cutoff = f"{lock_day + timedelta(days=1)}T00:00:00Z"
        options = ["--quiet", "--no-header", "--no-annotate", "--only-binary", ":all:", "--python", python]
        with tempfile.NamedTemporaryFile("w", prefix="overrides-", suffix=".txt") as overrides:
            if not any(NOT_NEEDED in requirement for requirement in required):
                overrides.write(f"{NOT_NEEDED}; sys_platform == 'never'\n")
                overrides.flush()
            command = [*uv(), "pip", "compile", "-", *options, "--override", overrides.name, "--exclude-newer", cutoff]
            return run_tool(command, f"uv finds no lock for {lock_day}", "\n".join(required) + "\n")

    return lock


def locks_between(good: date, bad: date, lock: LockOn) -> list[DatedLock]:
    """Return the different locks from the good to the bad day, each with the first day that has it.

    Days between two with the same lock are taken to have it, too.
    """
    if good >= bad:
        raise UsageError(f"--good: must be before --bad, got {good} and {bad}")
    first_lock, last_lock = DatedLock(good, lock(good)), DatedLock(bad, lock(bad))
    if first_lock.lock == last_lock.lock:
        raise UsageError(f"--bad: the lock of {bad} is that of {good}: nothing to search")
    return [first_lock, *_after(first_lock, last_lock, lock)]


def _after(first_lock: DatedLock, last_lock: DatedLock, lock: LockOn) -> list[DatedLock]:
    if first_lock.lock == last_lock.lock:
        return []
    if (days := (last_lock.day - first_lock.day).days) == 1:
        return [last_lock]
    middle_day = first_lock.day + timedelta(days=days // 2)
    middle = DatedLock(middle_day, lock(middle_day))
    return [*_after(first_lock, middle, lock), *_after(middle, last_lock, lock)]


def changed(before: str, after: str) -> list[str]:
    """Return the packages that differ between two locks, as in `keras 3.14.0 -> 3.14.1`."""
    versions_before, versions_after = (
        dict(line.split("==", 1) for line in lock.splitlines() if "==" in line) for lock in (before, after)
    )
    names = sorted({*versions_before, *versions_after})
    return [
        f"{n} {versions_before.get(n, 'none')} -> {versions_after.get(n, 'none')}"
        for n in names
        if versions_before.get(n) != versions_after.get(n)
    ]


def locked_environment(lock: str, python: str, cache: Path, say: Callable[[str], None]) -> Path:
    """Return the folder of an environment with exactly this lock, made if it is not in the cache."""
    name = f"lock-{hashlib.sha256(f'{python} {lock}'.encode()).hexdigest()[:16]}"

    def make(folder: Path) -> None:
        say(f"making an environment with {lock.count('==')} packages: {folder}")
        run_tool([*uv(), "venv", "--quiet", "--python", python, str(folder)], "uv makes no environment")
        options = ["--quiet", "--no-deps", "--only-binary", ":all:", "--python", str(folder / "bin" / "python")]
        run_tool([*uv(), "pip", "install", *options, "-r", "-"], "uv cannot install this lock", lock)

    return made_once(cache / name, make)


@dataclass(frozen=True, slots=True)
class Listed:
    """The versions of a package, oldest first; `complete` unless the index could not be reached."""

    versions: Sequence[str]
    complete: bool = True


Listing = Callable[[str], Listed]
"""Returns the versions of a package."""


def listed(name: str, pip: Sequence[str], python: str, *, pre: bool) -> Listed:
    """Return the versions of a package for a Python. Raises `CannotRebuild` if there is none."""
    options = ["--disable-pip-version-check", "--no-input", "--retries", "1", *(["--pre"] if pre else [])]
    problem = f"pip finds no version of {name} with a wheel for {python}"
    command = [*pip, "--python", python, "index", "versions", "--only-binary", ":all:", *options, name]
    try:
        output, is_complete = run_connected(command, problem)
    except NoNetwork as error:
        raise NoNetwork(f"the package index cannot be reached; set PIP_NO_INDEX and PIP_FIND_LINKS: {error}") from error
    match = re.search(r"^Available versions: (.*)$", output, re.MULTILINE)
    if match is None:
        raise CannotRebuild(problem)
    return Listed(sorted(match[1].replace(" ", "").split(","), key=Version), is_complete)


def installed_name(name: str, installed: Mapping[str, str]) -> str:
    """Return the name under which a package is installed: `tensorflow` may be `tensorflow-cpu`."""
    normalised_name = name.lower().replace("_", "-")
    for variants in VARIANTS:
        if normalised_name == variants[0]:
            return next((variant for variant in variants if variant in installed), normalised_name)
    return next((names[0] for names in SETS if normalised_name in names), normalised_name)


def between(name: str, listing: Listed, good: str, bad: str) -> list[str]:
    """Return the versions from the good to the bad one. Raises `UsageError` for one that is not there.

    Raises `NoNetwork` if it may be in the index, which was not reached.
    """
    text_by_version = {Version(listed_version): listed_version for listed_version in listing.versions}
    try:
        first_version, last_version = (
            _known(name, text_by_version, flag, text) for flag, text in (("--good", good), ("--bad", bad))
        )
    except UsageError as error:
        if listing.complete:
            raise
        raise NoNetwork(f"{ONLY_FOLDER}: {error}") from error
    if first_version == last_version:
        raise UsageError(f"--bad: must be another version than --good, got {bad} for both")
    if first_version > last_version:
        raise UsageError(f"--good: must be older than --bad, got {good} and {bad}")
    return [text for version, text in sorted(text_by_version.items()) if first_version <= version <= last_version]


def _known(name: str, text_by_version: Mapping[Version, str], flag: str, text: str) -> Version:
    try:
        version = Version(text)
    except InvalidVersion as error:
        raise UsageError(
            f"{flag}: must be a version of {name}, as in {[*text_by_version.values()][-1]}, got {text!r}"
        ) from error
    if (
        version not in text_by_version
        and len(builds := [known_version for known_version in text_by_version if known_version.public == str(version)])
        == 1
    ):
        return builds[0]  # 2.13.0 may be there as 2.13.0+cpu, which pip takes for it
    if version not in text_by_version:
        has_no_prerelease = not any(known_version.is_prerelease for known_version in text_by_version)
        pre_advice = "; a pre-release needs --pre" if version.is_prerelease and has_no_prerelease else ""
        newest_text = ", ".join([*text_by_version.values()][-SHOWN:])
        nearest = text_by_version[
            max(
                (known_version for known_version in text_by_version if known_version < version),
                default=min(text_by_version),
            )
        ]
        raise UsageError(
            f"{flag}: {name} has no version {text!r} with a wheel for this Python{pre_advice}; the nearest "
            f"is {nearest}, the newest are {newest_text}"
        )
    return version


def requirements(name: str, version: str, installed: Mapping[str, str], listing: Listing) -> list[str]:
    """Return what is installed for a version of a package: the installed packages of its set, at the same version.

    A member without that version gets its newest older one.
    """
    requirement_texts = [f"{name}=={version}"]
    for member in next((names[1:] for names in SETS if name == names[0]), ()):
        if member in installed or member == "jaxlib":
            older_versions = [
                listed_version
                for listed_version in listing(member).versions
                if Version(listed_version) <= Version(version)
            ]
            requirement_texts += [f"{member}=={older_versions[-1]}"] if older_versions else []
    return requirement_texts

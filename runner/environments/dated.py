"""Complete locks by date: what an installation of some packages would have been on a day, by uv's --exclude-newer.

The lock of a day has the newest versions that were uploaded by its end (UTC), of wheels only; as everywhere, KerasHub
without tensorflow-text. uv uses the user's own settings (UV_INDEX_URL and others). Limit: an index that states no
upload times has no history.
"""

from __future__ import annotations

import hashlib
import importlib.util
import shutil
import sys
import tempfile
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from datetime import date, timedelta
from pathlib import Path

from keras_matrix.records.packages import NOT_NEEDED
from keras_matrix.runner.environments.rebuilt import made_once, run_tool
from keras_matrix.runner.errors import UsageError

LockOn = Callable[[date], str]


@dataclass(frozen=True, slots=True)
class DatedLock:
    """A lock, as requirements with exact versions, and the first day that has it."""

    day: date
    lock: str


def uv() -> list[str]:
    """Return the command of uv: that of the extra `bisect`, or one on the path. Raises `UsageError`."""
    if importlib.util.find_spec("uv"):
        return [sys.executable, "-m", "uv"]
    if found := shutil.which("uv"):
        return [found]
    raise UsageError("--dates: needs uv; install it with: pip install 'keras-matrix[bisect]'")


def day(flag: str, text: str, today: date) -> date:
    """Read a date until today. Raises `UsageError`."""
    try:
        found = date.fromisoformat(text)
    except ValueError as error:
        raise UsageError(f"{flag}: must be a date such as 2026-05-01, got {text!r}") from error
    if found > today:
        raise UsageError(f"{flag}: must not be after today, {today}, got {text}")
    return found


def lock_on(wanted: Sequence[str], python: str) -> LockOn:
    """Return a function that returns the lock of a day. It raises `CannotRebuild` if there is none."""

    def lock(on: date) -> str:
        until = f"{on + timedelta(days=1)}T00:00:00Z"
        options = ["--quiet", "--no-header", "--no-annotate", "--only-binary", ":all:", "--python", python]
        with tempfile.NamedTemporaryFile("w", prefix="overrides-", suffix=".txt") as overrides:
            if not any(NOT_NEEDED in one for one in wanted):
                overrides.write(f"{NOT_NEEDED}; sys_platform == 'never'\n")
                overrides.flush()
            command = [*uv(), "pip", "compile", "-", *options, "--override", overrides.name, "--exclude-newer", until]
            return run_tool(command, f"uv finds no lock for {on}", "\n".join(wanted) + "\n")

    return lock


def locks_between(good: date, bad: date, lock: LockOn) -> list[DatedLock]:
    """Return the different locks from the good to the bad day, each with the first day that has it.

    Days between two with the same lock are taken to have it, too.
    """
    if good >= bad:
        raise UsageError(f"--good: must be before --bad, got {good} and {bad}")
    first, last = DatedLock(good, lock(good)), DatedLock(bad, lock(bad))
    if first.lock == last.lock:
        raise UsageError(f"--bad: the lock of {bad} is that of {good}: nothing to search")
    return [first, *_after(first, last, lock)]


def _after(first: DatedLock, last: DatedLock, lock: LockOn) -> list[DatedLock]:
    if first.lock == last.lock:
        return []
    if (days := (last.day - first.day).days) == 1:
        return [last]
    on = first.day + timedelta(days=days // 2)
    middle = DatedLock(on, lock(on))
    return [*_after(first, middle, lock), *_after(middle, last, lock)]


def changed(before: str, after: str) -> list[str]:
    """Return the packages that differ between two locks, as in `keras 3.14.0 -> 3.14.1`."""
    then, now = (dict(line.split("==", 1) for line in lock.splitlines() if "==" in line) for lock in (before, after))
    names = sorted({*then, *now})
    return [f"{n} {then.get(n, 'none')} -> {now.get(n, 'none')}" for n in names if then.get(n) != now.get(n)]


def locked_environment(lock: str, python: str, cache: Path, say: Callable[[str], None]) -> Path:
    """Return the folder of an environment with exactly this lock, made if it is not in the cache."""
    name = f"lock-{hashlib.sha256(f'{python} {lock}'.encode()).hexdigest()[:16]}"

    def make(folder: Path) -> None:
        say(f"making an environment with {lock.count('==')} packages: {folder}")
        run_tool([*uv(), "venv", "--quiet", "--python", python, str(folder)], "uv makes no environment")
        options = ["--quiet", "--no-deps", "--only-binary", ":all:", "--python", str(folder / "bin" / "python")]
        run_tool([*uv(), "pip", "install", *options, "-r", "-"], "uv cannot install this lock", lock)

    return made_once(cache / name, make)

"""The packages on both sides of a change, and the commands that search the version which caused it. Pure."""

from __future__ import annotations

import contextlib
import shlex
from collections.abc import Mapping

from packaging.version import InvalidVersion, Version

from keras_matrix.analysis.history.change_points import Assessment, Change
from keras_matrix.records.backends import TABLE
from keras_matrix.records.packages import DISTRIBUTIONS
from keras_matrix.records.task import PREFIX

# What a process records of its virtual environment, from which another can be made.
PACKAGES = ("python", *DISTRIBUTIONS)
NIGHTLY_KERAS = "keras-nightly"


def packages_around(assessed: Assessment, change: Change) -> tuple[dict[str, str], dict[str, str]]:
    """Return the versions before and after a change and the changes of packages near it, without local versions."""
    offsets = [0, *(one.sessions_off for one in change.versions if one.name in PACKAGES)]
    sides = min(offsets) - 1, max(offsets)  # 0 is the first session after the change
    before, after = (assessed.history.valued[change.index + offset].facts for offset in sides)
    return _versions(before), _versions(after)


def searches(assessed: Assessment, change: Change) -> list[str]:
    """Return a command for each package that became newer; packages that move as one set have one."""
    history = assessed.history
    if str(history.settings.get("workload", "")).startswith(PREFIX):
        return []
    before, after = packages_around(assessed, change)
    moving = {name: backend.name for backend in TABLE.values() for name in (*backend.packages, *backend.plugins)}
    found: dict[str, str] = {}
    for name in DISTRIBUTIONS:
        good, bad = _version(before.get(name)), _version(after.get(name))
        if good and bad and bad > good and (package := _package(name, good, bad)):
            ends = f"--good {shlex.quote(before[name])} --bad {shlex.quote(after[name])}"
            pre = " --pre" if good.is_prerelease or bad.is_prerelease else ""
            found.setdefault(moving.get(name, name), f"runner bisect {history.cell_id} --package {package} {ends}{pre}")
    return list(found.values())


def _package(name: str, good: Version, bad: Version) -> str | None:
    """Return the package that has both versions, or None: Keras's nightly wheels have a name of their own."""
    if name != "keras" or not (good.is_devrelease or bad.is_devrelease):
        return name
    return NIGHTLY_KERAS if good.is_devrelease and bad.is_devrelease else None


def _versions(facts: Mapping[str, str]) -> dict[str, str]:
    return {name: facts[name].partition("+")[0] for name in PACKAGES if name in facts}


def _version(text: str | None) -> Version | None:
    with contextlib.suppress(InvalidVersion):
        return Version(text) if text else None
    return None

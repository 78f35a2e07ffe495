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
        good, bad = before.get(name), after.get(name)
        if good is not None and bad is not None and _is_newer(bad, good):
            ends = f"--package {name} --good {shlex.quote(good)} --bad {shlex.quote(bad)}"
            found.setdefault(moving.get(name, name), f"runner bisect {history.cell_id} {ends}")
    return list(found.values())


def _versions(facts: Mapping[str, str]) -> dict[str, str]:
    return {name: facts[name].partition("+")[0] for name in PACKAGES if name in facts}


def _is_newer(one: str, other: str) -> bool:
    with contextlib.suppress(InvalidVersion):
        return Version(one) > Version(other)
    return False

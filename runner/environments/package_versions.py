"""The versions of a package that can be installed, from pip: the index, or a folder of wheels, as the user has set it.

Yanked versions, and those without a wheel for this Python, are left out; pre-releases, which includes nightly wheels,
too unless they are asked for. Packages that only work together, such as jax and jaxlib, move as one set.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

from packaging.version import InvalidVersion, Version

from keras_matrix.records.backends import TABLE
from keras_matrix.runner.environments.rebuilt import CannotRebuild, NoNetwork, run_connected
from keras_matrix.runner.errors import UsageError

# Packages that move together, the one that gives the version first.
SETS = tuple(
    (*one.packages, *(name for plugin in one.plugins for name in (plugin, plugin.replace("-plugin", "-pjrt"))))
    for one in TABLE.values()
    if one.plugins
)
# Names of the same package built for other devices: the installed one is meant.
VARIANTS = (("tensorflow", "tensorflow-cpu", "tensorflow-rocm", "tf-nightly", "tf-nightly-cpu"),)
SHOWN = 10

ONLY_FOLDER = (
    "the package index cannot be reached, so that only versions in PIP_FIND_LINKS are known; connect, or set "
    "PIP_NO_INDEX to search the folder alone"
)


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
        output, complete = run_connected(command, problem)
    except NoNetwork as error:
        raise NoNetwork(f"the package index cannot be reached; set PIP_NO_INDEX and PIP_FIND_LINKS: {error}") from error
    found = re.search(r"^Available versions: (.*)$", output, re.MULTILINE)
    if found is None:
        raise CannotRebuild(problem)
    return Listed(sorted(found[1].replace(" ", "").split(","), key=Version), complete)


def installed_name(name: str, installed: Mapping[str, str]) -> str:
    """Return the name under which a package is installed: `tensorflow` may be `tensorflow-cpu`."""
    plain = name.lower().replace("_", "-")
    for variants in VARIANTS:
        if plain == variants[0]:
            return next((one for one in variants if one in installed), plain)
    return next((names[0] for names in SETS if plain in names), plain)


def between(name: str, found: Listed, good: str, bad: str) -> list[str]:
    """Return the versions from the good to the bad one. Raises `UsageError` for one that is not there.

    Raises `NoNetwork` if it may be in the index, which was not reached.
    """
    known = {Version(one): one for one in found.versions}
    try:
        first, last = (_known(name, known, flag, text) for flag, text in (("--good", good), ("--bad", bad)))
    except UsageError as error:
        if found.complete:
            raise
        raise NoNetwork(f"{ONLY_FOLDER}: {error}") from error
    if first == last:
        raise UsageError(f"--bad: must be another version than --good, got {bad} for both")
    if first > last:
        raise UsageError(f"--good: must be older than --bad, got {good} and {bad}")
    return [text for version, text in sorted(known.items()) if first <= version <= last]


def _known(name: str, known: Mapping[Version, str], flag: str, text: str) -> Version:
    try:
        version = Version(text)
    except InvalidVersion as error:
        raise UsageError(f"{flag}: must be a version of {name}, as in {[*known.values()][-1]}, got {text!r}") from error
    if version not in known and len(built := [one for one in known if one.public == str(version)]) == 1:
        return built[0]  # 2.13.0 may be there as 2.13.0+cpu, which pip takes for it
    if version not in known:
        without = not any(one.is_prerelease for one in known)
        pre = "; a pre-release needs --pre" if version.is_prerelease and without else ""
        newest = ", ".join([*known.values()][-SHOWN:])
        nearest = known[max((one for one in known if one < version), default=min(known))]
        raise UsageError(
            f"{flag}: {name} has no version {text!r} with a wheel for this Python{pre}; the nearest is {nearest}, "
            f"the newest are {newest}"
        )
    return version


def requirements(name: str, version: str, installed: Mapping[str, str], listing: Listing) -> list[str]:
    """Return what is installed for a version of a package: the installed packages of its set, at the same version.

    A member without that version gets its newest older one.
    """
    wanted = [f"{name}=={version}"]
    for member in next((names[1:] for names in SETS if name == names[0]), ()):
        if member in installed or member == "jaxlib":
            older = [one for one in listing(member).versions if Version(one) <= Version(version)]
            wanted += [f"{member}=={older[-1]}"] if older else []
    return wanted

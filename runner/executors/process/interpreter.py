"""The Python of the cells: the runner's own, or that of another environment that is compared with it.

Another environment has its own Keras, backends and NumPy; this project need not be installed in it. Its cells import
this project from a folder of links that precedes their own packages, so that both sides of a comparison are measured by
the same code.
"""

from __future__ import annotations

import atexit
import contextlib
import importlib.util
import inspect
import json
import os
import re
import subprocess
import sys
import tempfile
from collections.abc import Iterable
from dataclasses import dataclass
from functools import cache
from importlib import metadata
from pathlib import Path
from typing import Any

from packaging.requirements import InvalidRequirement, Requirement
from packaging.version import InvalidVersion, Version

import keras_matrix
from keras_matrix.records import files
from keras_matrix.records.backends import (
    BACKENDS,
    DISTRIBUTIONS,
    KERAS_2_BACKEND,
    KERAS_2_VARIABLE,
    TABLE,
    TF_KERAS,
    TF_KERAS_SWITCH,
)
from keras_matrix.records.codec import CodecError
from keras_matrix.records.trees import remove_tree
from keras_matrix.runner.errors import UsageError

ANSWER_LIMIT_S = 60.0
OLDEST_PYTHON, OLDEST_KERAS, OLDEST_KERAS_2 = (3, 11), "3.5", "2.15"
CONFIGURATION_LIMIT_BYTES = 64 << 10


def imported_keras() -> str | None:
    """Return the version that Keras's own source states, without importing it; None without Keras.

    That of the distribution `keras` would be wrong for a nightly wheel or a checkout, which precede it on the path.
    """
    spec = importlib.util.find_spec("keras")
    path = Path(spec.origin).parent / "src" / "version.py" if spec and spec.origin else None
    text = path.read_text(encoding="utf-8") if path and path.is_file() else ""
    match = re.search(r"""^__version__ = ["']([^"']+)""", text, re.MULTILINE)
    return match[1] if match else None


_FACTS = """
import importlib.metadata, importlib.util, json, re, sys
from pathlib import Path
IMPORTED_KERAS
names, distributions = json.loads(sys.argv[1])
versions = {}
for name in distributions:
    try:
        versions[name] = importlib.metadata.version(name)
    except importlib.metadata.PackageNotFoundError:
        pass
requires = {}
for name in versions:
    for text in importlib.metadata.requires(name) or ():
        needed = re.match("[A-Za-z0-9._-]+", text)[0]
        try:
            requires.setdefault(name, {})[text] = importlib.metadata.version(needed)
        except importlib.metadata.PackageNotFoundError:
            pass
versions |= {"keras": found} if (found := imported_keras()) else {}
absent = [name for name in names if importlib.util.find_spec(name) is None]
print(json.dumps({"python": list(sys.version_info[:3]), "absent": absent, "versions": versions, "requires": requires}))
"""


def installed_versions(distributions: Iterable[str] = DISTRIBUTIONS) -> dict[str, str]:
    """Return the installed versions for the runner's own Python, without importing anything."""
    versions, names = {}, tuple(distributions)
    for name in names:
        with contextlib.suppress(metadata.PackageNotFoundError):
            versions[name] = metadata.version(name)
    if "keras" in names and (version := imported_keras()):
        versions["keras"] = version
    return versions


@dataclass(frozen=True, slots=True)
class Interpreter:
    """A Python by its path; `foreign` if it is not the runner's own."""

    python: str
    foreign: bool = False

    def absent(self, packages: Iterable[str]) -> list[str]:
        """Return which of these packages it cannot find. Imports nothing."""
        if not self.foreign:
            return [name for name in packages if importlib.util.find_spec(name) is None]
        return [str(name) for name in _facts(self.python, tuple(packages))["absent"]]

    def version(self) -> tuple[int, int]:
        """Return the major and minor version of this Python."""
        major, minor = _facts(self.python, ())["python"][:2] if self.foreign else sys.version_info[:2]
        return major, minor

    def versions(self) -> dict[str, str]:
        """Return the versions of Python, of the Keras that is used, NumPy, the backends and KerasHub there."""
        facts = _facts(self.python, ())
        versions = {"python": ".".join(map(str, facts["python"])), **facts["versions"]}
        tf_keras = versions.pop(TF_KERAS, None)
        return versions if tf_keras is None or self.keras_2 != TF_KERAS else {**versions, "keras": tf_keras}

    @property
    def keras_2(self) -> str | None:
        """The module that is Keras 2 there: `keras`, or `tf_keras` if TensorFlow is told to use it; else None."""
        versions = _facts(self.python, ())["versions"] if self.foreign else {}
        if TF_KERAS in versions and os.environ.get(TF_KERAS_SWITCH, "").lower() in ("1", "true"):
            return TF_KERAS
        return "keras" if versions.get("keras", "").startswith("2.") else None

    def check(self, flag: str, backends: Iterable[str], *, are_programs: bool = False) -> None:
        """Refuse an environment that cannot run cells of these backends. Raises `UsageError`, naming `flag`.

        On Keras 2 only programs are measured.
        """
        if absent := self.absent(["keras", "numpy", *backends]):
            raise UsageError(
                f"{flag}: {self.python} has no {', '.join(absent)}; install them there, "
                "or choose other backends with --backend"
            )
        keras = self.versions().get("keras")
        if self.keras_2 is not None:
            self._check_keras_2(flag, backends, are_programs)
        elif keras is not None and _version(keras) < Version(OLDEST_KERAS):
            raise UsageError(f"{flag}: {self.python} has Keras {keras}; install Keras {OLDEST_KERAS} or newer there")

    def _check_keras_2(self, flag: str, backends: Iterable[str], are_programs: bool) -> None:
        version = self.versions()["keras"]
        text = f"{flag}: {self.python} has Keras {version}"
        if not are_programs:
            raise UsageError(
                f"{text}, on which only programs are measured: measure the script that calls fit, by runner script or "
                "in a matrix as workload: {script: train.py}; or install Keras 3 there"
            )
        if others := [name for name in backends if name != KERAS_2_BACKEND]:
            raise UsageError(f"{text}, which runs on {KERAS_2_BACKEND} alone, not on {', '.join(others)}; leave it out")
        if _version(version) < Version(OLDEST_KERAS_2):
            raise UsageError(f"{text}; install TensorFlow {OLDEST_KERAS_2} there, the last one with its own Keras")

    def conflicts(self, backends: Iterable[str]) -> list[str]:
        """Return what Keras and these backends require there and is installed in another version."""
        facts = _facts(self.python, ())
        packages = {"keras", *(package for name in backends for package in TABLE[name].packages)}
        return [
            f"{self.python}: {name} {facts['versions'][name]} requires {requirement}, but has {installed}"
            for name, required in facts["requires"].items()
            if name in packages
            for requirement, installed in required.items()
            if not _is_met(requirement, installed)
        ]

    def variables(self) -> dict[str, str]:
        """Return the variables by which its processes find this project."""
        if not self.foreign:
            return {}
        module = self.keras_2
        switch = {TF_KERAS_SWITCH: "1"} if module == TF_KERAS else {}
        return {"PYTHONPATH": _links(), **({} if module is None else {KERAS_2_VARIABLE: module, **switch})}


def installed_backends(interpreter: Interpreter) -> list[str]:
    """Return the backends that are installed there together with Keras."""
    possible = BACKENDS if interpreter.keras_2 is None else (KERAS_2_BACKEND,)
    return [name for name in possible if not interpreter.absent(("keras", name))]


def of_environment(folder: Path, flag: str) -> Interpreter:
    """Return the Python of a virtual environment's folder, or at a path itself. Raises `UsageError`, naming `flag`."""
    python = folder if folder.is_file() else folder / "bin" / "python"
    if not python.is_file():
        raise UsageError(f"{flag}: must be a virtual environment or a Python, got {folder}: {python} does not exist")
    # Not resolved: a virtual environment's Python is a link, and what it links to has none of its packages.
    path = str(python.absolute())
    version = _facts(path, ())["python"]
    if tuple(version[:2]) < OLDEST_PYTHON:
        oldest_text = ".".join(map(str, OLDEST_PYTHON))
        raise UsageError(
            f"{flag}: must have Python {oldest_text} or newer, got {'.'.join(map(str, version))} at {path}"
        )
    return Interpreter(path, foreign=Path(path) != Path(sys.executable))


@dataclass(frozen=True, slots=True)
class StoredEnvironment:
    """A virtual environment as its files say: its backends, () if they are not known, and why no cell can run there.

    Nothing of it is started, so that a project of somebody else's is only read.
    """

    name: str
    backends: tuple[str, ...]
    problem: str = ""


def read_environment(folder: Path) -> StoredEnvironment | None:
    """Return what is installed in a virtual environment's folder; None if it is none, or cannot be read."""
    try:
        configuration = files.read_plain(folder / "pyvenv.cfg", CONFIGURATION_LIMIT_BYTES).decode(errors="replace")
    except (CodecError, OSError):
        return None
    packages = next(iter(sorted(folder.glob("lib/python3.*/site-packages"))), None)
    if packages is None or not (folder / "bin" / "python").exists():
        return None
    backends = tuple(name for name in BACKENDS if (packages / name).is_dir())
    if re.search(r"^include-system-site-packages *= *true", configuration, re.IGNORECASE | re.MULTILINE):
        return StoredEnvironment(folder.name, ())
    version = packages.parent.name.removeprefix("python")
    oldest = ".".join(map(str, OLDEST_PYTHON))
    keras = [path.name.removesuffix(".dist-info").split("-")[1] for path in packages.glob("keras-[0-9]*.dist-info")]
    problem = ""
    if _version(version) < Version(oldest):
        problem = f"has Python {version}; cells need {oldest} or newer"
    elif not (packages / "keras").is_dir():
        problem = "has no Keras"
    elif keras and _version(keras[0]) < Version(OLDEST_KERAS):
        problem = f"has Keras {keras[0]}; cells need {OLDEST_KERAS} or newer"
    elif not backends:
        problem = f"has none of {', '.join(BACKENDS)}"
    return StoredEnvironment(folder.name, backends, problem)


def _version(text: str) -> Version:
    """Return a version; one that cannot be read is taken for the newest."""
    try:
        return Version(text)
    except InvalidVersion:
        return Version("9999")


def _is_met(text: str, installed: str) -> bool:
    """Return whether an installed version meets a requirement; those of extras and other systems are met."""
    try:
        requirement = Requirement(text)
    except InvalidRequirement:
        return True
    if requirement.marker is not None and not requirement.marker.evaluate({"extra": ""}):
        return True
    return requirement.specifier.contains(_version(installed), prereleases=True)


@cache
def _facts(python: str, packages: tuple[str, ...]) -> dict[str, Any]:
    program = _FACTS.replace("IMPORTED_KERAS", inspect.getsource(imported_keras))
    command = [python, "-I", "-c", program, json.dumps([packages, (*DISTRIBUTIONS, TF_KERAS)])]
    try:
        completed = subprocess.run(command, capture_output=True, text=True, timeout=ANSWER_LIMIT_S, check=True)
        facts: dict[str, Any] = json.loads(completed.stdout)
    except (OSError, subprocess.SubprocessError, ValueError) as error:
        raise UsageError(f"{python}: cannot list what is installed there: {error}") from error
    return facts


@cache
def _links() -> str:
    """Create, once, a folder with links to this project alone; it is removed when the runner ends."""
    folder = Path(tempfile.mkdtemp(prefix="runner-packages-"))
    atexit.register(remove_tree, folder)
    (folder / "keras_matrix").symlink_to(keras_matrix.__path__[0], target_is_directory=True)
    return str(folder)

"""Makes a virtual environment with given versions, once: it stays in a cache for the next command.

pip installs, with the user's own settings: an index, or with PIP_NO_INDEX and PIP_FIND_LINKS a folder of wheels. Only
wheels are installed, since building a package would run its code outside of a cell.

KerasHub is installed without tensorflow-text, which would bring TensorFlow into the environment of another backend.

Guarantee: an environment is used only if its installation was complete, and if the user's own folders have the wheels
of that time; two commands that need the same one make it once. Limit: dependencies that are not listed are those that
pip chooses today.

The wheels in the user's own folders that pip may install for some requirements, by their content.

The version of a wheel in a folder does not determine what is in it: it may be built again. Those of an index do not
change. The folders are pip's `find-links`, from its configuration and PIP_FIND_LINKS; addresses are not read.
"""

from __future__ import annotations

import ast
import contextlib
import errno
import fcntl
import hashlib
import importlib.util
import itertools
import json
import os
import re
import shutil
import subprocess
import sys
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from urllib.parse import urlsplit
from urllib.request import url2pathname

from packaging.requirements import InvalidRequirement, Requirement
from packaging.utils import InvalidWheelFilename, canonicalize_name, parse_wheel_filename

from keras_matrix.records.backends import DISTRIBUTIONS, KERAS_HUB, NOT_NEEDED
from keras_matrix.records.host.inherited_environment import without_user
from keras_matrix.records.trees import remove_tree
from keras_matrix.runner.errors import InfrastructureError, system_reason

COMPLETE = "complete.json"
KNOWN = frozenset(DISTRIBUTIONS)
LIMIT_S = 3600.0
BUILDS_OF_TORCH = "https://download.pytorch.org/whl/"
# What pip and uv write if they cannot connect to an index.
NO_CONNECTION = ("connection broken by", "NewConnectionError", "error sending request", "dns error", "Connect timeout")
# Begins pip's line about versions for other Pythons, which comes before the line that says what is missing.
OF_OTHER_PYTHONS = "Ignored the following versions that require a different python version"
PIP_OPTIONS = ("--disable-pip-version-check", "--no-input", "--progress-bar", "off", "--only-binary", ":all:")
# Begins the lines in which pip says which requirements contradict each other.
CONFLICT = "The conflict is caused by:"
_REQUIRED = f"import importlib.metadata, json; print(json.dumps(importlib.metadata.requires({KERAS_HUB!r}) or []))"
WHEEL_LIMIT_S = 60.0


class CannotRebuild(InfrastructureError):
    """An environment cannot be made. The message says why."""


class NotNow(CannotRebuild):
    """An environment cannot be made now, because of this machine and not of its versions."""


class NoNetwork(NotNow):
    """An environment cannot be made now, because the package index cannot be reached."""


@dataclass(frozen=True, slots=True)
class Recipe:
    """The Python of an environment, as in 3.11, and the exact versions of its packages."""

    python: str
    packages: Mapping[str, str]

    @property
    def requirements(self) -> list[str]:
        """The packages as requirements for pip, sorted."""
        return sorted(f"{with_cuda(name)}=={version}" for name, version in self.packages.items())

    @property
    def name(self) -> str:
        """A name for its folder: a hash, because versions are texts of records."""
        text = json.dumps([self.python, self.requirements])
        return f"python{self.python}-{hashlib.sha256(text.encode()).hexdigest()[:16]}"


def with_cuda(name: str) -> str:
    """Return a package as a requirement; a plugin for CUDA with NVIDIA's packages, without which it finds no GPU."""
    return f"{name}[with-cuda]" if re.fullmatch(r"[a-z]+-cuda[0-9]+-plugin", name) else name


def recipe_of(versions: Mapping[str, str]) -> Recipe:
    """Return the recipe for the versions that a record states. Raises `CannotRebuild` if they are incomplete.

    Only packages are installed that records name, since a record may come from anyone: of another one, code would run
    when it is installed, and its name could be an option of pip.
    """
    version_match = re.fullmatch(r"(3\.[0-9]{1,2})\.[0-9]{1,3}\S{0,8}", versions.get("python", ""))
    packages = {name: version for name, version in versions.items() if name != "python"}
    usable_names = {k for k, v in packages.items() if k in KNOWN and re.fullmatch(r"[0-9][0-9A-Za-z.+!_-]{0,63}", v)}
    unusable_texts = [f"{k!r} {v!r}" for k, v in packages.items() if k not in usable_names]
    if version_match is None or not packages or unusable_texts:
        stated_text = f"Python {versions.get('python', 'not stated')}, number of packages {len(packages)}"
        problem = ", ".join(unusable_texts) or stated_text
        raise CannotRebuild(f"the record states no usable versions: {problem}; name an environment with --env")
    return Recipe(version_match[1], packages)


def installable(versions: Mapping[str, str]) -> dict[str, str]:
    """Return the versions that an environment can have: of Python 3.11, without its patch release."""
    return {
        name: ".".join(version.split(".")[:2]) if name == "python" else version for name, version in versions.items()
    }


def cache_folder() -> Path:
    """Return the folder of the cached environments."""
    base = os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache"
    return Path(base) / "keras-benchmark-matrix" / "environments"


def environment(recipe: Recipe, cache: Path, say: Callable[[str], None]) -> Path:
    """Return the folder of the environment of a recipe, made if it is not in the cache. Raises `CannotRebuild`."""
    tool = pip(cache, say) if recipe.packages else []  # which may itself need an environment without packages
    folder = cache / stored_name(recipe.name, recipe.requirements, tool)

    def make(empty_folder: Path) -> None:
        say(f"making an environment with Python {recipe.python} and {', '.join(recipe.requirements)}: {empty_folder}")
        _make(recipe, empty_folder)

    return made_once(folder, make)


def pip(cache: Path, say: Callable[[str], None]) -> list[str]:
    """Return the command of a pip: the runner's own, or one in the cache if its environment has none."""
    if importlib.util.find_spec("pip"):
        return [sys.executable, "-m", "pip"]
    recipe = Recipe(f"{sys.version_info.major}.{sys.version_info.minor}", {})
    return [str(environment(recipe, cache, say) / "bin" / "python"), "-m", "pip"]


def stored_name(name: str, requirements: Sequence[str], tool: Sequence[str]) -> str:
    """Return the name of an environment's folder in the cache: another one for other wheels of the user's folders."""
    wheels = local_wheels(requirements, tool)
    return f"{name}-{hashlib.sha256(json.dumps(wheels).encode()).hexdigest()[:8]}" if wheels else name


def made_once(folder: Path, make: Callable[[Path], None]) -> Path:
    """Return a folder of the cache that `make` fills, once for all commands. Raises `CannotRebuild`."""
    try:
        folder.parent.mkdir(parents=True, exist_ok=True)
        with folder.with_name(f"{folder.name}.lock").open("w") as lock:
            fcntl.flock(lock, fcntl.LOCK_EX)
            if not (folder / COMPLETE).is_file():
                remove_tree(folder)  # one that was not completed
                make(folder)
                (folder / COMPLETE).write_text("{}", encoding="utf-8")
    except OSError as error:
        raise NotNow(f"{error.filename or folder}: {error.strerror}; set XDG_CACHE_HOME to another") from error
    return folder


def _make(recipe: Recipe, folder: Path) -> None:
    python = _interpreter(recipe.python)
    run_tool([python, "-m", "venv", str(folder)], f"Python {recipe.python} makes no environment")
    python = str(folder / "bin" / "python")
    pip = [python, "-m", "pip", "install", *PIP_OPTIONS, *_indexes(recipe.packages.values())]
    install(pip, python, recipe.requirements, "pip cannot install these versions")


def install(pip: Sequence[str], python: str, requirements: Sequence[str], problem: str) -> None:
    """Run pip's install command with exact versions. Raises `CannotRebuild` with the problem.

    KerasHub comes first and alone, then with the others what it requires, without what is not needed.
    """
    names = {_name(requirement) for requirement in requirements}
    with_dependencies = [requirement for requirement in requirements if _name(requirement) != KERAS_HUB]
    if KERAS_HUB in names:
        run_tool([*pip, "--no-deps", *sorted({*requirements} - {*with_dependencies})], problem)
        required_texts = json.loads(
            run_tool([python, "-I", "-c", _REQUIRED], f"{python} does not say what KerasHub requires")
        )
        with_dependencies += [
            requirement for requirement in required_texts if _name(requirement) not in {*names, NOT_NEEDED}
        ]
    if with_dependencies:
        run_tool([*pip, *with_dependencies], problem)


def _name(requirement: str) -> str:
    """Return the name of a requirement. Its version may be none at all, since a record states it."""
    return re.split(r"[^\w.-]", requirement, maxsplit=1)[0].lower().replace("_", "-")


def _interpreter(version: str) -> str:
    """Return the command of a Python of this version. Raises `CannotRebuild`."""
    if version == f"{sys.version_info.major}.{sys.version_info.minor}":
        return sys.executable
    path = shutil.which(f"python{version}")
    if path is None or not _runs(path):  # a version manager's command may be there without its Python
        problem = f"there is no python{version} on the path" if path is None else f"{path} does not run"
        raise CannotRebuild(f"Python {version} is not installed here: {problem}; install it, or name another --env")
    return path


def _runs(python: str) -> bool:
    try:
        run_tool([python, "-I", "-c", ""], f"{python} does not run")
    except CannotRebuild:
        return False
    return True


def _indexes(versions: Iterable[str]) -> list[str]:
    """Return the options for the additional indexes of builds such as 2.9.0+cpu and 2.9.0+cu128."""
    labels = sorted({label for version in versions if (label := version.partition("+")[2])})
    if "PIP_NO_INDEX" in os.environ:
        return []
    return [option for label in labels for option in ("--extra-index-url", f"{BUILDS_OF_TORCH}{label}")]


def run_tool(command: list[str], problem: str, text: str = "") -> str:
    """Return the output of a tool such as pip, which gets `text` as its input.

    Raises `CannotRebuild` with the problem and the tool's reason, `NotNow` if that is the connection or a full disk.
    """
    return run_connected(command, problem, text)[0]


def run_connected(command: list[str], problem: str, text: str = "") -> tuple[str, bool]:
    """Return the same, and whether the index was reached: pip may succeed with a folder of wheels alone."""
    try:
        completed = subprocess.run(
            command, check=False, capture_output=True, text=True, errors="replace", timeout=LIMIT_S, input=text
        )
    except subprocess.TimeoutExpired as error:
        raise NotNow(f"{problem}: not done after {LIMIT_S:.0f} s") from error
    if completed.returncode:
        output = completed.stderr or completed.stdout
        reason = _conflict(completed.stdout + completed.stderr) or _not_connected(output) or _cause(output)
        raise failure(output)(f"{problem}: {without_user(reason)}")
    return completed.stdout, _connected(completed.stderr)


def failure(output: str) -> type[CannotRebuild]:
    """Return which error the output of a tool that failed is."""
    if os.strerror(errno.ENOSPC) in output:
        return NotNow
    return CannotRebuild if _connected(output) else NoNetwork


def _connected(output: str) -> bool:
    return not any(sign in output for sign in NO_CONNECTION)


def _not_connected(output: str) -> str:
    """Return why there is no connection, as in `[Errno 111] Connection refused`; empty if that is not the cause."""
    return "" if _connected(output) else system_reason(output)


def _conflict(output: str) -> str:
    """Return the requirements that contradict each other, as pip lists them; empty if it lists none."""
    lines = itertools.takewhile(str.strip, output.partition(CONFLICT)[2].split("\n")[1:])
    return "; ".join(line.strip() for line in lines)


def _cause(output: str) -> str:
    """Return the lines in which pip or uv says why: pip's first error, uv's last cause is the most specific one."""
    lines = [line.strip() for line in output.splitlines() if line.strip()]
    errors = [line.removeprefix("ERROR: ") for line in lines if line.startswith("ERROR: ")]
    errors = [line for line in errors if not line.startswith(OF_OTHER_PYTHONS)] or errors
    return "; ".join(errors[:2]) or (lines[-1].removeprefix("cause: ") if lines else "no message")


def local_wheels(requirements: Sequence[str], pip: Sequence[str]) -> list[str]:
    """Return the wheels that pip, given by its command, may install from folders: each by its name and its hash."""
    parsed = [requirement for text in requirements if (requirement := _requirement(text)) is not None]
    folders = _folders(pip) if parsed else []
    files = sorted(
        {
            file
            for folder in folders
            for file in _wheels(folder)
            if any(_is_of(file, requirement) for requirement in parsed)
        }
    )
    return sorted({f"{file.name} {digest}" for file in files if (digest := _digest(file)) is not None})


def _requirement(text: str) -> Requirement | None:
    with contextlib.suppress(InvalidRequirement):
        return Requirement(text)
    return None


def _folders(pip: Sequence[str]) -> list[Path]:
    """Return the folders among the values of find-links; none if pip does not state its configuration."""
    command = [*pip, "config", "list", "--disable-pip-version-check"]
    try:
        completed = subprocess.run(command, check=False, capture_output=True, text=True, timeout=WHEEL_LIMIT_S)
    except (OSError, subprocess.TimeoutExpired):
        return []
    return list(dict.fromkeys(folder for line in completed.stdout.splitlines() for folder in _folders_of(line)))


def _folders_of(line: str) -> Iterator[Path]:
    """Yield the folders of a line such as `:env:.find-links='/wheels file:///more'`."""
    key, _, value = line.partition("=")
    if not key.endswith(".find-links"):
        return
    with contextlib.suppress(ValueError, SyntaxError):
        for place in str(ast.literal_eval(value)).split():
            address = urlsplit(place)
            if address.scheme in ("", "file"):
                yield Path(url2pathname(address.path) if address.scheme else place).expanduser().absolute()


def _wheels(folder: Path) -> list[Path]:
    with contextlib.suppress(OSError):
        return [file for file in folder.iterdir() if file.suffix == ".whl"]
    return []


def _is_of(file: Path, requirement: Requirement) -> bool:
    with contextlib.suppress(InvalidWheelFilename):
        name, version, _, _ = parse_wheel_filename(file.name)
        return name == canonicalize_name(requirement.name) and requirement.specifier.contains(version, prereleases=True)
    return False


def _digest(file: Path) -> str | None:
    with contextlib.suppress(OSError), file.open("rb") as content:
        return hashlib.file_digest(content, "sha256").hexdigest()
    return None

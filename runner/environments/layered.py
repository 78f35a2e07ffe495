"""Makes a virtual environment that has some packages of its own and all others of a base environment, once.

Its own packages come first on the search path, then the folders of `Layer.paths`, such as a checkout, then those of the
base, which is not changed. So two layers of one base differ in these packages only, and cost seconds.

Guarantee: a layer is made for the packages that the base had at that time, and for the wheels that the user's own
folders had; after a change of either it is made again.
"""

from __future__ import annotations

import hashlib
import json
import sys
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from keras_matrix.runner.environments.rebuilt import PIP_OPTIONS, install, made_once, pip, run_tool, stored_name

_DISTRIBUTIONS = """
import importlib.metadata, json
found = {}
for one in importlib.metadata.distributions():
    found.setdefault(one.metadata["Name"], one.version)
print(json.dumps(found))
"""
_PACKAGES = "import sysconfig; print(sysconfig.get_path('purelib'))"


@dataclass(frozen=True, slots=True)
class BaseEnvironment:
    """The Python of a base environment, and the versions of all its packages by name, in lower case with dashes."""

    python: str
    versions: Mapping[str, str]


@dataclass(frozen=True, slots=True)
class Layer:
    """What an environment has of its own: requirements for pip, and folders to import from."""

    requirements: Sequence[str] = ()
    paths: Sequence[str] = ()
    base: BaseEnvironment = field(default_factory=lambda: base_of(sys.executable))

    @property
    def name(self) -> str:
        """A name for its folder."""
        text = json.dumps([self.base.python, sorted(self.base.versions.items()), self.requirements, self.paths])
        return f"layer-{hashlib.sha256(text.encode()).hexdigest()[:16]}"


def base_of(python: str) -> BaseEnvironment:
    """Return the environment of a Python. Raises `CannotRebuild` if it does not answer."""
    return BaseEnvironment(python, distributions(python))


def distributions(python: str) -> dict[str, str]:
    """Return the versions of all packages that a Python finds, by name. Raises `CannotRebuild`."""
    versions = json.loads(run_tool([python, "-I", "-c", _DISTRIBUTIONS], f"{python} does not list its packages"))
    return {name.lower().replace("_", "-"): version for name, version in sorted(versions.items()) if name}


def layered(layer: Layer, cache: Path, say: Callable[[str], None]) -> Path:
    """Return the folder of the environment, made if it is not in the cache. Raises `CannotRebuild`."""

    def make(folder: Path) -> None:
        say(f"making an environment with {', '.join([*layer.requirements, *layer.paths])}: {folder}")
        python = str(folder / "bin" / "python")
        run_tool([layer.base.python, "-m", "venv", "--without-pip", str(folder)], "Python makes no environment")
        packages_folder = run_tool(
            [python, "-I", "-c", _PACKAGES], f"{python} does not say where its packages are"
        ).strip()
        shared_folder = run_tool(
            [layer.base.python, "-I", "-c", _PACKAGES], "the base does not say where its packages are"
        )
        # addsitedir also reads the .pth files of the base, such as those of editable installations.
        lines = [*layer.paths, f"import site; site.addsitedir({shared_folder.strip()!r})"]
        (Path(packages_folder) / "layer.pth").write_text("\n".join(lines) + "\n", encoding="utf-8")
        if layer.requirements:
            command = [*tool, "--python", python, "install", *PIP_OPTIONS]
            install(command, python, layer.requirements, "pip cannot install these versions together")

    tool = pip(cache, say) if layer.requirements else []
    return made_once(cache / stored_name(layer.name, layer.requirements, tool), make)

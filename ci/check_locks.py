"""Checks, without a network, that the locks fit pyproject.toml.

Guarantee: each lock pins every direct requirement of its extras and groups exactly once, within its bounds, for each
processor and each Python that it names, which are those of the project up to one of them (the emulator's: its own);
every pin but the CPU build of torch has a hash; no lock names a file, an address or an index.
A pin with a marker counts for the Pythons and processors that the marker names.
Limit: indirect requirements are not checked; docker/check_packages does so at the end of ci/setup.
"""

import re
import sys
import tomllib
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from packaging.requirements import InvalidRequirement, Requirement
from packaging.utils import canonicalize_name

ROOT = Path(__file__).parent.parent
MACHINES = ("x86_64", "aarch64")
TORCH_BUILD = "torch-build-cpu"
NOT_PORTABLE = re.compile(r"^\s*-|\S+://|^\s*[./]")


@dataclass(frozen=True, slots=True)
class Lock:
    """One file in locks/: its extras and dependency groups, in addition to the project's dependencies.

    With `builds`, the build requirements of the wheel; with `groups_only`, its `groups` without the requirements of the
    host side; with `lists`, the contents of a file in docker/, apart from the project. `pythons` are set where they are
    not the project's.
    """

    name: str
    extras: tuple[str, ...] = ()
    groups: tuple[str, ...] = ()
    torch_apart: bool = False
    builds: bool = False
    groups_only: bool = False
    lists: str = ""
    pythons: tuple[str, ...] = ()
    machines: tuple[str, ...] = MACHINES


AMD64 = ("x86_64",)


LOCKS = (
    Lock("build", builds=True),
    Lock("host"),
    Lock("ray", ("ray",), groups_only=True),
    Lock("opencv", ("opencv",), groups_only=True),
    Lock("serve", ("serve",), groups_only=True),
    Lock("ray-head", ("ray-head",)),
    Lock("dashboard", ("dashboard", "bigquery")),
    Lock("uploader", groups=("uploader",), groups_only=True),
    Lock("docs", groups=("docs",), groups_only=True),
    Lock("audit", groups=("audit",), groups_only=True),
    Lock("release", groups=("release",), groups_only=True),
    Lock(
        "cpu",
        ("tf-cpu", "jax-cpu", "torch-cpu", "dashboard", "bigquery", "tensorboard", "whatif", "bisect", "hub"),
        ("dev",),
        torch_apart=True,
    ),
    Lock("tf-cpu", ("tf-cpu", "hub")),
    Lock("tf-gpu", ("tf-gpu", "hub"), machines=AMD64),
    Lock("jax-cpu", ("jax-cpu", "hub")),
    Lock("jax-gpu", ("jax-gpu", "hub"), machines=AMD64),
    Lock("jax-gpu-cuda13", ("jax-gpu-cuda13", "hub"), machines=AMD64),
    Lock("jax-tpu", ("jax-tpu", "hub"), machines=AMD64),
    Lock("torch-cpu", ("torch-cpu", "hub"), torch_apart=True),
    Lock("torch-gpu", ("torch-gpu", "hub"), machines=AMD64),
    Lock("openvino-cpu", ("openvino-cpu", "hub")),
    Lock("bigquery", lists="emulator.in", pythons=("3.13",), machines=AMD64),
    Lock("keras2", lists="keras2.in", pythons=("3.11",), machines=AMD64),
)


def required(pyproject: dict[str, Any], lock: Lock) -> list[Requirement]:
    """The direct requirements that the lock must satisfy."""
    if lock.lists:
        lines = (ROOT / "docker" / lock.lists).read_text().splitlines()
        return [Requirement(line) for line in lines if line and not line.startswith("#")]
    if lock.builds:
        return [Requirement(text) for text in pyproject["build-system"]["requires"]]
    project = pyproject["project"]
    texts = [] if lock.groups_only else list(project["dependencies"])
    for extra in lock.extras:
        texts += project["optional-dependencies"][extra]
    for group in lock.groups:
        texts += pyproject["dependency-groups"][group]
    return [Requirement(text) for text in texts]


def pins(text: str) -> tuple[list[Requirement], list[str]]:
    """The pinned requirements of a lock's text, and the problems of its lines."""
    requirements, problems = [], []
    joined = re.sub(r"\\\n", " ", text)
    for line in filter(None, (line.partition("#")[0].strip() for line in joined.splitlines())):
        pin, *hashes = re.split(r"\s+--hash=sha256:", line)
        if NOT_PORTABLE.search(pin):
            problems.append(f"only pins belong into a lock, got {pin!r}")
            continue
        try:
            requirement = Requirement(pin)
        except InvalidRequirement:
            problems.append(f"not a requirement, got {pin!r}")
            continue
        if not hashes and requirement.name != "torch":
            problems.append(f"{requirement.name} has no hash")
        requirements.append(requirement)
    return requirements, problems


def supported_pythons(pyproject: dict[str, Any]) -> tuple[str, ...]:
    """The Pythons that the project's classifiers name, the oldest first."""
    lines = pyproject["project"]["classifiers"]
    return tuple(line.rpartition(" ")[2] for line in lines if re.search(r":: 3\.\d+$", line))


def pythons_of(text: str) -> tuple[str, ...]:
    """The Pythons that a lock names, the oldest first."""
    line = re.search(r"^# Pythons: (.+)$", text, re.MULTILINE)
    return tuple(line[1].split()) if line else ()


def environment_of(python: str, machine: str = "x86_64") -> dict[str, str]:
    """The values of markers' variables under a Python on a processor."""
    names = {"python_version": python, "python_full_version": f"{python}.0"}
    return {**names, "platform_machine": machine, "sys_platform": "linux"}


def versions(text: str, python: str) -> dict[str, str]:
    """The versions that a lock's text pins for a Python on x86-64, by name."""
    environment = environment_of(python)
    applying = (pin for pin in pins(text)[0] if pin.marker is None or pin.marker.evaluate(environment))
    return {pin.name: str(pin.specifier).removeprefix("==") for pin in applying}


def misfit(requirement: Requirement, pinned: list[Requirement], environment: dict[str, str]) -> str | None:
    """Why the pins do not satisfy the wanted requirement in that environment, or None if they do."""
    if requirement.marker is not None and not requirement.marker.evaluate(environment):
        return None
    name = canonicalize_name(requirement.name)
    matching = [
        pin
        for pin in pinned
        if canonicalize_name(pin.name) == name and (pin.marker is None or pin.marker.evaluate(environment))
    ]
    if len(matching) != 1:
        place = f"Python {environment['python_version']} on {environment['platform_machine']}"
        return f"{requirement} needs one pin under {place}, got {[str(pin) for pin in matching]}"
    version = str(matching[0].specifier).removeprefix("==")
    if not requirement.specifier.contains(version, prereleases=True):
        return f"{requirement} does not allow the pinned {version}"
    return None


def problems_of(lock: Lock, pyproject: dict[str, Any], texts: dict[str, str]) -> list[str]:
    """Everything that is wrong with one lock, given the texts of all."""
    names = [lock.name, TORCH_BUILD] if lock.torch_apart else [lock.name]
    parsed = [pins(texts.get(name, "")) for name in names]
    pinned = [pin for requirements, _ in parsed for pin in requirements]
    problems = [problem for _, wrong in parsed for problem in wrong]
    named, possible = pythons_of(texts.get(lock.name, "")), lock.pythons or supported_pythons(pyproject)
    if not named or named != possible[: len(named)]:
        problems.append(f"must name Pythons from {possible[0]} on, up to one of {', '.join(possible)}, got {named}")
    misfits = (
        misfit(requirement, pinned, environment_of(python, machine))
        for requirement in required(pyproject, lock)
        for python in named
        for machine in lock.machines
    )
    return [f"locks/{lock.name}.txt: {problem}" for problem in dict.fromkeys([*problems, *filter(None, misfits)])]


def main() -> int:
    """Print every problem of every lock; return 0 without problems, else 1."""
    pyproject = tomllib.loads((ROOT / "pyproject.toml").read_text())
    texts = {path.stem: path.read_text() for path in (ROOT / "locks").glob("*.txt")}
    problems = [problem for lock in LOCKS for problem in problems_of(lock, pyproject, texts)]
    for problem in problems:
        print(problem, file=sys.stderr)
    print("locks: run ci/lock" if problems else f"locks: all {len(LOCKS)} fit pyproject.toml")
    return 1 if problems else 0


if __name__ == "__main__":
    sys.exit(main())

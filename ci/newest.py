"""Measures the newest versions against the locked ones, by `runner gate` on the default matrix. See ci/newest.

Guarantee: a comparison changes one thing, the versions or the Python: old locks against new locks under .venv's Python,
then the new locks under this Python against the newest one here. The locks of the project change only after the tests
have passed under each Python and nothing has regressed.
Limit: the CPU only. A backend without a build for a Python is left out there, and named.
"""

from __future__ import annotations

import argparse
import itertools
import os
import shutil
import subprocess
import sys
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from packaging.version import Version

from ci.compatibility import pins

ROOT = Path(__file__).parent.parent
FOLDER = ROOT / "build" / "newest"
LOCKS = ROOT / "locks"
CANDIDATE = FOLDER / "candidate"
BACKENDS = ("tensorflow", "jax", "torch")
# What the figures depend on; the other packages are counted.
SHOWN = ("keras", "keras-hub", "tensorflow-cpu", "jax", "jaxlib", "torch", "numpy", "scipy", "scikit-learn")
PRERELEASES = ("keras", "tensorflow-cpu", "jax", "jaxlib")
OUTCOMES = {0: "no worse", 4: "regressed", 5: "undecided"}
TESTS = "(smoke or not process) and not browser and not docker and not gpu and not emulator"


@dataclass(frozen=True, slots=True)
class Side:
    """An environment: the locks in a folder, under a Python."""

    name: str
    locks: Path
    python: str
    program: str
    backends: tuple[str, ...] = BACKENDS

    @property
    def folder(self) -> Path:
        """Its virtual environment."""
        return FOLDER / self.name

    @property
    def interpreter(self) -> Path:
        """Its Python."""
        return self.folder / "bin" / "python"


def versions_table(sides: Sequence[tuple[Side, dict[str, str]]]) -> str:
    """The versions on each side as Markdown: what the figures depend on, and how many others differ from the left."""
    header = " | ".join(f"{side.name}, Python {side.python}" for side, _ in sides)
    lines = [f"| package | {header} |", "|---" * (len(sides) + 1) + "|"]
    for name in SHOWN:
        versions = [pinned.get(name) if _has(side, name) else None for side, pinned in sides]
        lines.append(f"| {name} | {' | '.join(version or '-' for version in versions)} |")
    before = sides[0][1]
    others = [sum(before.get(name) != pinned[name] for name in pinned if name not in SHOWN) for _, pinned in sides]
    lines.append(f"| other packages that differ | {' | '.join(str(count) if count else '-' for count in others)} |")
    return "\n".join(lines)


def _has(side: Side, package: str) -> bool:
    return package != "torch" or "torch" in side.backends


def comparisons(sides: Sequence[tuple[Side, dict[str, str]]]) -> list[tuple[Side, Side]]:
    """Each two neighbours that differ; sides with the same versions under the same Python are not measured."""
    return [
        (old, new)
        for (old, before), (new, after) in itertools.pairwise(sides)
        if before != after or old.python != new.python
    ]


def gate_command(old: Side, new: Side, budget_s: int) -> list[str]:
    """The command that measures one comparison, of the backends that both sides have."""
    common = [backend for backend in BACKENDS if backend in old.backends and backend in new.backends]
    results = FOLDER / "results" / f"{old.name}-{new.name}"
    command = [".venv/bin/runner", "gate", "--base-env", str(old.folder), "--new-env", str(new.folder)]
    command += ["--budget", str(budget_s), "--results", str(results), "--markdown", str(results.with_suffix(".md"))]
    return command + [word for backend in common for word in ("--backend", backend)]


def decision(outcomes: Sequence[str], tests: Sequence[bool]) -> str | None:
    """Why the new locks must not be written; None if they may be. An undecided comparison is no objection."""
    if bad := [outcome for outcome in outcomes if outcome not in ("no worse", "undecided")]:
        return f"a comparison ended as {bad[0]}"
    return None if all(tests) else "tests fail with the new versions"


def resolve(prereleases: bool) -> None:
    """Write the candidate's locks, in a copy of what ci/lock reads."""
    shutil.rmtree(CANDIDATE, ignore_errors=True)
    for name in (
        "ci/lock",
        "ci/run_uv.py",
        "pyproject.toml",
        "locks",
        "docker/emulator.in",
        "docker/emulator-override.in",
    ):
        target = CANDIDATE / name
        target.parent.mkdir(parents=True, exist_ok=True)
        (shutil.copytree if (ROOT / name).is_dir() else shutil.copy)(ROOT / name, target)
    environment = {**os.environ, "PYTHON": sys.executable}
    options = ["--upgrade"]
    for name in PRERELEASES if prereleases else ():
        options += ["--prerelease-package", f"{name}=allow"]
    subprocess.run([CANDIDATE / "ci" / "lock", *options], env=environment, check=True)


def install(side: Side) -> Side:
    """Make the side's environment; without torch where there is no build for its Python."""
    uv = [sys.executable, "-I", "ci/run_uv.py", "pip", "install", "--quiet", "--python", str(side.interpreter)]
    locked = ["--no-deps", "--only-binary", ":all:", "-r"]
    subprocess.run([side.program, "-m", "venv", "--clear", side.folder], check=True)
    subprocess.run([*uv, "--require-hashes", *locked, side.locks / "cpu.txt"], check=True)
    build = [*uv, *locked, str(side.locks / "torch-build-cpu.txt")]
    has_torch = any(
        subprocess.run([*build, *index], check=False).returncode == 0
        for index in ([], ["--index-url", "https://download.pytorch.org/whl/cpu"])
    )
    packages = next((side.folder / "lib").glob("python*/site-packages"))
    (packages / "keras-matrix.pth").write_text(f"{ROOT / 'src'}\n")
    subprocess.run(
        [side.interpreter, "-m", "compileall", "-q", "-j", "0", packages], stdout=subprocess.DEVNULL, check=False
    )
    return side if has_torch else replace(side, backends=("tensorflow", "jax"))


def sides() -> list[Side]:
    """Old locks and new locks under .venv's Python, and the new ones under the newest Python here, if it is newer."""
    listed = subprocess.run(["ci/pythons"], stdout=subprocess.PIPE, text=True, check=True).stdout
    found = dict(line.split(" ", 1) for line in listed.splitlines())
    current = "{}.{}".format(*sys.version_info[:2])
    newest = max(found, key=Version)
    chosen = [
        Side("old-locks", LOCKS, current, found[current]),
        Side("new-locks", CANDIDATE / "locks", current, found[current]),
    ]
    if newest != current:
        chosen.append(Side("new-python", CANDIDATE / "locks", newest, found[newest]))
    return chosen


def pinned_by(side: Side) -> dict[str, str]:
    """The versions that a side's locks pin."""
    texts = [(side.locks / f"{name}.txt").read_text(encoding="utf-8") for name in ("cpu", "torch-build-cpu")]
    return pins("\n".join(texts), side.python)


def tests_pass(side: Side) -> bool:
    """Run the unit tier, and the smoke tests of the backends that the side has."""
    command = [side.interpreter, "-m", "pytest", "-q", "-n", str(os.cpu_count()), "-m", TESTS]
    if "torch" not in side.backends:
        command += ["-k", "not torch"]
    return subprocess.run(command, check=False).returncode == 0


def main(arguments: Sequence[str] | None = None) -> int:
    """Return 0 if the new versions may be used, 1 if not."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--budget", type=int, default=1800, help="seconds for each comparison (default: 1800)")
    parser.add_argument("--prereleases", action="store_true", help="also the pre-releases of Keras and the backends")
    parser.add_argument("--keep", action="store_true", help="write no locks")
    options = parser.parse_args(arguments)
    os.chdir(ROOT)
    (FOLDER / "results").mkdir(parents=True, exist_ok=True)
    resolve(options.prereleases)
    made = [install(side) for side in sides()]
    pinned = [(side, pinned_by(side)) for side in made]
    report, outcomes = [f"# Newest versions\n\n{versions_table(pinned)}\n"], []
    for old, new in comparisons(pinned):
        command = gate_command(old, new, options.budget)
        code = subprocess.run(command, check=False).returncode
        outcomes.append(OUTCOMES.get(code, f"exit code {code}"))
        findings = Path(command[command.index("--markdown") + 1])
        text = findings.read_text(encoding="utf-8") if findings.exists() else "Nothing was measured."
        report.append(f"## {old.name} against {new.name}: {outcomes[-1]}\n\n{text}\n")
    objection = decision(outcomes, [tests_pass(side) for side in made[1:]])
    report.append(f"The new locks {'may be used.' if objection is None else f'were not written: {objection}.'}\n")
    (FOLDER / "table.md").write_text("\n".join(report), encoding="utf-8")
    if objection is None and not options.keep:
        shutil.copytree(CANDIDATE / "locks", LOCKS, dirs_exist_ok=True)
    print("\n".join(report))
    return 0 if objection is None else 1


if __name__ == "__main__":
    sys.exit(main())

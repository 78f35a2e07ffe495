"""Measures the newest versions against the locked ones, by `runner gate` on the default matrix. See ci/newest.

Guarantee: a comparison changes one thing, the versions or the Python: old locks against new locks under .venv's Python
and under the newest one here, then the two Pythons with the same versions of what a step runs. Where the locks pin
other versions for each Python, their effect cannot be told from the Python's: nothing is measured, and the table says
so. The locks of the project change only after the tests have passed under each Python and nothing has regressed.
Limit: the CPU only; packages that no step runs are taken for no change of its time. A backend without a build for a
Python is left out there, and named.
"""

from __future__ import annotations

import argparse
import itertools
import os
import re
import shutil
import subprocess
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from packaging.version import Version

from ci.check_locks import versions

ROOT = Path(__file__).parent.parent
FOLDER = ROOT / "build" / "newest"
LOCKS = ROOT / "locks"
CANDIDATE = FOLDER / "candidate"
BACKENDS = ("tensorflow", "jax", "torch")
# What a step runs, and so what its time depends on; the other packages are counted.
SHOWN = ("keras", "keras-hub", "tensorflow-cpu", "jax", "jaxlib", "torch", "numpy", "scipy", "ml-dtypes", "optree")
PRERELEASES = ("keras", "tensorflow-cpu", "jax", "jaxlib")
OUTCOMES = {0: "no worse", 4: "regressed", 5: "undecided"}
TESTS = "(smoke or not process) and not browser and not docker and not gpu and not emulator"


@dataclass(frozen=True, slots=True)
class Side:
    """An environment: the `old` or `new` locks, under a Python."""

    age: str
    locks: Path
    python: str
    program: str
    pinned: Mapping[str, str]
    backends: tuple[str, ...] = BACKENDS

    @property
    def name(self) -> str:
        """Of its folder."""
        return f"{self.age}-{self.python}"

    def __str__(self) -> str:
        return f"{self.age} locks, Python {self.python}"

    @property
    def folder(self) -> Path:
        """Its virtual environment."""
        return FOLDER / self.name

    @property
    def interpreter(self) -> Path:
        """Its Python."""
        return self.folder / "bin" / "python"


def versions_table(sides: Sequence[Side]) -> str:
    """The versions on each side as Markdown: what the figures depend on, and how many others differ from the left."""
    lines = [f"| package | {' | '.join(map(str, sides))} |", "|---" * (len(sides) + 1) + "|"]
    for name in SHOWN:
        versions = [side.pinned.get(name) if _has(side, name) else None for side in sides]
        lines.append(f"| {name} | {' | '.join(version or '-' for version in versions)} |")
    others = [sum(name not in SHOWN for name in differing(sides[0], side)) for side in sides]
    lines.append(f"| other packages that differ | {' | '.join(str(count) if count else '-' for count in others)} |")
    return "\n".join(lines)


def _has(side: Side, package: str) -> bool:
    return package != "torch" or "torch" in side.backends


def differing(left: Side, right: Side) -> list[str]:
    """The packages that two sides do not pin in the same version, also those that only one side has."""
    names = sorted({*left.pinned, *right.pinned})
    return [name for name in names if left.pinned.get(name) != right.pinned.get(name)]


def decisive(left: Side, right: Side) -> list[str]:
    """Of the packages that differ those that a step runs."""
    return [name for name in differing(left, right) if name in SHOWN]


def steps(sides: Sequence[Side]) -> tuple[list[tuple[Side, Side]], list[tuple[Side, Side]]]:
    """The steps from old versions to new ones, one under each Python, and those from a Python to the next."""
    old, new = ([side for side in sides if side.age == age] for age in ("old", "new"))
    return list(zip(old, new, strict=True)), list(itertools.pairwise(new))


def comparisons(sides: Sequence[Side]) -> list[tuple[Side, Side]]:
    """What is measured: a change of what a step runs, and a Python under which a step runs the same."""
    versions, pythons = steps(sides)
    return [pair for pair in versions if decisive(*pair)] + [pair for pair in pythons if not decisive(*pair)]


def not_measured(sides: Sequence[Side]) -> list[str]:
    """A section for each step that is not measured, with the reason."""
    versions, pythons = steps(sides)
    reasons = [(pair, "No package that a step runs differs.") for pair in versions if not decisive(*pair)]
    reasons += [
        (pair, f"Both change, and the effect of one cannot be told from the other's: {', '.join(decisive(*pair))}.")
        for pair in pythons
        if decisive(*pair)
    ]
    return [f"## {left} against {right}: not measured\n\n{reason}\n" for (left, right), reason in reasons]


def gate_command(old: Side, new: Side, budget_s: int) -> list[str]:
    """The command that measures one comparison, of the backends that both sides have."""
    common = [backend for backend in BACKENDS if backend in old.backends and backend in new.backends]
    results = FOLDER / "results" / f"{old.name}-{new.name}"
    command = [".venv/bin/runner", "gate", "--base-env", str(old.folder), "--new-env", str(new.folder)]
    command += ["--budget", str(budget_s), "--results", str(results), "--markdown", str(results.with_suffix(".md"))]
    return command + [word for backend in common for word in ("--backend", backend)]


def measure(command: list[str]) -> tuple[str, str]:
    """The outcome of a gate, and what it writes; nothing of an earlier one."""
    findings = Path(command[command.index("--markdown") + 1])
    findings.unlink(missing_ok=True)
    code = subprocess.run(command, check=False).returncode
    text = findings.read_text(encoding="utf-8") if findings.exists() else "Nothing was measured."
    return OUTCOMES.get(code, f"exit code {code}"), text


def left_out(sides: Sequence[Side]) -> list[str]:
    """A line for each backend that a side lacks."""
    return [
        f"Not measured: {name} with the {side}.\n" for side in sides for name in BACKENDS if name not in side.backends
    ]


def decision(pairs: Sequence[tuple[Side, Side]], outcomes: Sequence[str], tests: Sequence[bool]) -> str | None:
    """Why the new locks must not be written; None if they may be. An undecided comparison is no objection."""
    for old, new in pairs:
        if old.age != new.age and (lost := [name for name in old.backends if name not in new.backends]):
            return f"the {new} have no build of {', '.join(lost)}, unlike the {old}"
    if bad := [outcome for outcome in outcomes if outcome not in ("no worse", "undecided")]:
        return f"a comparison ended as {bad[0]}"
    return None if all(tests) else "tests fail with the new versions"


def resolve(prereleases: bool) -> None:
    """Write the candidate's locks, in a copy of what ci/lock reads."""
    shutil.rmtree(CANDIDATE, ignore_errors=True)
    for name in (
        "ci/lock",
        "ci/lock_markers.py",
        "ci/run_uv.py",
        "pyproject.toml",
        "locks",
        "docker/emulator.in",
        "docker/emulator-override.in",
        "docker/keras2.in",
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
    subprocess.run([side.program, "-m", "venv", "--clear", side.folder], check=True)
    subprocess.run(["ci/install", side.folder, side.locks / "cpu.txt"], check=True)
    has_torch = install_torch(["ci/install", str(side.folder), str(side.locks / "torch-build-cpu.txt")])
    packages = next((side.folder / "lib").glob("python*/site-packages"))
    (packages / "keras-matrix.pth").write_text(f"{ROOT / 'src'}\n")
    subprocess.run(["ci/install", "--compile", side.folder], stdout=subprocess.DEVNULL, check=False)
    return side if has_torch else replace(side, backends=("tensorflow", "jax"))


def install_torch(command: Sequence[str]) -> bool:
    """Run its installation; False if there is no build. Raises `CalledProcessError` where it fails otherwise."""
    only_uv = {**os.environ, "INSTALLER": "uv"}
    done = subprocess.run(
        command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, env=only_uv, text=True, check=False
    )
    if done.returncode != 0 and not without_build(done.stdout.split("from PyTorch's index:")):
        print(done.stdout, file=sys.stderr)
        done.check_returncode()
    return done.returncode == 0


def without_build(errors: Sequence[str]) -> bool:
    """Whether uv's output, one for each index, says that there is no build; not that an index could not be read."""
    for_others = any("has no wheels with a matching" in text for text in errors)
    return for_others or all(re.search(r"there is no version of|was not found in the", text) for text in errors)


def sides() -> list[Side]:
    """Old and new locks under .venv's Python, and under the newest Python here if it is newer."""
    listed = subprocess.run(["ci/pythons"], stdout=subprocess.PIPE, text=True, check=True).stdout
    programs = dict(line.split(" ", 1) for line in listed.splitlines())
    current = "{}.{}".format(*sys.version_info[:2])
    programs[current] = os.path.realpath(getattr(sys, "_base_executable", sys.executable))
    return [
        Side(age, locks, python, programs[python], pinned_by(locks, python))
        for python in dict.fromkeys((current, max(programs, key=Version)))
        for age, locks in (("old", LOCKS), ("new", CANDIDATE / "locks"))
    ]


def pinned_by(locks: Path, python: str) -> dict[str, str]:
    """The versions that the locks in a folder pin for a Python."""
    texts = [(locks / f"{name}.txt").read_text(encoding="utf-8") for name in ("cpu", "torch-build-cpu")]
    return versions("\n".join(texts), python)


def tests_pass(side: Side) -> bool:
    """Run the unit tier, and the smoke tests of the backends that the side has."""
    command = [side.interpreter, "-m", "pytest", "-q", "-n", str(os.cpu_count()), "-m", TESTS]
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
    planned = sides()
    measured = {side.name for pair in comparisons(planned) for side in pair}
    made = [install(side) if side.name in measured or side.age == "new" else side for side in planned]
    pairs, outcomes = comparisons(made), []
    report = [f"# Newest versions\n\n{versions_table(made)}\n", *left_out(made), *not_measured(made)]
    for old, new in pairs:
        outcome, text = measure(gate_command(old, new, options.budget))
        outcomes.append(outcome)
        report.append(f"## {old} against {new}: {outcome}\n\n{text}\n")
    objection = decision(pairs, outcomes, [tests_pass(side) for side in made if side.age == "new"])
    report.append(f"The new locks {'may be used.' if objection is None else f'were not written: {objection}.'}\n")
    (FOLDER / "table.md").write_text("\n".join(report), encoding="utf-8")
    if objection is None and not options.keep:
        shutil.copytree(CANDIDATE / "locks", LOCKS, dirs_exist_ok=True)
    print("\n".join(report))
    return 0 if objection is None else 1


if __name__ == "__main__":
    sys.exit(main())

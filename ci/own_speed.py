"""Compares the CPU time of this project's own commands at the newest commit with that at two others. See ci/own-speed.

Each commit is a git worktree with an environment of its own, which finds that worktree's package before the packages
of .venv. The commands are external tasks, and `runner gate` of this checkout measures them interleaved and decides.

Guarantee: all sides run the same commands on the same stored run, which the pinned commit has written; a commit that
is slower than the last landed one by less than the threshold, again and again, is found by the pinned one.
Limit: what a command waits for is not seen, only CPU time. The commands have to exist in all three commits.
"""

from __future__ import annotations

import argparse
import json
import shutil
import subprocess
import sys
import venv
from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from ci import cpu_time
from keras_matrix.records.text import ratio_text

ROOT = Path(__file__).parent.parent
FOLDER = ROOT / "build" / "own-speed"
PINNED = "b4dd1412d2c5e6f3efb1d9bf28e622984d4b0db4"
"""The commit from which on no command may become slower. Where a feature is worth its time, move it and say why here:

the first commit with the faster plan, report and help.
"""
THRESHOLD = 0.05
BUDGET_S = 600
NO_WORSE, REGRESSED, UNDECIDED = 0, 4, 5  # exit codes of `runner gate`

RUNNER, UPLOADER = ("-m", "keras_matrix.runner"), ("-m", "keras_matrix.uploader")
ANY = [word for name in ("workload=", "backend=", "since=2026-01-01") for word in ("--set", name)]
# By name: how often a process runs it, so that it takes some tenths of a second, and its words.
COMMANDS: Mapping[str, tuple[int, Sequence[str]]] = {
    "help": (5, (*RUNNER, "--help")),
    "uploader-help": (3, (*UPLOADER, "--help")),
    "plan": (1, (*RUNNER, "plan", "--matrix", "plan.json")),
    "report": (1, (*RUNNER, "report")),
    "show": (2, (*RUNNER, "show", "jax:lstm")),
    "push": (1, (*UPLOADER, "push", "--quiet")),
    "query": (2, (*UPLOADER, "query", "--results", "pushed", "--file", "matrix.sql", *ANY)),
}
# A matrix of 20,000 cells: what `runner plan` takes for its work, not for its start.
PLAN = {
    "version": 1,
    "backends": ["tensorflow", "jax"],
    "cells": [{"workload": "mnist_mlp", "batch_size": list(range(1, 101)), "seed": list(range(1, 101))}],
}
# Measures the default matrix with pretended cells.
STORE = """
from keras_matrix.runner.cli.main import main
from keras_matrix.runner.measure.seams import Seams
from tests.fakes.executor import FakeExecutor
raise SystemExit(main(["run"], Seams(executor=FakeExecutor())))
"""


@dataclass(frozen=True, slots=True)
class Side:
    """A commit, its worktree, and the Python that finds the package there."""

    commit: str
    tree: Path
    environment: Path

    @property
    def python(self) -> str:
        """The path of its Python."""
        return str(self.environment / "bin" / "python")


def main(arguments: Sequence[str] | None = None) -> int:
    """Return 0 if no command became slower, 4 if one did, 1 if one was not measured, 5 if one perhaps did."""
    args = _parsed(arguments)
    new, base, pinned = (commit_of(name) for name in (args.new, args.base or landed(), args.pinned))
    shutil.rmtree(FOLDER, ignore_errors=True)
    FOLDER.mkdir(parents=True)
    codes = []
    with ExitStack() as stack:
        sides = {commit: stack.enter_context(side(commit)) for commit in dict.fromkeys((new, base, pinned))}
        store(sides[pinned])
        (FOLDER / "matrix.json").write_text(json.dumps(matrix(args.only.split(","))), encoding="utf-8")
        for older in dict.fromkeys((base, pinned)):
            code, document = gate(sides[older], sides[new])
            codes.append(verdict(code, document))
            name = "the pinned commit" if older == pinned else "the last one"
            print("\n".join([f"{new[:10]} against {name}, {older[:10]}:", *lines(document)]), flush=True)
    return worst(codes)


def _parsed(arguments: Sequence[str] | None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="ci/own-speed", description=__doc__)
    parser.add_argument("--new", default="HEAD", metavar="COMMIT", help="default: HEAD")
    parser.add_argument("--base", metavar="COMMIT", help="default: origin/main, or the parent of HEAD if that is HEAD")
    parser.add_argument("--pinned", default=PINNED, metavar="COMMIT", help=f"default: {PINNED[:10]}")
    command_names = ",".join(COMMANDS)
    parser.add_argument(
        "--only", default=command_names, metavar="NAMES", help=f"some of the commands; default: {command_names}"
    )
    args = parser.parse_args(arguments)
    if unknown := set(args.only.split(",")) - set(COMMANDS):
        parser.error(f"--only: must be some of {', '.join(COMMANDS)}, separated by commas, got {sorted(unknown)[0]!r}")
    return args


def git(*words: str) -> str:
    """Return the output of git in this checkout."""
    return subprocess.run(["git", "-C", str(ROOT), *words], capture_output=True, text=True, check=True).stdout.strip()


def commit_of(name: str) -> str:
    """Return the id of a commit. Ends the program if git does not know it."""
    try:
        return git("rev-parse", "--verify", "--quiet", f"{name}^{{commit}}")
    except subprocess.CalledProcessError:
        sys.exit(f"ci/own-speed: git knows no commit {name!r} here; fetch it, as in: git fetch origin {name}")


def landed() -> str:
    """Return the last landed commit: that of origin/main or, if the newest one is it, or there is none, its parent."""
    try:
        main = git("rev-parse", "--verify", "--quiet", "origin/main^{commit}")
    except subprocess.CalledProcessError:
        return "HEAD^"
    return "HEAD^" if main == commit_of("HEAD") else main


@contextmanager
def side(commit: str) -> Iterator[Side]:
    """Check out a commit, with its environment, until the end of the context."""
    prepared = Side(commit, FOLDER / commit[:10], FOLDER / f"{commit[:10]}-env")
    git("worktree", "prune")
    git("worktree", "add", "--force", "--detach", str(prepared.tree), commit)
    try:
        installed(prepared)
        yield prepared
    finally:
        git("worktree", "remove", "--force", str(prepared.tree))


def installed(prepared: Side) -> None:
    """Make a side's environment, which has the package of its worktree, compiled, and the other packages of .venv."""
    venv.create(prepared.environment, symlinks=True)
    inside = f"lib/python{sys.version_info.major}.{sys.version_info.minor}/site-packages"
    folders = [prepared.tree / "src", ROOT / ".venv" / inside]
    (prepared.environment / inside / "side.pth").write_text("".join(f"{folder}\n" for folder in folders))
    parts = [str(path) for path in (prepared.tree / "src" / "keras_matrix").iterdir() if path.is_dir()]  # links to them
    subprocess.run([prepared.python, "-m", "compileall", "-q", *parts], check=True)


def store(writer: Side) -> None:
    """Write what the commands read: a stored run, the same sent to a warehouse, a matrix and a query."""
    data = FOLDER / "data"
    data.mkdir()
    shutil.copy(writer.tree / "matrix.yaml", data)
    shutil.copy(writer.tree / "dashboards" / "queries" / "matrix.sql", data)
    (data / "plan.json").write_text(json.dumps(PLAN), encoding="utf-8")

    def called(*words: str) -> None:
        paths = {"PYTHONPATH": str(writer.tree)}  # of `tests`
        subprocess.run([writer.python, *words], cwd=data, env=paths, stdout=subprocess.DEVNULL, check=True)

    called("-c", STORE)
    shutil.copytree(data / "results", data / "pushed", symlinks=True)
    called(*UPLOADER, "push", "--quiet", "--results", "pushed")


def matrix(names: Sequence[str]) -> dict[str, Any]:
    """Return the matrix of the commands with these names."""
    tasks = []
    for name in names:
        times, words = COMMANDS[name]
        command = ["{python}", cpu_time.__file__, str(times), "{python}", *words]
        tasks.append({"task": name, "command": command, "metrics": {cpu_time.METRIC: {"unit": "s"}}})
    return {"version": 1, "tasks": tasks}


def gate(base: Side, new: Side) -> tuple[int, dict[str, Any]]:
    """Return the exit code and the document of a gate."""
    words = ["gate", "--matrix", "matrix.json", "--results", "measured", "--new-run", "--json"]
    words += ["--base-env", str(base.environment), "--new-env", str(new.environment)]
    words += ["--threshold", str(THRESHOLD), "--budget", str(BUDGET_S)]
    completed = subprocess.run(
        [ROOT / ".venv" / "bin" / "runner", *words], cwd=FOLDER, stdout=subprocess.PIPE, text=True, check=False
    )
    if not completed.stdout.strip():
        sys.exit(completed.returncode)  # it has said why
    return completed.returncode, json.loads(completed.stdout)


def verdict(code: int, document: Mapping[str, Any]) -> int:
    """Return the exit code of a gate, 0 if it is undecided but no estimate lies beyond the threshold."""
    beyond = any(
        comparison["outcome"] == "undecided" and _is_beyond(comparison["ratio"])
        for comparison in document["comparisons"]
    )
    return NO_WORSE if code == UNDECIDED and not beyond else code


def _is_beyond(ratio: Mapping[str, float] | None) -> bool:
    return ratio is None or ratio["centre"] > 1 + THRESHOLD


def lines(document: Mapping[str, Any]) -> list[str]:
    """Return a line for each command: its CPU time on both sides, the ratio with its interval, the verdict."""
    return [_line(comparison) for comparison in document["comparisons"]]


def _line(comparison: Mapping[str, Any]) -> str:
    name, ratio = comparison["settings"]["workload"].removeprefix("task "), comparison["ratio"]
    if ratio is None:
        return f"  {name:14} {comparison['outcome']}: {comparison['reason']}"
    times = f"{comparison['base_figure']:7.3f} s {comparison['new_figure']:7.3f} s"
    return f"  {name:14}{times}  {ratio_text(ratio['centre'], ratio['low'], ratio['high'])}  {comparison['outcome']}"


def worst(codes: Sequence[int]) -> int:
    """Return the exit code of several gates: that of a regression, or else the first that is no pass."""
    return REGRESSED if REGRESSED in codes else next(filter(None, codes), NO_WORSE)


if __name__ == "__main__":
    sys.exit(main())

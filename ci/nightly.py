"""Runs the checks that take too long for every change, as parts that a later call continues. See ci/nightly.

Guarantee: a part that passed on the same sources is not repeated; every other part runs, also after one that failed; a
part that takes twice its budget is ended with all its processes and has failed.
Limit: the budgets are those of two CPUs.
"""

from __future__ import annotations

import argparse
import contextlib
import hashlib
import json
import os
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from keras_matrix.records.files import replace

ROOT = Path(__file__).parent.parent
FOLDER = ROOT / "build" / "nightly"
GRACE_S = 20.0
"""How long a part that has used up its time may take to end on SIGTERM."""


@dataclass(frozen=True, slots=True)
class Part:
    """One command; `SUMMARY` in it is the file into which it writes its figures."""

    name: str
    command: str
    budget_min: float
    needs_gpu: bool = False

    @property
    def summary(self) -> Path:
        """The file with the figures of a part that reports some."""
        return FOLDER / f"{self.name}.summary.json"

    @property
    def arguments(self) -> list[str]:
        """The command line."""
        return [str(self.summary) if word == "SUMMARY" else word for word in self.command.split()]


PARTS = (
    Part("faults", "ci/faults --summary SUMMARY", 45),
    Part("failpoints", "ci/failpoints --summary SUMMARY", 30),
    Part("fuzz", "ci/fuzz --summary SUMMARY", 25),
    Part("signals", "ci/signals --summary SUMMARY", 20),
    Part("soak", "ci/soak --summary SUMMARY", 60),
    Part("audit", "ci/audit", 5),
    Part("checks", ".ci/run", 60),
    Part("kills", "ci/kills", 30),
    Part("emulator", "ci/emulator run -- ci/bigquery --project emulated-project --dataset first_hour", 10),
    Part("wheel", "ci/wheel", 10),
    Part("images", "ci/images", 25),
    Part("gpu-images", "ci/images --gpu", 40),  # before the Docker tier, which skips the tests of a missing image
    Part("docker", "ci/docker", 40),
    Part("rebuild", "lab/run containers rebuild --limit-s 20", 10),
    Part("keras2", "ci/keras2", 15),
    Part("openvino", "ci/openvino", 10),
    Part("serve", "ci/serve", 15),
    Part("gpu-tier", "ci/gpu-tier", 60),
    Part("first-hour", "ci/gpu --device cpu", 30),
    Part("first-hour-gpu", "ci/gpu", 60, needs_gpu=True),
    Part("bench", "make bench", 15),
    Part("gate", "ci/gate", 15),
    Part("own-speed", "ci/own-speed", 30),
    Part("parity", ".venv/bin/runner parity", 90),  # every workload does the same work on every backend
)


def main(arguments: Sequence[str] | None = None) -> int:
    """Return 0 if every chosen part has passed, 1 if one has not, 130 after SIGINT."""
    chosen, new = _chosen(arguments)
    sources = sources_of(ROOT)
    FOLDER.mkdir(parents=True, exist_ok=True)
    budget_min = sum(part.budget_min for part in chosen)
    print(f"{len(chosen)} parts, at most {budget_min / 60:.1f} hours; a later call continues", flush=True)
    outcomes = {}
    for part in chosen:
        passed = None if new else _passed(part, sources)
        outcomes[part.name] = passed or run(part, sources)
        if outcomes[part.name]["code"] == -signal.SIGINT:
            return 130
    print("\n".join([*table(chosen, outcomes), "", *figures(chosen)]))
    return 0 if all(outcome["code"] == 0 for outcome in outcomes.values()) else 1


def _chosen(arguments: Sequence[str] | None) -> tuple[list[Part], bool]:
    parser = argparse.ArgumentParser(prog="ci/nightly", description=__doc__)
    offered = [part for part in PARTS if not part.needs_gpu or has_gpu()]
    parser.add_argument("parts", nargs="*", metavar="PART", help="default: all; " + ", ".join(p.name for p in offered))
    parser.add_argument("--new", action="store_true", help="run also the parts that passed on these sources")
    args = parser.parse_args(arguments)
    if unknown := set(args.parts) - {part.name for part in offered}:
        parser.error(f"PART: must be one of {', '.join(p.name for p in offered)}, got {sorted(unknown)[0]!r}")
    return [part for part in offered if not args.parts or part.name in args.parts], args.new


def has_gpu() -> bool:
    """Whether nvidia-smi is installed and lists a GPU."""
    if shutil.which("nvidia-smi") is None:
        return False
    listed = subprocess.run(["nvidia-smi", "-L"], capture_output=True, text=True, check=False)
    return listed.returncode == 0 and listed.stdout.startswith("GPU ")


def sources_of(root: Path) -> str:
    """Return the commit of a checkout, with a hash of what is not committed; empty outside of a repository."""

    def git(*arguments: str) -> bytes:
        return subprocess.run(["git", "-C", str(root), *arguments], capture_output=True, check=True).stdout

    try:
        commit = git("rev-parse", "HEAD").decode().strip()
        changed = git("diff", "HEAD")
        for name in git("ls-files", "--others", "--exclude-standard", "-z").decode().split("\0")[:-1]:
            changed += name.encode() + (root / name).read_bytes()
    except (OSError, subprocess.CalledProcessError):
        return ""
    return f"{commit} {hashlib.sha256(changed).hexdigest()[:16]}" if changed else commit


def _passed(part: Part, sources: str) -> Mapping[str, Any] | None:
    """Return the stored outcome of a part that passed on these sources."""
    with contextlib.suppress(OSError, ValueError):
        stored: dict[str, Any] = json.loads((FOLDER / f"{part.name}.json").read_text(encoding="utf-8"))
        if sources and stored["sources"] == sources and stored["code"] == 0:
            return stored
    return None


def run(part: Part, sources: str) -> Mapping[str, Any]:
    """Run one part, store its outcome and return it."""
    print(f"\n--- {part.name}: {part.command} (at most {part.budget_min:g} minutes expected)", flush=True)
    part.summary.unlink(missing_ok=True)
    began_s = time.monotonic()
    code = _code(part)
    took_s = time.monotonic() - began_s
    outcome = {"sources": sources, "code": code, "took_s": round(took_s, 1)}
    replace(FOLDER / f"{part.name}.json", json.dumps(outcome))
    print(f"--- {part.name}: exit code {code} after {took_s / 60:.1f} minutes", flush=True)
    return outcome


def _code(part: Part) -> int:
    """Run a part in its own session, so that it can be ended with all its processes, and return its exit code."""
    environment = {**os.environ, "NIGHTLY": "1"}  # with the tests that take minutes
    process = subprocess.Popen(
        part.arguments, cwd=ROOT, env=environment, stdin=subprocess.DEVNULL, start_new_session=True
    )
    try:
        return process.wait(timeout=2 * 60 * part.budget_min)
    except subprocess.TimeoutExpired:
        print(f"{part.name}: ended after twice its {part.budget_min:g} minutes", file=sys.stderr)
        _end(process)
        return -signal.SIGTERM
    except KeyboardInterrupt:
        _end(process)
        return -signal.SIGINT


def _end(process: subprocess.Popen[bytes]) -> None:
    for number in (signal.SIGTERM, signal.SIGKILL):
        with contextlib.suppress(ProcessLookupError):
            os.killpg(process.pid, number)
        with contextlib.suppress(subprocess.TimeoutExpired):
            process.wait(timeout=GRACE_S)


def table(parts: Sequence[Part], outcomes: Mapping[str, Mapping[str, Any]]) -> list[str]:
    """Return the outcome, duration and budget of each part as lines."""
    lines = ["", f"{'part':16}{'minutes':>9}{'budget':>9}  outcome"]
    for part in parts:
        outcome = outcomes[part.name]
        lines.append(f"{part.name:16}{outcome['took_s'] / 60:9.1f}{part.budget_min:9.0f}  {_outcome(outcome)}")
    return lines


def _outcome(outcome: Mapping[str, Any]) -> str:
    return "passed" if outcome["code"] == 0 else f"failed, exit code {outcome['code']}"


FIGURES = {
    "faults": "{survived} of {faults} faults survived in {tests:,} tests, {recorded} of them from recorded messages; "
    "{tests_skipped} skipped, {tests_not_run} not run",
    "failpoints": "{failures:,} injected failures at {points:,} points: {lost} lost, {doubled} doubled, {torn} torn",
    "fuzz": "{inputs:,} fuzzed inputs: {tracebacks} tracebacks",
}


def figures(parts: Sequence[Part]) -> list[str]:
    """Return the figures of docs/lab/reliability.md from the summaries of the parts that have run."""
    lines = []
    for part in parts:
        if text := FIGURES.get(part.name):
            try:
                lines.append(text.format(**json.loads(part.summary.read_text(encoding="utf-8"))))
            except (OSError, ValueError, KeyError):
                lines.append(f"{part.name}: no figures")
    return lines


if __name__ == "__main__":
    sys.exit(main())

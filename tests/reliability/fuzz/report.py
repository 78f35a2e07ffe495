"""Runs targets, each in its own process and one for each CPU, and reports what happened.

Branch coverage is measured over the first inputs of each target (`COVERED`), since it slows the rest.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import coverage

from tests.reliability.fuzz import engine
from tests.reliability.fuzz.target import ROOT, load

COVERED = 0.1
PRODUCT = [f"{ROOT}/{folder}/*" for folder in ("records", "runner", "analysis", "uploader", "dashboards", "models")]
COLUMNS = "{:<16} {:>8} {:>9} {:>11} {:>11} {:>10}"

Result = dict[str, Any]


@dataclass(frozen=True, slots=True)
class Request:
    """How many inputs of all targets together, from which seed; the results are stored in `folder`."""

    inputs: int
    seed: int
    folder: Path


def shares(names: Sequence[str], inputs: int) -> dict[str, int]:
    """Divide a number of inputs among targets by their shares."""
    own = {name: load(name).share for name in names}
    return {name: -(-inputs * share // sum(own.values())) for name, share in own.items()}


def run_one(name: str, inputs: int, seed: int, folder: Path) -> None:
    """Run a target in this process, and store its result and its coverage."""
    covered = max(1, int(inputs * COVERED))
    tracer = coverage.Coverage(str(folder / f"{name}.coverage"), branch=True, include=PRODUCT, config_file=False)
    tracer.start()
    first = engine.run(name, covered, seed)
    tracer.stop()
    tracer.save()
    rest = engine.run(name, max(1, inputs - covered), seed + 1)
    modules = [str(path) for path in load(name).files()]
    result = engine.sum_of(first, rest).plain() | {"modules": modules}
    (folder / f"{name}.json").write_text(json.dumps(result, indent=1), encoding="utf-8")


def run_all(names: Sequence[str], request: Request, *, resume: bool) -> list[Result]:
    """Return the result of each target; with `resume`, those that are stored are not run again."""
    request.folder.mkdir(parents=True, exist_ok=True)
    counts = shares(names, request.inputs)
    stored = {name for name in names if (request.folder / f"{name}.json").exists()} if resume else set()
    with ThreadPoolExecutor(len(os.sched_getaffinity(0))) as pool:
        list(pool.map(lambda name: _process(name, counts[name], request), [n for n in names if n not in stored]))
    return [json.loads((request.folder / f"{name}.json").read_bytes()) for name in names]


def _process(name: str, inputs: int, request: Request) -> None:
    (request.folder / f"{name}.json").unlink(missing_ok=True)
    command = [sys.executable, "-m", "tests.reliability.fuzz", name, "--inputs", str(inputs)]
    command += ["--seed", str(request.seed), "--one", str(request.folder)]
    with (request.folder / f"{name}.log").open("wb") as log:
        ended = subprocess.run(command, stdout=log, stderr=log, cwd=ROOT, check=False)
    done = ended.returncode == 0
    print(f"{name}: {inputs} inputs" if done else f"{name}: ended with {ended.returncode}; see {log.name}", flush=True)


def branch_coverage(results: Sequence[Result], folder: Path) -> dict[str, tuple[int, int]]:
    """Return the branches of each module that were taken, and all of them."""
    files = sorted({path for result in results for path in result["modules"]})
    found = coverage.Coverage(str(folder / "all.coverage"), branch=True, include=files, config_file=False)
    found.combine([str(folder / f"{result['target']}.coverage") for result in results], keep=True)
    found.json_report(outfile=str(folder / "coverage.json"))
    measured = json.loads((folder / "coverage.json").read_bytes())["files"]
    by_path = {str((ROOT / name).resolve()): one["summary"] for name, one in measured.items()}
    branches = {path: by_path[path] for path in files if path in by_path and by_path[path]["num_branches"]}
    return {
        str(Path(path).relative_to(ROOT)): (one["covered_branches"], one["num_branches"])
        for path, one in branches.items()
    }


def summary(results: Sequence[Result], branches: Mapping[str, tuple[int, int]]) -> dict[str, Any]:
    """Return the figures of a run as JSON values."""
    taken, every = (sum(column) for column in zip((0, 0), *branches.values(), strict=True))
    return {
        "inputs": sum(result["inputs"] for result in results),
        "tracebacks": sum(result["tracebacks"] for result in results),
        "targets": {
            result["target"]: {
                "inputs": result["inputs"],
                "accepted_share": round(result["accepted"] / result["inputs"], 3),
                "slowest_ms": result["slowest_ms"],
                "tracebacks": result["tracebacks"],
                "duration_s": result["duration_s"],
            }
            for result in results
        },
        "branch_coverage": {
            "share": round(taken / every, 3) if every else None,
            "modules": {name: round(found / count, 3) for name, (found, count) in branches.items()},
        },
    }


def problems(found: Mapping[str, Any]) -> list[str]:
    """Return what is wrong with a run, from its figures: each line names a target, the value and what was expected."""
    lines = []
    for name, one in found["targets"].items():
        target = load(name)
        if one["tracebacks"]:
            lines.append(f"{name}: {one['tracebacks']} tracebacks")
        if one["accepted_share"] <= target.least_accepted:
            lines.append(f"{name}: {one['accepted_share']:.0%} of the inputs were accepted: make more of them valid")
        if target.limit_ms is not None and one["slowest_ms"] > target.limit_ms:
            lines.append(f"{name}: an input took {one['slowest_ms']:.0f} ms, more than {target.limit_ms:g} ms")
    return lines


def table(results: Sequence[Result], found: Mapping[str, Any]) -> list[str]:
    """Return the figures as lines."""
    lines = [COLUMNS.format("target", "inputs", "accepted", "slowest ms", "tracebacks", "seconds")]
    for name, one in found["targets"].items():
        slow = f"{one['slowest_ms']:.1f}"
        share = f"{one['accepted_share']:.0%}"
        lines.append(COLUMNS.format(name, one["inputs"], share, slow, one["tracebacks"], f"{one['duration_s']:.0f}"))
    lines.append(COLUMNS.format("all", found["inputs"], "", "", found["tracebacks"], "") + "\n")
    branches = found["branch_coverage"]
    if branches["share"] is not None:
        lines.append(f"branch coverage of the parsers: {branches['share']:.0%}")
    lines += [f"  {share:>4.0%}  {name}" for name, share in branches["modules"].items()]
    for result in results:
        lines += [f"\n{result['target']}: {place}\n{text}" for place, text in result["failures"].items()]
    return lines

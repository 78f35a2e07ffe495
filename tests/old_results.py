"""Results folders that earlier versions wrote (`tests/data`), and their figures read as plain JSON."""

from __future__ import annotations

import json
import math
import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import Any

DATA = Path(__file__).parent / "data"
BEFORE = "results_8f8c047"
BY_VERSION = {1: "results_schema_1", 2: "results_schema_2", 3: BEFORE, 4: "results_schema_4"}
BASE = "20261123T134752Z-2f563c"
TASK = "20261123T135021Z-c27a10"
NEW = "20261123T135051Z-cb3c95"
TRACED = "20261123T135245Z-d198c6"
RUNS = (BASE, TASK, NEW, TRACED)


def copied(folder: str, target: Path) -> Path:
    """Copy one of the old results folders, which commands write into, and return the copy."""
    shutil.copytree(DATA / folder, target, symlinks=True)
    return target


def raw_records(folder: str, run_id: str = "2*") -> list[dict[str, Any]]:
    """Return the records of a run, or of all runs, as they were written."""
    return [json.loads(path.read_text()) for path in sorted((DATA / folder).glob(f"{run_id}/records/*.json"))]


def raw_findings(folder: str, run_id: str) -> list[dict[str, Any]]:
    """Return the findings of a run as they were written."""
    found: list[dict[str, Any]] = json.loads((DATA / folder / run_id / "findings.json").read_text())["found"]
    return found


def last_attempts(records: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """Return the last attempt of each repeat of each run."""
    ordered = sorted(records, key=lambda one: one["attempt"])
    return list({(one["run_id"], one["cell_id"], one["repeat"]): one for one in ordered}.values())


def step_times_s(run_id: str, *statuses: str) -> dict[str, list[float]]:
    """Return, by cell, the step times of a run's last attempts that ended with one of these statuses."""
    found: dict[str, list[float]] = {}
    for record in last_attempts(raw_records(BEFORE, run_id)):
        if record["status"] in statuses and record["times"]["step_time_s"] is not None:
            found.setdefault(record["cell_id"], []).append(record["times"]["step_time_s"])
    return found


def geometric_mean(values: list[float]) -> float:
    """Return the geometric mean."""
    return math.exp(math.fsum(map(math.log, values)) / len(values))


def numbers(value: object) -> Iterator[float]:
    """Return every number in a JSON value, in any order and under any name."""
    if isinstance(value, dict):
        for item in value.values():
            yield from numbers(item)
    elif isinstance(value, list):
        for item in value:
            yield from numbers(item)
    elif isinstance(value, (int, float)) and not isinstance(value, bool):
        yield float(value)

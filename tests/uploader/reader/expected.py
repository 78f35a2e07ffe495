"""The expected rows of a results folder, derived from its JSON files and the page of the tables.

Nothing else of the program under test is used, so that a mistake in its idea of a row shows as a difference.
"""

from __future__ import annotations

import hashlib
import json
import re
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path, PurePath
from typing import Any

from tests.uploader.reader.tables import Column, Key, Row, Table, documented

RUN = re.compile(r"[0-9]{8}T[0-9]{6}Z-[0-9a-f]{6}")
NO_TABLE_HOLDS = re.compile("[\x00\ud800-\udfff]")
MEASURED = ("times", "learning", "memory", "surroundings", "harness", "parallel", "task", "usage", "input", "replicas")
NOT_MEASUREMENTS = ("parallel.places", "replicas.replicas", "task.metrics")
WITHOUT_A_PIPELINE = {"page_cache": "warm", "input_timers": False}  # then these are null
LATER_DEFAULTS = {
    "nodes": 1,
    "devices": 1,
    "distribution": "data",
    "gradient_accumulation_steps": 1,
    "remat": "none",
    "implementation": "keras",
    "env": "",
    "call": "predict_on_batch",
    "outputs": "host",
    "torch_compile": "",
    "xla_flags": "",
    "matmul_precision": "default",
}
"""The defaults of settings that are null then."""
FINDING_IDENTITY = ("kind", "metric", "work_id", "cell_id", "backend", "host_id", "device", "league", "at_run_id")
UNITS = {
    "samples_per_s": "samples/s",
    "steps_per_s": "steps/s",
    "samples_per_j": "samples/J",
    "flop_per_s": "FLOP/s",
    "flops_per_step": "FLOP",
    "bytes_per_step": "B",
    "_bytes": "B",
    "_hz": "Hz",
    "_c": "°C",
    "_w": "W",
    "_j": "J",
    "_s": "s",
}

Rows = dict[str, dict[Key, Row]]
Json = Mapping[str, Any]


def expected_rows(folders: Iterable[Path]) -> Rows:
    """Return the rows of every run in these results folders, by table and key."""
    tables = {table.name: table for table in documented()}
    found: Rows = {name: {} for name in tables}
    for folder in folders:
        for run in sorted(path for path in folder.iterdir() if RUN.fullmatch(path.name)):
            for name, values in rows_of_run(run, tables["cells"]):
                row = tables[name].row(values)
                found[name][tables[name].key_of(row)] = row
    return found


def rows_of_run(run: Path, cells: Table) -> Iterator[tuple[str, Json]]:
    """Yield table and values of every row of a run."""
    day = f"{run.name[:4]}-{run.name[4:6]}-{run.name[6:8]}"
    yield "runs", {"day": day, "run_id": run.name, **_run_values(_loaded(run / "run.json"))}
    for path in sorted((run / "records").glob("[!.]*.json")):
        record = _loaded(path)
        yield "cells", {"day": day, **{column.name: _cell_value(record, column) for column in cells.columns[1:]}}
        for values in _measurements(record):
            yield "measurements", {"day": day, **values}
    findings = run / "findings.json"
    if findings.exists():
        stored = _loaded(findings)
        for one in stored["found"]:
            values = {name: _storable(value) for name, value in one.items()}
            common = {"day": day, "run_id": run.name, "revision": stored["revision"]}
            yield "findings", {**common, "finding_id": _finding_id(one), **values}


def _loaded(path: Path) -> Any:
    return json.loads(path.read_text(encoding="utf-8"))


def _run_values(run: Json) -> dict[str, Any]:
    values = {name: _storable(value) for name, value in run.items() if name not in ("machine", "arms", "run_id")}
    values |= {f"machine_{name}": _storable(value) for name, value in (run.get("machine") or {}).items()}
    if run.get("matrix_path"):
        values["matrix_path"] = PurePath(run["matrix_path"]).name
    arm = (run.get("arms") or {}).get(run.get("arm")) or {}
    return values | {"fault": arm.get("fault")}


def _cell_value(record: Json, column: Column) -> Any:
    """Return a column's value: a field of the record, of its settings, or of the group in the column's prefix."""
    if column.name == "source":
        return None  # only imported rows have it
    if column.name in WITHOUT_A_PIPELINE and record["settings"]["feed"] != "pipeline":
        value = record["settings"].get(column.name)
        return (
            None if value == WITHOUT_A_PIPELINE[column.name] else _as_text(value) if column.type == "STRING" else value
        )
    if column.name in LATER_DEFAULTS and record["settings"].get(column.name) in (None, LATER_DEFAULTS[column.name]):
        return None
    for holder, name in ((record["settings"], column.name), *_places(record, column.name)):
        value = holder.get(name)
        if value is not None and (not isinstance(value, dict) or column.type == "JSON"):
            text = column.type == "STRING" and not column.repeated
            return _storable(_as_text(value) if text else value)
    return None


def _places(group: Json, name: str) -> Iterator[tuple[Json, str]]:
    """Yield where a column's value may be: in this group, or in one within it whose name is the column's prefix."""
    yield group, name
    for inner, found in group.items():
        if isinstance(found, dict) and name.startswith(f"{inner}_"):
            yield from _places(found, name.removeprefix(f"{inner}_"))


def _as_text(value: Any) -> str:
    """Return the text of a setting that may be a number, a boolean or a string."""
    return str(value).lower() if isinstance(value, bool) else str(value)


def _measurements(record: Json) -> Iterator[dict[str, Any]]:
    head = {name: record[name] for name in ("run_id", "cell_id", "repeat", "attempt")}
    head |= {name: _storable(record["settings"][name]) for name in ("workload", "backend")}
    for group in MEASURED:
        for metric, step, value in _numbers(group, record.get(group)):
            unit = next((unit for end, unit in UNITS.items() if metric.endswith(end)), "1")
            if metric.startswith("learning.metrics."):
                unit = "1"  # also if the user's name ends in a unit
            yield {**head, "metric": _storable(metric), "step": step, "value": float(value), "unit": unit}
    for one in (record.get("task") or {}).get("metrics", ()):
        if one["value"] is not None:
            named = {"metric": _storable(f"task.metrics.{one['name']}"), "unit": _storable(one.get("unit") or "1")}
            yield {**head, **named, "step": None, "value": float(one["value"])}


def _numbers(path: str, value: Any) -> Iterator[tuple[str, int | None, float]]:
    """Yield metric, step and value of every number below a group of a record."""
    if path in NOT_MEASUREMENTS:
        return
    if isinstance(value, dict):
        for name, inner in value.items():
            yield from _numbers(f"{path}.{name}", inner)
    elif isinstance(value, list):
        yield from ((path, step, one) for step, one in enumerate(value) if _is_number(one))
    elif _is_number(value):
        yield path, None, value


def _is_number(value: Any) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool)


def _finding_id(finding: Json) -> str:
    identity = [finding.get(name) for name in FINDING_IDENTITY]
    text = json.dumps(identity, separators=(",", ":"), ensure_ascii=False)
    return hashlib.sha256(text.encode()).hexdigest()[:16]


def _storable(value: Any) -> Any:
    """Return a storable value: with U+FFFD for NUL and lone surrogates."""
    if isinstance(value, str):
        return NO_TABLE_HOLDS.sub("\ufffd", value)
    if isinstance(value, list):
        return ["unknown" if one is None else _storable(str(one)) for one in value]
    if isinstance(value, dict):
        return {_storable(name): _storable(inner) if isinstance(inner, str) else inner for name, inner in value.items()}
    return value

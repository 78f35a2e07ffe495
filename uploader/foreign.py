"""Results of others as rows of ours: through a mapping of columns, marked, in runs of their own.

A row of theirs becomes one attempt with one measurement. Its run is the day and source it has; its cell is the hash of
all that was mapped but value and time, so that equal things compare. Promise: importing the same file again adds
nothing.
"""

from __future__ import annotations

import argparse
import csv
import hashlib
import json
import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from records.codec import canonical
from records.schema import SCHEMA_VERSION
from uploader.errors import BadInput
from uploader.rows import Row, day_of, line
from uploader.schema import CELLS, MEASUREMENTS, RUNS, Column, Mode, Type, metrics, unit_of

NEEDED = ("workload", "backend", "value", "started_at")
MADE = frozenset({"day", "run_id", "cell_id", "repeat", "attempt", "row_hash", "source", "schema_version", "status"})
MOST_SOURCE = 60


@dataclass(frozen=True, slots=True)
class Asked:
    """What an import was told: our columns by name with theirs, what the value is, and where it comes from."""

    mapping: Mapping[str, str]
    metric: str
    source: str


@dataclass(slots=True)
class Found:
    """Rows of ours, and which of theirs could not be used, one line each."""

    rows: list[Row] = field(default_factory=list)
    problems: list[str] = field(default_factory=list)


def mapping(assignments: Sequence[str]) -> dict[str, str]:
    """Read a mapping. Raises `BadInput` naming what is wrong or missing."""
    columns = {column.name for column in CELLS.columns} - MADE | {"value"}
    found = {}
    for text in assignments:
        ours, sign, theirs = text.partition("=")
        if not sign or not theirs or ours not in columns:
            raise BadInput(f"--map: must be COLUMN=NAME with a column of cells (docs/schema.md) or value, got {text!r}")
        found[ours] = theirs
    if missing := [name for name in NEEDED if name not in found]:
        raise BadInput(f"--map: {', '.join(missing)} must be mapped too: --map {missing[0]}=NAME")
    return found


def source(text: str) -> str:
    """Read a source's name. Raises `BadInput`."""
    if not text.strip() or len(text) > MOST_SOURCE or not text.isprintable():
        raise BadInput(f"--source: must be 1 to {MOST_SOURCE} printable characters, got {text[:70]!r}")
    return text.strip()


def read_csv(path: Path) -> list[dict[str, Any]]:
    """Return the rows of a CSV file. Raises `BadInput`."""
    try:
        with path.open(encoding="utf-8-sig", newline="") as file:
            return list(csv.DictReader(file, strict=True))
    except (OSError, UnicodeDecodeError, csv.Error) as error:
        raise BadInput(f"{path}: cannot be read as CSV in UTF-8: {error}") from error


def read_table(address: str, args: argparse.Namespace) -> list[dict[str, Any]]:
    """Return the rows of a BigQuery table. Raises `UploadError`."""
    from uploader.warehouse import Options, open_warehouse

    dataset, _, table = address.rpartition(".")
    if not table.isidentifier():
        raise BadInput(f"FILE: must be bigquery://PROJECT.DATASET.TABLE, got {address!r}")
    theirs = open_warehouse(dataset, args.results, Options(location=args.location, impersonate=args.impersonate))
    try:
        return theirs.query(f"SELECT * FROM {table}").dicts()
    finally:
        theirs.close()


def rows_of(theirs: Iterable[Mapping[str, Any]], asked: Asked) -> Found:
    """Return their rows as ours. A row that does not fit is told and left out. Raises `BadInput` for the metric."""
    known = {".".join(leaf.path) for leaf in metrics()}
    if asked.metric not in known:
        raise BadInput(f"--metric: must be a metric of measurements (such as times.step_time_s), got {asked.metric!r}")
    found, runs, repeats = Found(), set(), _Counter()
    for number, one in enumerate(theirs, 1):
        try:
            values = _cell(one, asked)
        except ValueError as error:
            found.problems.append(f"row {number}: {error}")
            continue
        run_id = values["run_id"]
        if run_id not in runs:
            runs.add(run_id)
            told = {"day": values["day"], "run_id": run_id, "started_at": values["started_at"], "arm": asked.source}
            found.rows.append(Row(RUNS, run_id, line(RUNS, told)))
        value = values.pop("value")
        values["repeat"] = repeats.next((run_id, values["cell_id"]))
        _add(found, values, value, asked.metric)
    return found


class _Counter:
    """Numbers equal things."""

    def __init__(self) -> None:
        self._seen: dict[Any, int] = {}

    def next(self, key: Any) -> int:
        """Return how often this key was seen before."""
        self._seen[key] = self._seen.get(key, -1) + 1
        return self._seen[key]


def _add(found: Found, values: dict[str, Any], value: float, metric: str) -> None:
    item = "{run_id}/{cell_id}.{repeat}.{attempt}".format(**values)
    found.rows.append(Row(CELLS, item, line(CELLS, values)))
    told = {**values, "metric": metric, "value": value, "unit": unit_of(metric)}
    found.rows.append(Row(MEASUREMENTS, item, line(MEASUREMENTS, told)))


def _cell(one: Mapping[str, Any], asked: Asked) -> dict[str, Any]:
    """Return the columns of a foreign attempt, and its value. Raises `ValueError`."""
    given = {ours: _picked(one, theirs) for ours, theirs in asked.mapping.items()}
    for name in NEEDED:
        if given[name] in (None, ""):
            raise ValueError(f"{asked.mapping[name]} is empty")
    value, began = float(given.pop("value")), _moment(given.pop("started_at"))
    if not math.isfinite(value):
        raise ValueError(f"{asked.mapping['value']} is not finite")
    columns = {name: _typed(CELLS.column(name), v) for name, v in given.items() if v not in (None, "")}
    digest = hashlib.sha256(asked.source.encode()).hexdigest()[:6]
    run_id = f"{began:%Y%m%dT000000Z}-{digest}"
    identity = canonical([asked.source, json.loads(json.dumps(columns, default=str))])
    return {
        **columns,
        "value": value,
        "day": day_of(run_id),
        "schema_version": SCHEMA_VERSION,
        "run_id": run_id,
        "cell_id": hashlib.sha256(identity.encode()).hexdigest()[:16],
        "attempt": 0,
        "status": "ok",
        "started_at": began.isoformat(timespec="seconds"),
        "source": asked.source,
    }


def _picked(one: Mapping[str, Any], path: str) -> Any:
    """Return what a name, or a path into a struct, leads to. Raises `ValueError`."""
    if path in one:
        return one[path]
    found: Any = one
    for name in path.split("."):
        if not isinstance(found, Mapping) or name not in found:
            raise ValueError(f"has no column {path!r}; it has {', '.join(map(str, one))}")
        found = found[name]
    return found


def _moment(value: Any) -> datetime:
    when = value if isinstance(value, datetime) else datetime.fromisoformat(str(value).removesuffix(" UTC"))
    return when.replace(tzinfo=UTC) if when.tzinfo is None else when.astimezone(UTC)


def _typed(column: Column, value: Any) -> Any:
    """Return a value as a column has it. Raises `ValueError`."""
    if column.mode is Mode.REPEATED:
        return [str(value)]
    if column.type is Type.INT64:
        number = float(value)
        if number != int(number):
            raise ValueError(f"{column.name}: must be a whole number, got {value!r}")
        return int(number)
    if column.type is Type.FLOAT64:
        return float(value)
    if column.type is Type.BOOL:
        return str(value).lower() in ("1", "true", "yes")
    if column.type is Type.JSON:
        found = json.loads(value) if isinstance(value, str) else value
        if not isinstance(found, dict):
            raise ValueError(f"{column.name}: must be a JSON object, got {value!r}")
        return found
    return str(value)

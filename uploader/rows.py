"""Converts a run to rows of the warehouse's tables, one JSON line each. Pure functions.

Equal records give identical lines on any machine: batch names and every `row_hash` are computed from them. A value that
was not measured is omitted from its line (NULL). Characters that a table cannot store (a lone surrogate, NUL) are
replaced by U+FFFD.
"""

from __future__ import annotations

import hashlib
import json
import re
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass
from enum import StrEnum
from functools import cache
from operator import attrgetter
from pathlib import PurePath
from typing import Any

from keras_matrix.records.codec import CodecError, decode, to_json
from keras_matrix.records.findings import Findings
from keras_matrix.records.identity import DEFAULTS, INPUT, NO_WORK
from keras_matrix.records.schema import Machine, Record
from keras_matrix.records.settings import PIPELINE
from keras_matrix.records.task import METRICS
from keras_matrix.records.validity import name_in
from keras_matrix.uploader.schema import (
    CELLS,
    FINDINGS,
    MEASUREMENTS,
    RUNS,
    ColumnMode,
    Table,
    TableColumn,
    Type,
    metrics,
    unit_of,
)

HASH_BYTES = 5
UNKNOWN_TEXT = "unknown"
UNSTORABLE = re.compile("[\\x00\\ud800-\\udfff]")


@dataclass(frozen=True, slots=True)
class WarehouseRow:
    """One row of a table; `item` identifies its source (a run, an attempt, a revision of the findings)."""

    table: Table
    item: str
    line: str


def of_run(run_id: str, about: Mapping[str, Any]) -> WarehouseRow:
    """Return the row of a run, from its `run.json`; fields that are missing or have another type are NULL."""
    values = {"day": day_of(run_id), "run_id": run_id, **_run_values(about), **_machine_values(about)}
    return WarehouseRow(RUNS, run_id, line(RUNS, values))


def of_record(record: Record) -> Iterator[WarehouseRow]:
    """Yield the row of an attempt and those of its measurements."""
    item = item_of_record(record)
    yield WarehouseRow(CELLS, item, line(CELLS, cell_values(record)))
    for text in measurement_lines(record):
        yield WarehouseRow(MEASUREMENTS, item, text)


def of_findings(run_findings: Findings) -> Iterator[WarehouseRow]:
    """Yield the rows of a run's findings."""
    common = {"day": day_of(run_findings.run_id), "run_id": run_findings.run_id, "revision": run_findings.revision}
    for finding in run_findings.found:
        values = {**common, "finding_id": finding.finding_id, **to_json(finding)}
        yield WarehouseRow(FINDINGS, item_of(FINDINGS, common), line(FINDINGS, values))


def item_of_record(record: Record) -> str:
    """Return the item name of an attempt."""
    return "{}/{}.{}.{}".format(record.run_id, *record.key)


def item_of(table: Table, values: Mapping[str, Any]) -> str:
    """Return the item of a stored line, from its values."""
    if table is RUNS:
        return str(values["run_id"])
    if table is FINDINGS:
        return f"{values['run_id']}/{values['revision']}"
    return "{run_id}/{cell_id}.{repeat}.{attempt}".format(**values)


def day_of(run_id: str) -> str:
    """Return the day on which a run began, from its identifier."""
    return f"{run_id[:4]}-{run_id[4:6]}-{run_id[6:8]}"


def expired(run_id: str, retained_from: str | None) -> bool:
    """Return whether a run is older than the first day that a warehouse retains (None: it retains all days)."""
    return retained_from is not None and day_of(run_id) < retained_from


def line(table: Table, values: Mapping[str, Any]) -> str:
    """Return a row as one line of JSON: the table's columns in order, without NULLs, then the row hash."""
    members = {}
    for column in table.columns:
        value = values.get(column.name)
        if value is not None and value not in ([], {}):
            members[column.name] = _storable(column, value)
    return hashed(json.dumps(members, separators=(",", ":"), ensure_ascii=False, allow_nan=False))


def hashed(text: str) -> str:
    """Return a row's JSON object with its hash appended as the last member."""
    digest = hashlib.sha256(text.encode()).digest()
    return f'{text[:-1]},"row_hash":{int.from_bytes(digest[:HASH_BYTES])}}}'


def cell_values(record: Record) -> dict[str, Any]:
    """Return the columns of an attempt."""
    values = {name: get(record) for name, get in _getters()}
    lists = {name: entries for name, entries in values.items() if isinstance(entries, list)}
    filled = {name: [UNKNOWN_TEXT if entry is None else entry for entry in entries] for name, entries in lists.items()}
    # So that rows of earlier versions, which lack these columns, stay equal to their records.
    settings, is_piped = record.settings, record.settings.feed == PIPELINE
    unused_values = {
        name: None for name in NO_WORK if getattr(settings, name) == DEFAULTS[name] and not (is_piped and name in INPUT)
    }
    return {"day": day_of(record.run_id), **values, **filled, **unused_values}


def measurement_lines(record: Record) -> Iterator[str]:
    """Yield the lines of an attempt's measurements, assembled without a JSON encoder since there are many."""
    settings = record.settings
    head = {
        "day": day_of(record.run_id),
        "run_id": record.run_id,
        "cell_id": record.cell_id,
        "repeat": record.repeat,
        "attempt": record.attempt,
        "workload": clean(settings.workload),
        "backend": settings.backend,
    }
    start = json.dumps(head, separators=(",", ":"), ensure_ascii=False)[:-1]
    for metric, unit, series in _measured(record):
        for step, value in series:
            if value is not None:
                member_text = "" if step is None else f',"step":{step}'
                yield hashed(f'{start},"metric":{metric}{member_text},"value":{float(value)!r},"unit":{unit}}}')


def clean(text: str) -> str:
    """Return text with the characters replaced that a table cannot store."""
    return UNSTORABLE.sub("\ufffd", text)


@cache
def _getters() -> tuple[tuple[str, Callable[[Record], Any]], ...]:
    return tuple((column.name, _getter(column.path)) for column in CELLS.columns if column.path)


@cache
def _metrics(version: int) -> tuple[tuple[str, str, Callable[[Record], Any]], ...]:
    """Return name, unit and reader of each metric. Rows keep the names of their record's schema version."""
    named_paths = ((name_in(version, ".".join(leaf.path)), leaf.path) for leaf in metrics())
    return tuple(
        (json.dumps(name), json.dumps(unit_of(name), ensure_ascii=False), _getter(p)) for name, p in named_paths
    )


def _getter(path: tuple[str, ...]) -> Callable[[Record], Any]:
    """Return a function that reads a path from a record, or None if a group on the path is absent."""
    value_of = attrgetter(".".join(path))

    def get(record: Record) -> Any:
        try:
            return value_of(record)
        except AttributeError:
            return None

    return get


Values = Iterable[tuple[int | None, float | None]]


def _measured(record: Record) -> Iterator[tuple[str, str, Values]]:
    for metric, unit, get in _metrics(record.schema_version):
        measured_value = get(record)
        if measured_value is None:
            continue
        if isinstance(measured_value, list):
            yield metric, unit, enumerate(measured_value)
        elif isinstance(measured_value, dict):
            for name, series in measured_value.items():
                yield json.dumps(f"{metric[1:-1]}.{clean(name)}", ensure_ascii=False), unit, enumerate(series)
        else:
            yield metric, unit, ((None, measured_value),)
    for task_metric in record.task.metrics if record.task else ():
        name, unit = (clean(text) for text in (f"{METRICS}.{task_metric.name}", task_metric.unit or "1"))
        yield json.dumps(name, ensure_ascii=False), json.dumps(unit, ensure_ascii=False), ((None, task_metric.value),)


def _storable(column: TableColumn, value: Any) -> Any:
    if column.type is Type.STRING and column.mode is not ColumnMode.REPEATED:
        return clean(_text(value))
    if column.mode is ColumnMode.REPEATED:
        return [clean(str(entry)) for entry in value]
    if column.type is Type.JSON:
        return {clean(str(k)): clean(v) if isinstance(v, str) else v for k, v in value.items()}
    return value


def _text(value: Any) -> str:
    """Return the text of a setting with several types, such as a count or "all"."""
    if isinstance(value, bool):
        return "true" if value else "false"
    return value.value if isinstance(value, StrEnum) else str(value)


_RUN_STRINGS = ("started_at", "session", "plan_id", "start", "stopping", "matrix_text")
_RUN_NUMBERS = ("planned", "order_seed")


def _run_values(about: Mapping[str, Any]) -> dict[str, Any]:
    run_values: dict[str, Any] = {name: v for name in _RUN_STRINGS if isinstance(v := about.get(name), str)}
    run_values |= {name: v for name in _RUN_NUMBERS if type(v := about.get(name)) is int}
    if isinstance(path := about.get("matrix_path"), str):
        run_values["matrix_path"] = PurePath(path).name  # without its folders, which contain user and machine names
    arm, arms = about.get("arm"), about.get("arms")
    if isinstance(arm, str):
        run_values["arm"] = arm
        details = arms.get(arm) if isinstance(arms, dict) else None
        run_values["fault"] = details.get("fault") if isinstance(details, dict) else None
    versions = about.get("versions")
    if isinstance(versions, dict):
        run_values["versions"] = {str(name): str(version) for name, version in versions.items()}
    return run_values


def _machine_values(about: Mapping[str, Any]) -> dict[str, Any]:
    try:
        machine = decode(Machine, about.get("machine"), "machine")
    except CodecError:
        return {}
    return {f"machine_{name}": value for name, value in to_json(machine).items()}

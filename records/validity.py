"""What a record must satisfy beyond its schema, so that every reader can show it; and its renamed fields.

A record that was damaged, made by hand or written by a newer version can fit the schema and still be one of which no
title, sum or ratio can be computed. `check` refuses it, with the path of the value.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, fields
from operator import attrgetter
from typing import Any

from keras_matrix.records.codec import SURROGATE, CodecError
from keras_matrix.records.fc import spec
from keras_matrix.records.schema import Record, Times

# A ratio of such numbers, and its square, is a finite number that is not 0.
SMALLEST, LARGEST = 1e-30, 1e30
NAMING = ("settings", "device", "machine", "versions")  # the members of a record that name and identify a cell
_LISTS = (
    "discarded_epoch_times_s",
    "epoch_times_s",
    "short_epoch_times_s",
    "call_time_p50_interval_s",
    "call_time_p99_interval_s",
    "lead_times_s",
    "training_times_s",
)
_TIMES = tuple(field.name for field in fields(Times) if field.name not in _LISTS)
_times = attrgetter(*_TIMES)
_lists = attrgetter(*_LISTS)


def check_names(data: Any) -> None:
    """Raise `CodecError` if a name contains half of a surrogate pair. `data` are plain values."""
    for member in NAMING:
        for path, text in _texts(data.get(member), member):
            if SURROGATE.search(text):
                raise CodecError(f"{path}: must not contain half of a surrogate pair, got {text[:80]!r}")


def check(record: Record) -> None:
    """Raise `CodecError` for a record that cannot be shown."""
    times = record.times
    if times.step_time_s is not None and times.step_time_s <= 0:
        raise CodecError(f"times.step_time_s: must be above 0, got {times.step_time_s:g}")
    for name, value in zip(_TIMES, _times(times), strict=True):
        if value is not None and value != 0 and not SMALLEST <= abs(value) <= LARGEST:
            raise CodecError(f"times.{name}: {_size(value)}")
    for name, values in zip(_LISTS, _lists(times), strict=True):
        for value in values:
            if value != 0 and not SMALLEST <= value <= LARGEST:
                raise CodecError(f"times.{name}: {_size(value)}")
    if record.settings.workload == spec.WORKLOAD and (problem := spec.stored_problem(record.settings)):
        raise CodecError(f"settings.params.{problem}")


def _size(value: float) -> str:
    return f"must be 0 or between {SMALLEST:g} and {LARGEST:g}, got {value:g}"


def _texts(data: object, path: str) -> Iterator[tuple[str, str]]:
    """Yield every text in plain values with its path, keys included."""
    if isinstance(data, str):
        yield path, data
    elif isinstance(data, dict):
        for key, item in data.items():
            yield path, key
            yield from _texts(item, f"{path}.{key}")
    elif isinstance(data, list):
        for index, item in enumerate(data):
            yield from _texts(item, f"{path}[{index}]")


@dataclass(frozen=True, slots=True)
class Renamed:
    """A field that schema version `version` renamed, within its group of a record."""

    version: int
    group: str
    old: str
    new: str


RENAMED = (Renamed(4, "times", "seed_total_time_s", "suite_total_time_s"),)


def migrated(data: Any) -> Any:
    """Return a record's JSON value with the current names of its fields; any other value unchanged.

    `schema_version` keeps the version with which the record was written.
    """
    version = data.get("schema_version") if isinstance(data, dict) else None
    for renaming in RENAMED:
        if isinstance(version, int) and version < renaming.version:
            group = data.get(renaming.group)
            if isinstance(group, dict) and renaming.old in group and renaming.new not in group:
                data = {
                    **data,
                    renaming.group: {renaming.new if name == renaming.old else name: v for name, v in group.items()},
                }
    return data


def current_name(metric: str) -> str:
    """Return the current name of a metric such as `times.seed_total_time_s`."""
    for renaming in RENAMED:
        if metric == f"{renaming.group}.{renaming.old}":
            metric = f"{renaming.group}.{renaming.new}"
    return metric


def name_in(version: int, name: str) -> str:
    """Return the name that a metric such as `times.suite_total_time_s` had in a schema version."""
    for renaming in reversed(RENAMED):
        if version < renaming.version and name == f"{renaming.group}.{renaming.new}":
            name = f"{renaming.group}.{renaming.old}"
    return name

"""Renamed fields of a record: records of older schema versions are read under the current names."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any


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
    for one in RENAMED:
        if isinstance(version, int) and version < one.version:
            group = data.get(one.group)
            if isinstance(group, dict) and one.old in group and one.new not in group:
                data = {**data, one.group: {one.new if name == one.old else name: v for name, v in group.items()}}
    return data


def current_name(metric: str) -> str:
    """Return the current name of a metric such as `times.seed_total_time_s`."""
    for one in RENAMED:
        if metric == f"{one.group}.{one.old}":
            metric = f"{one.group}.{one.new}"
    return metric


def name_in(version: int, name: str) -> str:
    """Return the name that a metric such as `times.suite_total_time_s` had in a schema version."""
    for one in reversed(RENAMED):
        if version < one.version and name == f"{one.group}.{one.new}":
            name = f"{one.group}.{one.old}"
    return name

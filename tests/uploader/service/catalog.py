"""Datasets, tables and views of the fake service, and their API resources."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import Any

from tests.uploader.service.fields import Field, duckdb_type, normal, quoted
from tests.uploader.service.problems import duplicate, not_found

DAY_MS = 24 * 3600 * 1000


@dataclass(frozen=True)
class Dataset:
    """One dataset; its defaults apply to tables that are created later."""

    project: str
    name: str
    location: str
    created_ms: int
    table_expires_ms: int | None = None
    partition_expires_ms: int | None = None
    labels: Mapping[str, str] = field(default_factory=dict)

    @property
    def id(self) -> str:
        """The API's name: PROJECT:DATASET."""
        return f"{self.project}:{self.name}"

    def resource(self) -> dict[str, Any]:
        """Return the API's resource."""
        found = {
            "kind": "bigquery#dataset",
            "id": self.id,
            "datasetReference": {"projectId": self.project, "datasetId": self.name},
            "location": self.location,
            "creationTime": str(self.created_ms),
            "lastModifiedTime": str(self.created_ms),
            "defaultTableExpirationMs": _text(self.table_expires_ms),
            "defaultPartitionExpirationMs": _text(self.partition_expires_ms),
            "labels": dict(self.labels),
        }
        return _without_none(found)


@dataclass(frozen=True)
class Table:
    """One table, or one view if `view` is its query."""

    project: str
    dataset: str
    name: str
    fields: tuple[Field, ...]
    created_ms: int
    expires_ms: int | None = None
    partition: str | None = None
    partition_expires_ms: int | None = None
    filter_required: bool = False
    clustered: tuple[str, ...] = ()
    description: str | None = None
    labels: Mapping[str, str] = field(default_factory=dict)
    view: str | None = None

    @property
    def id(self) -> str:
        """The API's name: PROJECT:DATASET.TABLE."""
        return f"{self.project}:{self.dataset}.{self.name}"

    @property
    def sql(self) -> str:
        """The name that DuckDB stores it under."""
        return f"{schema_name(self.project, self.dataset)}.{quoted(self.name)}"

    def definition(self) -> str:
        """Return DuckDB's CREATE statement."""
        columns = ", ".join(
            f"{quoted(one['name'])} {duckdb_type(one)}{' NOT NULL' if one['mode'] == 'REQUIRED' else ''}"
            for one in self.fields
        )
        return f"CREATE TABLE {self.sql} ({columns})"

    def resource(self, location: str, rows: int) -> dict[str, Any]:
        """Return the API's resource."""
        reference = {"projectId": self.project, "datasetId": self.dataset, "tableId": self.name}
        found: dict[str, Any] = {
            "kind": "bigquery#table",
            "id": self.id,
            "tableReference": reference,
            "type": "TABLE" if self.view is None else "VIEW",
            "schema": {"fields": list(self.fields)},
            "location": location,
            "creationTime": str(self.created_ms),
            "lastModifiedTime": str(self.created_ms),
            "expirationTime": _text(self.expires_ms),
            "description": self.description,
            "labels": dict(self.labels),
        }
        if self.view is not None:
            return _without_none(found | {"view": {"query": self.view, "useLegacySql": False}})
        found |= {"numRows": str(rows), "clustering": {"fields": list(self.clustered)} if self.clustered else None}
        if self.partition is not None:
            expiry = _text(self.partition_expires_ms)
            found["timePartitioning"] = _without_none({"type": "DAY", "field": self.partition, "expirationMs": expiry})
            found["requirePartitionFilter"] = self.filter_required
        return _without_none(found)


def of_resource(given: Mapping[str, Any], dataset: Dataset, now_ms: int) -> Table:
    """Return the table that a request describes, with the dataset's defaults for omitted fields."""
    partitioning = given.get("timePartitioning") or {}
    view = given.get("view") or {}
    made = Table(
        dataset.project,
        dataset.name,
        given["tableReference"]["tableId"],
        tuple(normal(one) for one in given.get("schema", {}).get("fields", [])),
        now_ms,
        expires_ms=_number(given.get("expirationTime")),
        partition=partitioning.get("field"),
        partition_expires_ms=_number(partitioning.get("expirationMs")),
        filter_required=bool(given.get("requirePartitionFilter")),
        clustered=tuple((given.get("clustering") or {}).get("fields", [])),
        description=given.get("description"),
        labels=given.get("labels") or {},
        view=view.get("query"),
    )
    return with_defaults(made, dataset)


def with_defaults(table: Table, dataset: Dataset) -> Table:
    """Return a new table with its dataset's default lifetimes (docs/updating-datasets: default expiration)."""
    expires_ms, partition_ms = table.expires_ms, table.partition_expires_ms
    if table.partition is not None and partition_ms is None:
        partition_ms = dataset.partition_expires_ms
    if expires_ms is None and dataset.table_expires_ms is not None:
        expires_ms = table.created_ms + dataset.table_expires_ms
    return replace(table, expires_ms=expires_ms, partition_expires_ms=partition_ms)


class Catalog:
    """All datasets and tables by name. Names are case-sensitive."""

    def __init__(self) -> None:
        """Create an empty catalog."""
        self.datasets: dict[tuple[str, str], Dataset] = {}
        self.tables: dict[tuple[str, str, str], Table] = {}

    def dataset(self, project: str, name: str) -> Dataset:
        """Return a dataset. Raises `Refusal`."""
        if (project, name) not in self.datasets:
            raise not_found("Dataset", f"{project}:{name}")
        return self.datasets[project, name]

    def table(self, project: str, dataset: str, name: str) -> Table:
        """Return a table or view. Raises `Refusal`."""
        self.dataset(project, dataset)
        if (project, dataset, name) not in self.tables:
            raise not_found("Table", f"{project}:{dataset}.{name}")
        return self.tables[project, dataset, name]

    def find(self, project: str, dataset: str, name: str) -> Table | None:
        """Return a table or view if it exists."""
        return self.tables.get((project, dataset, name))

    def add_dataset(self, dataset: Dataset) -> None:
        """Add a dataset. Raises `Refusal`."""
        if (dataset.project, dataset.name) in self.datasets:
            raise duplicate("Dataset", dataset.id)
        self.datasets[dataset.project, dataset.name] = dataset

    def put(self, table: Table) -> None:
        """Add a table, or replace it."""
        self.tables[table.project, table.dataset, table.name] = table

    def remove(self, table: Table) -> None:
        """Remove a table."""
        self.tables.pop((table.project, table.dataset, table.name), None)

    def of_dataset(self, project: str, dataset: str) -> list[Table]:
        """Return the tables of a dataset, by name."""
        return [one for key, one in sorted(self.tables.items()) if key[:2] == (project, dataset)]


def schema_name(project: str, dataset: str) -> str:
    """Return DuckDB's name for a dataset."""
    return quoted(f"{project}.{dataset}")


def _text(value: int | None) -> str | None:
    return None if value is None else str(value)


def _number(value: Any) -> int | None:
    return None if value is None else int(value)


def _without_none(found: dict[str, Any]) -> dict[str, Any]:
    return {name: value for name, value in found.items() if value is not None}

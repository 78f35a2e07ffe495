"""Load jobs of the fake service: JSON lines into a table, atomically.

Source: cloud.google.com/bigquery/docs/loading-data-cloud-storage-json and docs/reference/rest/v2/Job
(JobConfigurationLoad). Not modelled: other formats, schema detection, partition decorators.
"""

from __future__ import annotations

import json
import tempfile
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from tests.uploader.service import definitions, problems
from tests.uploader.service.catalog import Table, of_resource
from tests.uploader.service.engine import Work, execute
from tests.uploader.service.fields import Field, duckdb_type, loaded_record, normal, quoted
from tests.uploader.service.problems import Refusal

if TYPE_CHECKING:
    from tests.uploader.service.service import Service

READ = "Error while reading data, error message:"
LONGEST_LINE_BYTES = 100 << 20


def load(service: Service, account: str, config: Mapping[str, Any], content: bytes) -> int:
    """Load lines into a table and return how many. Raises `Refusal`."""
    target = config["destinationTable"]
    key = (target["projectId"], target["datasetId"], target["tableId"])
    if config.get("sourceFormat") != "NEWLINE_DELIMITED_JSON" or config.get("autodetect"):
        raise problems.unmodelled("loads other than NEWLINE_DELIMITED_JSON with a schema")
    if "$" in key[2]:
        raise problems.unmodelled("loads into one partition")
    fields = list((config.get("schema") or {}).get("fields", []))
    old = service.catalog.find(*key)
    name = f"{key[0]}:{key[1]}.{key[2]}"
    service.limits.require(account, "tables.updateData" if old else "tables.create", "Table", name)
    if old is None and config.get("createDisposition") == "CREATE_NEVER":
        raise problems.not_found("Table", name)
    service.limits.count_append(name)
    made = _target(service, config, old, fields)
    lines = _checked(content, made.fields, config)
    truncate = config.get("writeDisposition") == "WRITE_TRUNCATE"
    if config.get("writeDisposition") == "WRITE_EMPTY" and old is not None and service.rows(old):
        raise problems.duplicate("Table", name)
    with service.engine.definitions:
        if old is None or (truncate and old.fields != made.fields):
            definitions.put(service, made)
        with service.engine.autocommit() as work:
            if truncate:
                execute(work, f"DELETE FROM {made.sql}")
            _insert(work, made, lines)
    service.expire()
    return len(lines)


def _target(service: Service, config: Mapping[str, Any], old: Table | None, fields: Sequence[Field]) -> Table:
    """Return the table after the load. Raises `Refusal` for a schema that does not match an existing table."""
    key = config["destinationTable"]
    if old is not None and (not fields or config.get("writeDisposition") != "WRITE_TRUNCATE"):
        _check_schema(old, fields)
        return old
    if not fields:
        raise problems.invalid("No schema specified on job or table.")
    dataset = service.catalog.dataset(key["projectId"], key["datasetId"])
    given = {"tableReference": key, "schema": {"fields": fields}}
    given |= {one: config[one] for one in ("timePartitioning", "clustering") if one in config}
    made = of_resource(given, dataset, service.now_ms())
    return made if old is None else replace(old, fields=made.fields)


def _check_schema(old: Table, fields: Sequence[Field]) -> None:
    known = {one["name"]: one for one in old.fields}
    for one in map(normal, fields):
        there = known.get(one["name"])
        start = f"Provided Schema does not match Table {old.id}."
        if there is None:
            raise problems.invalid(f"{start} Cannot add fields (field: {one['name']})")
        for what in ("type", "mode"):
            if one[what] != there[what]:
                text = f"Field {one['name']} has changed {what} from {there[what]} to {one[what]}"
                raise problems.invalid(f"{start} {text}")


def _checked(content: bytes, fields: Sequence[Field], config: Mapping[str, Any]) -> list[str]:
    """Convert lines for DuckDB. Raises `Refusal` with an entry for each invalid row."""
    lines, bad, position = [], [], 0
    ignored = bool(config.get("ignoreUnknownValues"))
    for line in content.splitlines(keepends=True):
        if line.strip():
            try:
                lines.append(json.dumps(loaded_record(_parsed(line), fields, unknown_ignored=ignored)))
            except Refusal as refusal:
                text = f"{READ} JSON parsing error in row starting at position {position}: {refusal.message}"
                bad.append(problems.invalid(text))
        position += len(line)
    if len(bad) > int(config.get("maxBadRecords") or 0):
        counts = f"Rows: {len(lines) + len(bad)}; errors: {len(bad)}"
        advice = "Please look into the errors[] collection for more details."
        first = f"{READ} JSON table encountered too many errors, giving up. {counts}. {advice}"
        more = f"{READ} JSON processing encountered too many errors, giving up. {counts}; max bad: 0; error percent: 0"
        raise Refusal("invalid", first, more=(problems.invalid(more), *bad[:5]))
    return lines


def _parsed(line: bytes) -> Any:
    try:
        return json.loads(line)
    except ValueError:
        raise problems.invalid("Parser terminated before end of string") from None


def _insert(work: Work, table: Table, lines: Sequence[str]) -> None:
    if not lines:
        return
    types = ", ".join(f"'{one['name']}': '{duckdb_type(one)}'" for one in table.fields)
    names = ", ".join(quoted(one["name"]) for one in table.fields)
    with tempfile.NamedTemporaryFile("w", suffix=".json", encoding="utf-8") as file:
        file.write("\n".join(lines))
        file.flush()
        options = f"format = 'newline_delimited', maximum_object_size = {LONGEST_LINE_BYTES}"
        read = f"read_json(?, columns = {{{types}}}, {options})"
        execute(work, f"INSERT INTO {table.sql} ({names}) SELECT {names} FROM {read}", [str(Path(file.name))])

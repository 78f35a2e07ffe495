"""Columns of the fake service: the API's field resources, DuckDB's types, values of results and parameters."""

from __future__ import annotations

import json
import math
from collections.abc import Mapping, Sequence
from datetime import UTC, date, datetime
from typing import Any

from sqlglot import exp

from tests.uploader.service.problems import invalid, unmodelled

Field = dict[str, Any]
DUCKDB = {
    "STRING": "VARCHAR",
    "INTEGER": "BIGINT",
    "FLOAT": "DOUBLE",
    "BOOLEAN": "BOOLEAN",
    "DATE": "DATE",
    "TIMESTAMP": "TIMESTAMPTZ",
    "DATETIME": "TIMESTAMP",
    "JSON": "JSON",
    "BYTES": "BLOB",
    "NUMERIC": "DECIMAL(38, 9)",
}
# The API's names for the types of its SQL.
STANDARD = {"INT64": "INTEGER", "FLOAT64": "FLOAT", "BOOL": "BOOLEAN", "STRUCT": "RECORD"}
OF_DUCKDB = {
    "VARCHAR": "STRING",
    "BIGINT": "INTEGER",
    "INTEGER": "INTEGER",
    "UBIGINT": "INTEGER",
    "HUGEINT": "INTEGER",
    "DOUBLE": "FLOAT",
    "FLOAT": "FLOAT",
    "BOOLEAN": "BOOLEAN",
    "DATE": "DATE",
    "TIMESTAMP WITH TIME ZONE": "TIMESTAMP",
    "TIMESTAMP": "DATETIME",
    "JSON": "JSON",
    "BLOB": "BYTES",
    '"NULL"': "INTEGER",
    "NULL": "INTEGER",
}
EPOCH = datetime(1970, 1, 1, tzinfo=UTC)


def normal(field: Mapping[str, Any]) -> Field:
    """Return a field as in the API's responses, from one of a request."""
    kind = str(field["type"]).upper()
    found: Field = {"name": field["name"], "type": STANDARD.get(kind, kind), "mode": field.get("mode") or "NULLABLE"}
    if field.get("description"):
        found["description"] = field["description"]
    if field.get("fields"):
        found["fields"] = [normal(one) for one in field["fields"]]
    if found["type"] not in DUCKDB and found["type"] != "RECORD":
        raise invalid(f"Invalid value for type: {kind} is not a valid value")
    return found


def duckdb_type(field: Field) -> str:
    """Return the DuckDB type of a field."""
    if field["type"] == "RECORD":
        inner = ", ".join(f"{quoted(one['name'])} {duckdb_type(one)}" for one in field["fields"])
        kind = f"STRUCT({inner})"
    else:
        kind = DUCKDB[field["type"]]
    return kind + ("[]" if field["mode"] == "REPEATED" else "")


def quoted(name: str) -> str:
    """Return a quoted identifier of DuckDB's SQL."""
    return '"' + name.replace('"', '""') + '"'


def of_definition(column: exp.ColumnDef) -> Field:
    """Return the field of a column of CREATE TABLE."""
    found = _of_sql(column.name, column.args["kind"])
    for constraint in column.args.get("constraints") or []:
        if isinstance(constraint.kind, exp.NotNullColumnConstraint):
            found["mode"] = "REQUIRED"
        elif isinstance(constraint.kind, exp.Properties):
            found |= {one.name: one.args["value"].name for one in constraint.kind.expressions}
    return found


def _of_sql(name: str, kind: exp.DataType) -> Field:
    if kind.is_type(exp.DataType.Type.ARRAY):
        return _of_sql(name, kind.expressions[0]) | {"mode": "REPEATED"}
    if kind.is_type(exp.DataType.Type.STRUCT):
        inner = [_of_sql(one.name, one.args["kind"]) for one in kind.expressions]
        return {"name": name, "type": "RECORD", "mode": "NULLABLE", "fields": inner}
    return normal({"name": name, "type": kind.sql(dialect="bigquery")})


def of_answer(name: str, kind: Any) -> Field:
    """Return the field of a result's column, from DuckDB's type."""
    text = str(kind)
    if text.endswith("[]"):
        [(_, inner)] = kind.children
        return of_answer(name, inner) | {"mode": "REPEATED"}
    if kind.id == "struct":
        fields = [of_answer(one, inner) for one, inner in kind.children]
        return {"name": name, "type": "RECORD", "mode": "NULLABLE", "fields": fields}
    if text.startswith("DECIMAL"):
        return {"name": name, "type": "NUMERIC", "mode": "NULLABLE"}
    return {"name": name, "type": OF_DUCKDB[text], "mode": "NULLABLE"}


def row(values: Sequence[Any], fields: Sequence[Field], *, whole_timestamps: bool) -> dict[str, Any]:
    """Return a row as in the API's responses, with timestamps as integer microseconds or as seconds."""
    pairs = zip(values, fields, strict=True)
    return {"f": [{"v": _value(value, field, whole_timestamps)} for value, field in pairs]}


def _value(value: Any, field: Field, whole: bool) -> Any:
    if field["mode"] == "REPEATED":
        one = field | {"mode": "NULLABLE"}
        return [{"v": _value(item, one, whole)} for item in value or []]
    if value is None:
        return None
    kind = field["type"]
    if kind == "RECORD":
        return row([value[one["name"]] for one in field["fields"]], field["fields"], whole_timestamps=whole)
    if kind == "BOOLEAN":
        return "true" if value else "false"
    if kind == "TIMESTAMP":
        microseconds = (value - EPOCH).days * 86_400_000_000 + (value - EPOCH).seconds * 1_000_000
        microseconds += (value - EPOCH).microseconds
        return str(microseconds) if whole else repr(microseconds / 1e6)
    if isinstance(value, date | datetime):
        return value.isoformat()
    return repr(value) if isinstance(value, float) else str(value)


def parameters(given: Sequence[Mapping[str, Any]]) -> dict[str, tuple[str, Any]]:
    """Return the type, by SQL's name, and the value of each named parameter of a query."""
    found = {}
    for one in given:
        if not one.get("name"):
            raise unmodelled("parameters without a name")
        kind, value = one["parameterType"], one.get("parameterValue", {})
        if kind["type"] == "ARRAY":
            inner = kind["arrayType"]["type"]
            items = [_scalar(inner, item.get("value")) for item in value.get("arrayValues", [])]
            found[one["name"]] = (f"ARRAY<{inner}>", items)
        else:
            found[one["name"]] = (kind["type"], _scalar(kind["type"], value.get("value")))
    return found


def _scalar(kind: str, text: str | None) -> Any:
    if text is None:
        return None
    if kind in ("INT64", "INTEGER"):
        return int(text)
    if kind in ("FLOAT64", "FLOAT"):
        return float(text)
    if kind in ("BOOL", "BOOLEAN"):
        return text in (True, "true")
    if kind in ("STRING", "DATE", "TIMESTAMP", "DATETIME", "JSON"):
        return text
    raise unmodelled(f"parameters of the type {kind}")


def loaded(value: Any, field: Field) -> Any:
    """Return a value of a loaded line as DuckDB reads it from JSON. Raises `Refusal` for an invalid value.

    Source: cloud.google.com/bigquery/docs/loading-data-cloud-storage-json (data types).
    """
    name, kind = field["name"], field["type"]
    if field["mode"] == "REPEATED":
        if not isinstance(value, list):
            raise invalid(f"Nonarray specified for repeated field: {name}.")
        return [loaded(item, field | {"mode": "REQUIRED"}) for item in value]
    if value is None:
        if field["mode"] == "REQUIRED":
            raise invalid(f"Only optional fields can be set to NULL. Field: {name}; Value: NULL")
        return None
    if kind == "JSON":
        return value
    if kind == "RECORD":
        return loaded_record(value, field["fields"])
    if isinstance(value, list):
        raise invalid(f"Array specified for non-repeated field: {name}.")
    try:
        return CONVERTED[kind](value)
    except (ValueError, TypeError, KeyError):
        shown = f"string_value: {json.dumps(value)}" if isinstance(value, str) else json.dumps(value)
        text = f"Could not convert value '{shown}' to {kind.lower()}. Field: {name}; Value: {value}"
        raise invalid(text) from None


def loaded_record(value: Any, fields: Sequence[Field], *, unknown_ignored: bool = False) -> dict[str, Any]:
    """Return a line, or a record within one, as DuckDB reads it. Raises `Refusal`."""
    if not isinstance(value, dict):
        raise invalid("Value encountered without start of object.")
    known = {field["name"].lower(): field for field in fields}
    for name in value:
        if name.lower() not in known and not unknown_ignored:
            raise invalid(f"No such field: {name}.")
    given = {name.lower(): item for name, item in value.items()}
    missing = [field["name"] for name, field in known.items() if name not in given and field["mode"] == "REQUIRED"]
    if missing:
        raise invalid(f"Missing required field: {missing[0]}.")
    return {field["name"]: loaded(given[name], field) for name, field in known.items() if name in given}


def _whole(value: Any) -> int:
    if isinstance(value, bool) or (isinstance(value, float) and not value.is_integer()):
        raise ValueError
    found = int(value)
    if not -(2**63) <= found < 2**63:
        raise ValueError
    return found


def _number(value: Any) -> float | str:
    if isinstance(value, bool):
        raise ValueError  # noqa: TRY004 - an invalid value, not a programming error
    found = float(value)
    return found if math.isfinite(found) else str(found)


def _text(value: Any) -> str:
    return value if isinstance(value, str) else json.dumps(value)


def _truth(value: Any) -> bool:
    if isinstance(value, bool):
        return value
    return {"true": True, "false": False, "1": True, "0": False}[str(value).lower()]


def _day(value: Any) -> str:
    return date.fromisoformat(value).isoformat()


def _time(value: Any) -> str:
    if isinstance(value, int | float) and not isinstance(value, bool):
        return datetime.fromtimestamp(value, UTC).isoformat()
    found = datetime.fromisoformat(value.removesuffix(" UTC"))
    return (found if found.tzinfo else found.replace(tzinfo=UTC)).isoformat()


CONVERTED = {
    "STRING": _text,
    "INTEGER": _whole,
    "FLOAT": _number,
    "BOOLEAN": _truth,
    "DATE": _day,
    "TIMESTAMP": _time,
}

"""Imports external results through a mapping of columns, into separate runs that are marked with their source.

An external row becomes one attempt with one measurement. Its run is identified by its day and source; its cell by the
hash of all mapped columns except value and time, so that equal configurations compare; its repeat by the hash of value
and time, independent of the row's position. Importing a row again adds nothing, and no row overwrites another, also
if the table has grown, returns its rows in another order, or is imported as several files.
"""

from __future__ import annotations

import csv
import hashlib
import json
import math
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from contextlib import closing
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING, Any

from keras_matrix.records.codec import MOST_INT, canonical
from keras_matrix.records.host.inherited_environment import without_user
from keras_matrix.records.schema import SCHEMA_VERSION
from keras_matrix.records.validity import current_name
from keras_matrix.uploader.errors import BadInput
from keras_matrix.uploader.rows import WarehouseRow, day_of, line
from keras_matrix.uploader.schema import CELLS, MEASUREMENTS, RUNS, ColumnMode, TableColumn, Type, metrics, unit_of

if TYPE_CHECKING:
    from keras_matrix.uploader.warehouse import Options

NEEDED = ("workload", "backend", "value", "started_at")
COMPUTED = frozenset(
    {"day", "run_id", "cell_id", "repeat", "attempt", "row_hash", "source", "schema_version", "status"}
)
MOST_SOURCE = 60
REPEAT_BYTES = 5
BOOLEANS = {"1": True, "true": True, "yes": True, "0": False, "false": False, "no": False}


@dataclass(frozen=True, slots=True)
class ImportSpec:
    """An import: external column names by ours, the metric of the values, and their source."""

    mapping: Mapping[str, str]
    metric: str
    source: str


@dataclass(slots=True)
class ImportedRows:
    """Converted rows, and one line per external row that could not be converted."""

    rows: list[WarehouseRow] = field(default_factory=list)
    problems: list[str] = field(default_factory=list)


def mapping(assignments: Sequence[str]) -> dict[str, str]:
    """Parse a mapping. Raises `BadInput`, which names an invalid assignment or a missing column."""
    columns = {column.name for column in CELLS.columns} - COMPUTED | {"value"}
    mapped: dict[str, str] = {}
    for text in assignments:
        our_column, sign, their_column = text.partition("=")
        if not sign or not their_column or our_column not in columns:
            raise BadInput(
                f"--map: must be COLUMN=NAME with a column of cells (uploader schema lists them) or value, got {text!r}"
            )
        if our_column in mapped:
            raise BadInput(f"--map: {our_column} must be mapped once, got {mapped[our_column]!r} and {their_column!r}")
        mapped[our_column] = their_column
    if missing_names := [name for name in NEEDED if name not in mapped]:
        raise BadInput(f"--map: {', '.join(missing_names)} must be mapped too: --map {missing_names[0]}=NAME")
    return mapped


def source(text: str) -> str:
    """Validate the name of a source. Raises `BadInput`."""
    if not text.strip() or len(text) > MOST_SOURCE or not text.isprintable():
        raise BadInput(f"--source: must be 1 to {MOST_SOURCE} printable characters, got {text[:70]!r}")
    return text.strip()


def read_csv(path: Path) -> list[dict[str, Any]]:
    """Return the rows of a CSV file. Raises `BadInput`."""
    try:
        with path.open(encoding="utf-8-sig", newline="") as file:
            rows = csv.DictReader(file, strict=True)
            names, foreign_rows = rows.fieldnames or (), list(rows)
    except OSError as error:
        raise BadInput(f"{path}: cannot be read: {error.strerror or error}") from error
    except (UnicodeDecodeError, csv.Error) as error:
        raise BadInput(f"{path}: cannot be read as CSV in UTF-8: {error}") from error
    if not names:
        raise BadInput(f"{path}: must begin with a line of column names, got an empty file")
    if doubled := sorted({name for name in names if name and names.count(name) > 1}):
        raise BadInput(f"{path}: columns must have different names, got more than one {doubled[0]!r}")
    return foreign_rows


def read_table(address: str, results: Path, options: Options) -> list[dict[str, Any]]:
    """Return the rows of a BigQuery table. Raises `UploadError`."""
    from keras_matrix.uploader.opening import open_warehouse

    dataset, _, table = address.rpartition(".")
    if not table.isidentifier():
        raise BadInput(f"FILE: must be bigquery://PROJECT.DATASET.TABLE, got {without_user(address)!r}")
    with closing(open_warehouse(dataset, results, options)) as source_warehouse:
        return source_warehouse.query(f"SELECT * FROM {table}").dicts()  # noqa: S608 - an identifier


def rows_of(foreign_rows: Iterable[Mapping[str, Any]], spec: ImportSpec) -> ImportedRows:
    """Convert external rows. A row that is invalid is skipped and reported. Raises `BadInput` for an unknown metric."""
    spec = replace(spec, metric=current_name(spec.metric))
    metric_names = {".".join(leaf.path) for leaf in metrics()}
    if spec.metric not in metric_names:
        raise BadInput(f"--metric: must be a metric of measurements (such as times.step_time_s), got {spec.metric!r}")
    imported, runs, occurrences = ImportedRows(), set(), Counter[tuple[object, ...]]()
    for number, foreign_row in enumerate(foreign_rows, 1):
        try:
            values, began, value = _cell(foreign_row, spec)
        except (ValueError, TypeError, OverflowError, RecursionError) as error:  # such as "fast", or a struct
            imported.problems.append(f"row {number}: {error}")
            continue
        run_id = values["run_id"]
        if run_id not in runs:
            runs.add(run_id)
            run = {"day": values["day"], "run_id": run_id, "started_at": values["started_at"], "arm": spec.source}
            imported.rows.append(WarehouseRow(RUNS, run_id, line(RUNS, run)))
        row_identity = (run_id, values["cell_id"], began, value)
        values["repeat"] = _repeat(began, value, occurrences[row_identity])
        occurrences[row_identity] += 1
        _add(imported, values, value, spec.metric)
    return imported


def _repeat(began: datetime, value: float, earlier_count: int) -> int:
    """Return the repeat number of a row from its content; `earlier_count` is the number of equal rows before it."""
    digest = hashlib.sha256(
        canonical([began.isoformat(), value, earlier_count]).encode(errors="surrogatepass")
    ).digest()
    return int.from_bytes(digest[:REPEAT_BYTES])


def _add(imported: ImportedRows, values: dict[str, Any], value: float, metric: str) -> None:
    item = "{run_id}/{cell_id}.{repeat}.{attempt}".format(**values)
    imported.rows.append(WarehouseRow(CELLS, item, line(CELLS, values)))
    measurement = {**values, "metric": metric, "value": value, "unit": unit_of(metric)}
    imported.rows.append(WarehouseRow(MEASUREMENTS, item, line(MEASUREMENTS, measurement)))


def _cell(foreign_row: Mapping[str, Any], spec: ImportSpec) -> tuple[dict[str, Any], datetime, float]:
    """Return the columns of an external attempt, its time and its value. Raises `ValueError`."""
    if None in foreign_row:  # `csv` puts surplus fields there, such as those after an unquoted comma
        raise ValueError("has more fields than there are columns")
    given_values = {our_column: _picked(foreign_row, their_column) for our_column, their_column in spec.mapping.items()}
    for name in NEEDED:
        if given_values[name] in (None, ""):
            raise ValueError(f"{spec.mapping[name]} is empty")
    value = _number(spec.mapping["value"], given_values.pop("value"))
    began = _time(spec.mapping["started_at"], given_values.pop("started_at"))
    columns = {name: _typed(CELLS.column(name), v) for name, v in given_values.items() if v not in (None, "")}
    digest = hashlib.sha256(spec.source.encode(errors="surrogatepass")).hexdigest()[:6]
    run_id = f"{began.year:04}{began:%m%dT000000Z}-{digest}"
    identity = canonical([spec.source, json.loads(json.dumps(columns, default=str))])
    cell_row = {
        **columns,
        "day": day_of(run_id),
        "schema_version": SCHEMA_VERSION,
        "run_id": run_id,
        "cell_id": hashlib.sha256(identity.encode(errors="surrogatepass")).hexdigest()[:16],
        "attempt": 0,
        "status": "ok",
        "started_at": began.isoformat(timespec="seconds"),
        "source": spec.source,
    }
    return cell_row, began, value


def _picked(foreign_row: Mapping[str, Any], path: str) -> Any:
    """Return the value of a column, or of a path into a struct. Raises `ValueError`."""
    if path in foreign_row:
        return foreign_row[path]
    member: Any = foreign_row
    for name in path.split("."):
        if not isinstance(member, Mapping) or name not in member:
            raise ValueError(f"has no column {path!r}; it has {', '.join(map(str, foreign_row))}")
        member = member[name]
    return member


def _time(name: str, value: Any) -> datetime:
    """Return a time in UTC. Raises `ValueError`."""
    try:
        when = value if isinstance(value, datetime) else datetime.fromisoformat(str(value).removesuffix(" UTC"))
    except ValueError:
        raise ValueError(f"{name}: must be a time such as 2017-06-01T12:00:00Z, got {value!r}") from None
    try:
        return when.replace(tzinfo=UTC) if when.tzinfo is None else when.astimezone(UTC)
    except OverflowError:
        raise ValueError(f"{name}: must be a time from year 1 to 9999 in UTC, got {value!r}") from None


def _typed(column: TableColumn, value: Any) -> Any:
    """Convert a value to a column's type. Raises `ValueError`."""
    if column.mode is ColumnMode.REPEATED:
        return [str(entry) for entry in value] if isinstance(value, list) else [str(value)]
    if column.type is Type.INT64:
        return _integer(column.name, value)
    if column.type is Type.FLOAT64:
        return _number(column.name, value)
    if column.type is Type.BOOL:
        if (converted := BOOLEANS.get(str(value).lower())) is None:
            raise ValueError(f"{column.name}: must be true or false, got {value!r}")
        return converted
    if column.type is Type.JSON:
        return _json_object(column.name, value)
    return str(value)


def _json_object(name: str, value: Any) -> dict[str, Any]:
    """Return an object that can be written as JSON, from itself or its text. Raises `ValueError`."""
    try:
        converted = json.loads(value, parse_constant=float) if isinstance(value, str) else value
        json.dumps(converted, allow_nan=False, default=str)
    except ValueError:
        converted = None
    if isinstance(converted, dict):
        return converted
    raise ValueError(f"{name}: must be a JSON object without NaN or infinity, got {value!r}")


def _number(name: str, value: Any) -> float:
    """Return a finite number. Raises `ValueError`."""
    try:
        number = float(value)
    except (TypeError, ValueError):
        raise ValueError(f"{name}: must be a number, got {value!r}") from None
    if not math.isfinite(number):
        raise ValueError(f"{name} is not finite")
    return number


def _integer(name: str, value: Any) -> int:
    """Return an integer of 64 bits, also from 32.0. Raises `ValueError` or `TypeError`."""
    try:
        integer = int(value) if isinstance(value, str | int) else int(str(value))
    except ValueError:
        number = _number(name, value)
        integer = int(number)
        if number != integer:
            raise ValueError(f"{name}: must be an integer, got {value!r}") from None
    if abs(integer) > MOST_INT:
        raise ValueError(f"{name}: must be an integer of 64 bits, got {integer.bit_length()} bits")
    return integer

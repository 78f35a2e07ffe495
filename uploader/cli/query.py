"""Run one SELECT in BigQuery's dialect, on BigQuery or on the local warehouse.

    uploader query 'SELECT backend, COUNT(*) AS attempts FROM cells GROUP BY backend'
    uploader query --file dashboards/queries/runs.sql --set workload= --set backend=jax --set since=2026-01-01 --csv
    uploader query --dry-run --from bigquery://PROJECT.DATASET 'SELECT COUNT(*) AS n FROM measurements'

`--set` gives the values of the parameters in a query. docs/python.md#query-the-warehouse
"""

from __future__ import annotations

import argparse
import csv
import json
import math
import sys
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

from keras_matrix.records.text import bytes_text, plural
from keras_matrix.uploader.cli import options
from keras_matrix.uploader.errors import BadInput

if TYPE_CHECKING:
    from keras_matrix.uploader.opening import Target
    from keras_matrix.uploader.warehouse import QueryResult, Scalar


def configure(parser: argparse.ArgumentParser) -> None:
    """Add this command's flags."""
    options.add_warehouse_options(parser)
    parser.add_argument("sql", nargs="?", metavar="SELECT", help="the query")
    parser.add_argument("--file", type=Path, metavar="FILE", help="a file with the query")
    parser.add_argument(
        "--set",
        action="append",
        default=[],
        metavar="NAME[:TYPE]=VALUE",
        dest="assignments",
        help="a value for @NAME: a string, or of TYPE int, float or bool (true or false). @since is also the first day "
        "that the views read",
    )
    parser.add_argument(
        "--dry-run",
        action="store_true",
        help="print how many bytes the query would read and what they cost; run nothing",
    )
    form = parser.add_mutually_exclusive_group()
    form.add_argument("--csv", action="store_true", help="print CSV")
    form.add_argument("--json", action="store_true", help="print one JSON object per row")


def run(args: argparse.Namespace) -> int:
    """Run the query and print the rows."""
    from keras_matrix.uploader.local.warehouse import LocalWarehouse
    from keras_matrix.uploader.opening import require_results
    from keras_matrix.uploader.sql import with_views
    from keras_matrix.uploader.warehouse import is_local

    parameters = dict(map(_assignment, args.assignments))
    written_sql = _sql(args.sql, args.file)
    sql = with_views(written_sql) if "since" in parameters else written_sql
    target = options.target(args)
    if is_local(args.to):
        require_results(target.results)
    with target.opened() as warehouse:
        if isinstance(warehouse, LocalWarehouse):
            warehouse.restrict_file_access()
        if args.dry_run:
            print("\n".join(_cost(sql, warehouse.bytes_read(sql, parameters), args.most_bytes_billed)))
            return 0
        answer = warehouse.query(sql, parameters)
        is_emptied = isinstance(warehouse, LocalWarehouse) and warehouse.is_empty()
    _print(answer, as_csv=args.csv, as_json=args.json)
    if is_emptied:
        _warn_if_rows_were_sent(target)
    return 0


def _warn_if_rows_were_sent(target: Target) -> None:
    """Warn on stderr if rows were sent to a warehouse that is now empty."""
    from keras_matrix.uploader.schema import CELLS

    if sent_count := len(target.outbox().sent()[CELLS.name]):
        print(
            f"warning: the warehouse has no rows, but {plural(sent_count, 'attempt')} had been sent to it; "
            f"send them again with: uploader push --to {target.address} --results {target.results}",
            file=sys.stderr,
        )


def _print(answer: QueryResult, *, as_csv: bool, as_json: bool) -> None:
    if as_csv:
        writer = csv.writer(sys.stdout)
        writer.writerow(answer.columns)
        writer.writerows(map(_text, row) for row in answer.rows)
    elif as_json:
        for row in answer.dicts():
            print(_line(row))
    else:
        _print_table(answer)


def _sql(sql: str | None, file: Path | None) -> str:
    if (sql is None) == (file is None):
        raise BadInput("SELECT: must be given, or --file FILE with a query, but not both")
    try:
        return str(sql) if file is None else file.read_text(encoding="utf-8")
    except OSError as error:
        raise BadInput(f"--file: {file}: {error.strerror or error}") from error
    except UnicodeDecodeError as error:
        raise BadInput(f"--file: {file}: must be text in UTF-8, got an invalid byte at offset {error.start}") from error


def _assignment(text: str) -> tuple[str, Scalar]:
    name_and_kind, sign, value = text.partition("=")
    name, _, kind = name_and_kind.partition(":")
    if not sign or not name.isidentifier():
        raise BadInput(f"--set: must be NAME=VALUE or NAME:TYPE=VALUE, got {text!r}")
    try:
        return name, TYPES[kind](value)
    except (KeyError, ValueError):
        type_names = "int, float or bool (true, false)"
        raise BadInput(f"--set: {text!r}: the value must have the declared type, one of {type_names}") from None


def _truth(value: str) -> bool:
    return {"true": True, "false": False}[value.casefold()]


TYPES: Mapping[str, Callable[[str], Scalar]] = {"": str, "int": int, "float": float, "bool": _truth}


def _cost(sql: str, read_bytes: int | None, most_bytes: int) -> list[str]:
    """Return lines on the bytes that a query would read and their cost."""
    from keras_matrix.uploader.bigquery.jobs import PRICE_SINCE, USD_PER_TIB, billed, cost_usd, usd
    from keras_matrix.uploader.bigquery.partition_pruning import tables_read, unbounded

    if read_bytes is None:
        return ["the local warehouse: reading is free"]
    table_count = len(tables_read(sql))
    billed_bytes = billed(read_bytes, table_count)
    lines = [
        f"would read {read_bytes:,} bytes ({bytes_text(read_bytes)}) of {plural(table_count, 'table')}",
        f"billed at most {bytes_text(billed_bytes)} (at least 10 MiB per table): {usd(cost_usd(billed_bytes))} at the "
        f"list price of USD {USD_PER_TIB} per TiB (US, on demand, since {PRICE_SINCE}); the first TiB of a month is "
        "free",
    ]
    if billed_bytes > most_bytes:
        lines.append(f"above --maximum-bytes-billed ({bytes_text(most_bytes)}): the query would be rejected")
    if all_days := unbounded(sql):
        lines.append(
            f"reads every day of {', '.join(all_days)}: add a condition such as day >= '2026-01-31' to read less"
        )
    return lines


def _json(value: Any) -> Any:
    """Return a value for JSON, with non-finite numbers as the strings that BigQuery uses, such as NaN."""
    if isinstance(value, dict):
        return {str(name): _json(member) for name, member in value.items()}
    if isinstance(value, list | tuple):
        return [_json(entry) for entry in value]
    if isinstance(value, float) and not math.isfinite(value):
        return "NaN" if math.isnan(value) else "Infinity" if value > 0 else "-Infinity"
    return value


def _line(value: Any) -> str:
    return json.dumps(_json(value), default=str, ensure_ascii=False, allow_nan=False)


def _text(value: Any) -> Any:
    """Return a value for a table cell: a struct, an array or JSON as JSON, any other value unchanged."""
    return _line(value) if isinstance(value, dict | list) else value


def _print_table(answer: QueryResult) -> None:
    from rich import box
    from rich.console import Console
    from rich.table import Table
    from rich.text import Text

    shown_table = Table(box=box.SIMPLE_HEAD, pad_edge=False)
    for name in answer.columns:
        shown_table.add_column(name, overflow="fold")
    for row in answer.rows:
        shown_table.add_row(*(Text("" if value is None else str(_text(value))) for value in row))
    Console(highlight=False).print(shown_table)
    print(plural(len(answer.rows), "row"))

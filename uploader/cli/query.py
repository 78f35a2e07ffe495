"""Answer one SELECT in BigQuery's dialect, on BigQuery or on the local warehouse.

uploader query 'SELECT backend, COUNT(*) AS attempts FROM cells GROUP BY backend'
uploader query --file dashboards/queries/runs.sql --set workload= --set backend=jax --set since=2026-01-01 --csv"""

from __future__ import annotations

import argparse
import csv
import json
import math
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any

from uploader.cli import options
from uploader.errors import BadInput

if TYPE_CHECKING:
    from uploader.warehouse import Answer, Scalar

NAME = "query"
HELP = "answer one SELECT in BigQuery's dialect"


def configure(parser: argparse.ArgumentParser) -> None:
    """Add this command's flags."""
    options.add_warehouse_options(parser)
    parser.add_argument("sql", nargs="?", metavar="SELECT", help="the query")
    parser.add_argument("--file", type=Path, metavar="FILE", help="a file that holds it")
    parser.add_argument(
        "--set", action="append", default=[], metavar="NAME=VALUE", dest="assignments", help="a value for @NAME"
    )
    form = parser.add_mutually_exclusive_group()
    form.add_argument("--csv", action="store_true", help="print CSV")
    form.add_argument("--json", action="store_true", help="print one JSON object a row")


def run(args: argparse.Namespace) -> int:
    """Ask, and print the rows."""
    from uploader.local import LocalWarehouse
    from uploader.warehouse import is_local

    sql = _sql(args)
    if is_local(args.to):
        options.require_results(args)
    with options.warehouse(args) as warehouse:
        if isinstance(warehouse, LocalWarehouse):
            warehouse.shut_in()
        answer = warehouse.query(sql, dict(map(_assignment, args.assignments)))
    if args.csv:
        writer = csv.writer(sys.stdout)
        writer.writerow(answer.columns)
        writer.writerows(map(_text, row) for row in answer.rows)
    elif args.json:
        for row in answer.dicts():
            print(_line(row))
    else:
        _print_table(answer)
    return 0


def _sql(args: argparse.Namespace) -> str:
    if (args.sql is None) == (args.file is None):
        raise BadInput("SELECT: give a query, or --file FILE that holds one")
    try:
        return str(args.sql) if args.file is None else str(args.file.read_text(encoding="utf-8"))
    except OSError as error:
        raise BadInput(f"--file: {args.file}: {error.strerror or error}") from error


def _assignment(text: str) -> tuple[str, Scalar]:
    name, sign, value = text.partition("=")
    if not sign or not name.isidentifier():
        raise BadInput(f"--set: must be NAME=VALUE, got {text!r}")
    for kind in (int, float):
        try:
            return name, kind(value)
        except ValueError:
            continue
    return name, value


def _json(value: Any) -> Any:
    """Return a value for JSON; what JSON has no number for is told in words, as BigQuery does: NaN, Infinity."""
    if isinstance(value, dict):
        return {str(name): _json(one) for name, one in value.items()}
    if isinstance(value, list | tuple):
        return [_json(one) for one in value]
    if isinstance(value, float) and not math.isfinite(value):
        return "NaN" if math.isnan(value) else "Infinity" if value > 0 else "-Infinity"
    return value


def _line(value: Any) -> str:
    return json.dumps(_json(value), default=str, ensure_ascii=False, allow_nan=False)


def _text(value: Any) -> Any:
    """Return a value for a cell of a table: a struct, an array or JSON as JSON, all else as it is."""
    return _line(value) if isinstance(value, dict | list) else value


def _print_table(answer: Answer) -> None:
    from rich import box
    from rich.console import Console
    from rich.table import Table
    from rich.text import Text

    shown = Table(box=box.SIMPLE_HEAD, pad_edge=False)
    for name in answer.columns:
        shown.add_column(name, overflow="fold")
    for row in answer.rows:
        shown.add_row(*(Text("" if value is None else str(_text(value))) for value in row))
    Console(highlight=False).print(shown)
    print(f"{len(answer.rows)} rows")

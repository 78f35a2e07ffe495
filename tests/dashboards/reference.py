"""Analyses and runs queries with ZetaSQL, Google's own engine of this SQL: a program for the Python that has it.

Reads {"rows": bool, "tables": {name: {"columns": [[name, type]], "rows": [[...]]}}, "queries": {name: sql}} and prints,
by query, its columns and rows, or the error of the analyser; with `"rows": false` only its columns, because the engine
takes minutes for joins. Tables come in as plain types; a query casts them to what they are.
"""

from __future__ import annotations

import json
import os
import sys
from datetime import date, timedelta
from pathlib import Path
from typing import Any


def main() -> None:
    """Answer every query."""
    from zetasql.api import CatalogBuilder, PreparedQuery, TableBuilder, create_table_content
    from zetasql.types import AnalyzerOptions, LanguageOptions, TypeKind, ZetaSQLBuiltinFunctionOptions

    kinds = {
        "STRING": TypeKind.TYPE_STRING,
        "INT64": TypeKind.TYPE_INT64,
        "FLOAT64": TypeKind.TYPE_DOUBLE,
        "BOOL": TypeKind.TYPE_BOOL,
    }
    asked = json.load(sys.stdin)
    language = LanguageOptions.maximum_features()
    catalog = CatalogBuilder("reference")
    for name, table in asked["tables"].items():
        made = TableBuilder(name)
        for column, kind in table["columns"]:
            made = made.add_column(column, kinds[kind])
        catalog = catalog.add_table(made.build())
    built = catalog.with_builtin_functions(ZetaSQLBuiltinFunctionOptions(language_options=language)).build()
    options = AnalyzerOptions(language_options=language, default_timezone="UTC")
    content = {name: create_table_content(table["rows"]) for name, table in asked["tables"].items()}
    answers: dict[str, Any] = {}
    for name, sql in asked["queries"].items():
        try:
            prepared = PreparedQuery.builder().set_sql(sql).set_analyzer_options(options).set_catalog(built)
            query = prepared.set_table_content(content).prepare()
            answers[name] = {"columns": [one.name for one in query.columns]}
            if asked["rows"]:
                answers[name]["rows"] = _rows(query.execute())
        except Exception as error:  # noqa: BLE001 - any refusal is an answer
            answers[name] = {"error": f"{type(error).__name__}: {error}"[:500]}
    json.dump(answers, sys.stdout)


def _rows(answer: Any) -> list[list[Any]]:
    return [[_plain(cell.to_proto()) for cell in row.cell] for row in answer.content.table_data.row]


def _plain(value: Any) -> Any:
    """Return a value for JSON; a day as ISO 8601."""
    name = value.WhichOneof("value")
    if name is None:
        return None
    found = getattr(value, name)
    return (date(1970, 1, 1) + timedelta(days=found)).isoformat() if name == "date_value" else found


if __name__ == "__main__":
    sys.path[:] = [path for path in sys.path if path != str(Path(__file__).parent)]
    os.environ.setdefault("TZ", "UTC")
    main()

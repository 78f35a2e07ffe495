"""Translates SQL from BigQuery's dialect to DuckDB's, and rejects everything but a single SELECT.

docs/python.md#sql-for-two-engines lists the SQL that has the same meaning in both engines; the queries in
`dashboards/queries` use only that, and a test compares their results.

The views are written with the parameter @since, the first day that their scans read. When a view is created, a day
replaces it; a query with @since gets the views as CTEs, so that the parameter bounds them too.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from functools import cache, lru_cache
from pathlib import Path
from typing import TYPE_CHECKING

from keras_matrix.uploader.errors import BadInput

if TYPE_CHECKING:
    from sqlglot import exp

VIEWS = Path(__file__).parent / "views"
TRANSLATED = VIEWS / "duckdb"
SINCE = "CAST(@since AS DATE)"  # as written in queries and views
READ = re.compile(r"(?:\bFROM|\bJOIN|,)\s+`?(\w+)\b(?!`?\.)", re.IGNORECASE)
EVERY_DAY = "DATE '0001-01-01'"


@lru_cache(maxsize=256)
def to_duckdb(sql: str) -> str:
    """Return a query in DuckDB's dialect. Raises `BadInput` unless it is a single SELECT."""
    from sqlglot import ErrorLevel

    tree, view_names = parsed(sql), views()
    for cte in tree.ctes:
        if cte.alias in view_names:
            cte.set("materialized", False)  # like a view: reads only the columns and rows that the query uses
    return tree.sql(dialect="duckdb", unsupported_level=ErrorLevel.RAISE)


def qualified(sql: str, dataset: str, names: Iterable[str]) -> str:
    """Return a query with these tables qualified by their dataset, which BigQuery requires in a view."""
    from sqlglot import exp

    tree, own_tables = parsed(sql), set(names)
    for table in tree.find_all(exp.Table):
        if table.name in own_tables and not table.db:
            project, _, name = dataset.partition(".")
            table.set("db", exp.to_identifier(name, quoted=True))
            table.set("catalog", exp.to_identifier(project, quoted=True))
    return rendered(tree)


@cache
def views() -> Mapping[str, str]:
    """Return the warehouse's views by name, in an order in which they can be created, with the parameter @since."""
    return {path.stem: path.read_text(encoding="utf-8") for path in sorted(VIEWS.glob("*.sql"))}


def since(sql: str, day: str) -> str:
    """Return a view's SQL with @since replaced by `day`, an SQL expression of type DATE."""
    return sql.replace(SINCE, day)


@lru_cache(maxsize=256)
def with_views(sql: str) -> str:
    """Return a query with its views as CTEs, so that its parameter @since bounds them. Raises `BadInput`."""
    needed_views = _needed(sql)
    if not needed_views:
        return sql
    cte_names = {cte.alias for cte in parsed(sql).ctes} if re.search(r"\bWITH\b", sql, re.IGNORECASE) else set()
    added_sql = ",\n".join(
        f"{name} AS (\n{_uncommented(views()[name])}\n)" for name in needed_views if name not in cte_names
    )
    if not cte_names or not added_sql:
        return f"WITH {added_sql}\n{sql}" if added_sql else sql
    end = _end_of_with(sql)
    return f"{sql[:end]} {added_sql},{sql[end:]}"


def translated_views() -> dict[str, str]:
    """Return the views in DuckDB's dialect from generated files, so that opening a warehouse needs no SQL parser."""
    return {name: (TRANSLATED / f"{name}.sql").read_text(encoding="utf-8") for name in views()}


def translate_views() -> dict[str, str]:
    """Translate the views to DuckDB's dialect: the content of the generated files."""
    return {name: to_duckdb(since(sql, EVERY_DAY)) + "\n" for name, sql in views().items()}


def meaning_of_view(sql: str) -> str:
    """Return the description of a view: the comment at its beginning."""
    lines = [line[2:].strip() for line in sql.splitlines() if line.startswith("--")]
    return " ".join(lines)


def rendered(tree: exp.Expr) -> str:
    """Return a tree as BigQuery's SQL, without the quotes of sqlglot's interval literals, which BigQuery rejects."""
    from sqlglot import exp

    for literal in tree.find_all(exp.Literal):
        if literal.is_string and literal.name.isdecimal() and "unit" in (literal.parent or literal).args:
            literal.replace(exp.Literal.number(literal.name))
    return tree.sql(dialect="bigquery")


def _end_of_with(sql: str) -> int:
    """Return the offset after the WITH or WITH RECURSIVE at the beginning of a query."""
    from sqlglot import tokenize

    first_token, second_token = tokenize(sql, read="bigquery")[:2]
    return int((second_token if second_token.text.upper() == "RECURSIVE" else first_token).end) + 1


def _needed(sql: str) -> list[str]:
    """Return the views that a query reads, directly and indirectly, in an order in which they can be created."""
    view_names: set[str] = set()
    texts = [_uncommented(sql)]
    while texts:
        read_views = set(READ.findall(texts.pop())) & set(views()) - view_names
        view_names |= read_views
        texts += [views()[name] for name in read_views]
    return [name for name in views() if name in view_names]


def _uncommented(sql: str) -> str:
    return "\n".join(line for line in sql.strip().splitlines() if not line.startswith("--"))


def parsed(sql: str) -> exp.Query:
    """Return the syntax tree of a query. Raises `BadInput` unless it is a single SELECT."""
    from sqlglot import errors, exp, parse

    try:
        trees = [tree for tree in parse(sql, read="bigquery") if tree is not None]
    except errors.SqlglotError as error:
        raise BadInput(f"the query cannot be parsed: {str(error).splitlines()[0]}") from error
    if len(trees) != 1 or not isinstance(trees[0], exp.Query) or not trees[0].selects:
        raise BadInput(f"the query must be one SELECT, got {sql.strip()[:60]!r}")
    return trees[0]


if __name__ == "__main__":  # python -m keras_matrix.uploader.sql: regenerate the translated views
    for name, text in translate_views().items():
        (TRANSLATED / f"{name}.sql").write_text(text, encoding="utf-8")

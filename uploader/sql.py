"""SQL is written once, in BigQuery's dialect; this turns it into DuckDB's, and lets nothing through but one SELECT.

What means the same in both engines, and what does not, stands in docs/bigquery.md; the queries in `dashboards/queries`
keep to it and a test holds them to the same rows.
"""

from __future__ import annotations

from collections.abc import Iterable
from functools import lru_cache
from pathlib import Path
from typing import TYPE_CHECKING

from uploader.errors import BadInput

if TYPE_CHECKING:
    from sqlglot import exp

VIEWS = Path(__file__).parent / "views"
TRANSLATED = VIEWS / "duckdb"


@lru_cache(maxsize=256)
def to_duckdb(sql: str) -> str:
    """Return a query in DuckDB's dialect. Raises `BadInput` for what is no single SELECT."""
    from sqlglot import ErrorLevel

    return _selected(sql).sql(dialect="duckdb", unsupported_level=ErrorLevel.RAISE)


def checked(sql: str) -> str:
    """Return a query as it was given. Raises `BadInput` for what is no single SELECT."""
    _selected(sql)
    return sql


def qualified(sql: str, dataset: str, names: Iterable[str]) -> str:
    """Return a query with the dataset before those tables: BigQuery asks that of a view."""
    from sqlglot import exp

    tree, own = _selected(sql).copy(), set(names)
    for table in tree.find_all(exp.Table):
        if table.name in own and not table.db:
            project, _, name = dataset.partition(".")
            table.set("db", exp.to_identifier(name, quoted=True))
            table.set("catalog", exp.to_identifier(project, quoted=True))
    return tree.sql(dialect="bigquery")


def views() -> dict[str, str]:
    """Return the views of the warehouse by name, in the order in which they can be made."""
    return {path.stem: path.read_text(encoding="utf-8") for path in sorted(VIEWS.glob("*.sql"))}


def translated_views() -> dict[str, str]:
    """Return the views in DuckDB's dialect, translated beforehand: opening a warehouse waits for no parser."""
    return {name: (TRANSLATED / f"{name}.sql").read_text(encoding="utf-8") for name in views()}


def translate_views() -> dict[str, str]:
    """Return what `translated_views` should."""
    return {name: to_duckdb(sql) + "\n" for name, sql in views().items()}


def meaning_of_view(sql: str) -> str:
    """Return what a view says of itself: the comment it begins with."""
    lines = [line[2:].strip() for line in sql.splitlines() if line.startswith("--")]
    return " ".join(lines)


def _selected(sql: str) -> exp.Query:
    from sqlglot import errors, exp, parse

    try:
        found = [tree for tree in parse(sql, read="bigquery") if tree is not None]
    except errors.SqlglotError as error:
        raise BadInput(f"the query cannot be read: {str(error).splitlines()[0]}") from error
    if len(found) != 1 or not isinstance(found[0], exp.Query) or not found[0].selects:
        raise BadInput(f"the query must be one SELECT, got {sql.strip()[:60]!r}")
    return found[0]


if __name__ == "__main__":  # python -m uploader.sql: translate the views anew
    for name, text in translate_views().items():
        (TRANSLATED / f"{name}.sql").write_text(text, encoding="utf-8")

"""Finds the columns that statements read: every name is followed through joins and views to its table.

Pure functions. The returned columns are sufficient to answer the statements, and no others are returned: BigQuery bills
by the columns that a query names.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING

from keras_matrix.uploader.schema import TABLES, Table
from keras_matrix.uploader.sql import parsed, views

if TYPE_CHECKING:
    from sqlglot import exp

DIALECT = "bigquery"


@dataclass(frozen=True, slots=True)
class Needed:
    """The columns to read, by table, and the views over them, in an order in which they can be created."""

    columns: Mapping[str, tuple[str, ...]]
    views: tuple[str, ...]


def needed(statements: Iterable[str]) -> Needed:
    """Return the columns and views of statements: SELECTs in BigQuery's dialect over the warehouse."""
    from sqlglot import exp

    view_queries = {name: parsed(sql) for name, sql in views().items()}
    trees = [_inlined(parsed(sql), view_queries) for sql in statements]
    pairs = {pair for tree in trees for pair in _read(tree)}
    columns = {table.name: _of_table(table, pairs) for table in TABLES}
    used_comments = {
        text for tree in trees for subquery in tree.find_all(exp.Subquery) for text in subquery.comments or ()
    }
    read_columns = {name: column_names for name, column_names in columns.items() if column_names}
    return Needed(read_columns, tuple(name for name in view_queries if f"source: {name}" in used_comments))


def _of_table(table: Table, pairs: set[tuple[str, str]]) -> tuple[str, ...]:
    """Return the columns of a table among the pairs, and `day`, which bounds every read."""
    read_columns = {column for name, column in pairs if name == table.name}
    return (
        tuple(column.name for column in table.columns if column.name in read_columns | {"day"}) if read_columns else ()
    )


def _inlined(tree: exp.Expr, view_queries: Mapping[str, exp.Query]) -> exp.Expr:
    """Return a statement with each view replaced by its definition, except views that are its own CTEs."""
    from sqlglot import exp

    own_names = {cte.alias for cte in tree.find_all(exp.CTE)}
    return exp.expand(
        tree, {name: query for name, query in view_queries.items() if name not in own_names}, dialect=DIALECT
    )


def _read(tree: exp.Expr) -> Iterator[tuple[str, str]]:
    """Yield table and column of every column that the result of a statement depends on."""
    from sqlglot import exp
    from sqlglot.optimizer.pushdown_projections import pushdown_projections
    from sqlglot.optimizer.qualify import qualify
    from sqlglot.optimizer.scope import traverse_scope

    schema: dict[str, object] = {t.name: {column.name: str(column.type) for column in t.columns} for t in TABLES}
    qualified = qualify(tree.copy(), schema=schema, dialect=DIALECT, quote_identifiers=False)
    for scope in traverse_scope(pushdown_projections(qualified)):
        for column in scope.columns:
            source = scope.sources.get(column.table)
            if isinstance(source, exp.Table):
                yield source.name, column.name

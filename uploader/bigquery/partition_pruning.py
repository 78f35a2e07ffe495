"""Partition pruning: finds the filters that bound the `day` of each scan of a partitioned table from below.

BigQuery prunes partitions by a filter that compares the partitioning column with a constant expression: a literal, a
parameter, an expression of CURRENT_DATE (its documentation, "Query partitioned tables"). It is not documented whether
filters are pushed down through joins or window functions. Therefore only a conjunct in the query block that scans the
table is counted, unless an outer join makes it ineffective.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING

from keras_matrix.uploader.schema import APPENDED, BY_NAME, Table
from keras_matrix.uploader.sql import parsed, rendered, with_views

if TYPE_CHECKING:
    from sqlglot import exp
    from sqlglot.optimizer.scope import Scope


@dataclass(frozen=True, slots=True)
class Scan:
    """One scan of a partitioned table; `bounds` are the conjuncts that bound its `day` from below."""

    table: str
    alias: str
    node: exp.Table
    bounds: tuple[exp.Expr, ...]


def scans(tree: exp.Expr) -> list[Scan]:
    """Return the scans of partitioned tables in a statement; views are expanded only if they are CTEs of it."""
    from sqlglot.optimizer.scope import traverse_scope

    return [
        Scan(
            node.name,
            alias,
            node,
            tuple(condition for condition in _filters(scope, alias) if _bounds(condition, alias, scope)),
        )
        for scope in traverse_scope(tree)
        for alias, node in _tables(scope)
        if node.name.removesuffix(APPENDED) in BY_NAME
    ]


def unbounded(sql: str) -> list[str]:
    """Return the tables that a query, including its views, reads for all days. Raises `BadInput`."""
    return sorted({scan.table for scan in scans(parsed(with_views(sql))) if not scan.bounds})


def tables_read(sql: str) -> set[str]:
    """Return the names of the tables that a query reads, including those of its views. Raises `BadInput`."""
    from sqlglot.optimizer.scope import traverse_scope

    scopes = traverse_scope(parsed(with_views(sql)))
    return {
        node.sql(dialect="bigquery", copy=True).partition(" AS ")[0] for scope in scopes for _, node in _tables(scope)
    }


def push_down_day_filters(sql: str) -> str:
    """Return a query for an append-only dataset with the day filters applied before duplicates are removed.

    The views of such a dataset remove duplicate keys with a window function, and it is not documented that a filter on
    a view prunes partitions. All rows of a key have the same day, so filtering first gives the same result.
    """
    from sqlglot import exp, parse_one

    tree = parsed(sql).copy()
    for scan in [scan for scan in scans(tree) if scan.bounds and scan.table in BY_NAME and not scan.node.db]:
        days_sql = " AND ".join(_unqualified(bound).sql(dialect="bigquery") for bound in scan.bounds)
        deduplicated = parse_one(_deduplicated(BY_NAME[scan.table], days_sql), read="bigquery")
        scan.node.replace(exp.Subquery(this=deduplicated, alias=exp.TableAlias(this=exp.to_identifier(scan.alias))))
    return rendered(tree)


def _deduplicated(table: Table, days: str) -> str:
    keys_sql = ", ".join(("day", *table.key))
    return (
        f"SELECT * FROM {table.name}{APPENDED} WHERE {days} "
        f"QUALIFY ROW_NUMBER() OVER (PARTITION BY {keys_sql} ORDER BY row_hash) = 1"
    )


def _unqualified(bound: exp.Expr) -> exp.Expr:
    from sqlglot import exp

    copied = bound.copy()
    for column in copied.find_all(exp.Column):
        column.set("table", None)
    return copied


def _tables(scope: Scope) -> list[tuple[str, exp.Table]]:
    from sqlglot import exp

    return [(name, source) for name, (_, source) in scope.selected_sources.items() if isinstance(source, exp.Table)]


def _filters(scope: Scope, alias: str) -> Iterator[exp.Expr]:
    """Yield the conjuncts of a query block that filter the rows of one of its tables."""
    where = scope.expression.args.get("where")
    joins = scope.expression.args.get("joins") or []
    if where is not None and alias not in _nullable(scope):
        yield from where.this.flatten() if _is_and(where.this) else [where.this]
    for join in joins:
        condition = join.args.get("on")
        is_joined_table = join.alias_or_name == alias
        counts = {"": alias not in _nullable(scope), "LEFT": is_joined_table, "RIGHT": not is_joined_table}.get(
            join.side or "", False
        )
        if condition is not None and counts:
            yield from condition.flatten() if _is_and(condition) else [condition]


def _nullable(scope: Scope) -> set[str]:
    """Return the tables of a query block whose columns an outer join may set to NULL."""
    from sqlglot import exp

    aliases: set[str] = set()
    aliases_before = [clause.alias_or_name for clause in scope.expression.args.values() if isinstance(clause, exp.From)]
    for join in scope.expression.args.get("joins") or []:
        aliases |= {join.alias_or_name} if join.side in ("LEFT", "FULL") else set()
        aliases |= set(aliases_before) if join.side in ("RIGHT", "FULL") else set()
        aliases_before.append(join.alias_or_name)
    return aliases


def _is_and(condition: exp.Expr) -> bool:
    from sqlglot import exp

    return isinstance(condition, exp.And)


def _bounds(condition: exp.Expr, alias: str, scope: Scope) -> bool:
    """Return whether a conjunct compares the `day` of a table with a constant that bounds it from below."""
    from sqlglot import exp

    if isinstance(condition, exp.Between):
        return _is_day(condition.this, alias, scope) and _constant(condition.args["low"])
    if isinstance(condition, exp.GTE | exp.GT | exp.EQ) and _is_day(condition.this, alias, scope):
        return _constant(condition.expression)
    if isinstance(condition, exp.LTE | exp.LT | exp.EQ) and _is_day(condition.expression, alias, scope):
        return _constant(condition.this)
    return False


def _is_day(value: exp.Expr, alias: str, scope: Scope) -> bool:
    from sqlglot import exp

    return (
        isinstance(value, exp.Column)
        and value.name == "day"
        and (value.table == alias or (not value.table and len(scope.selected_sources) == 1))
    )


def _constant(value: exp.Expr) -> bool:
    from sqlglot import exp

    return value.find(exp.Column, exp.Query, exp.Null) is None

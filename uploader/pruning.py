"""Which days a statement reads: every scan of a partitioned table, and what bounds its `day` from below.

BigQuery skips the partitions that a filter on the partitioning column excludes if the filter compares the column with a
constant expression: a literal, a parameter, an expression of CURRENT_DATE (its documentation, "Query partitioned
tables"). Whether a filter is moved to the scan from elsewhere (from the result of a join, through a window) is not
documented. So only a conjunct in the query block that scans the table counts here, and one that no outer join undoes.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING

from uploader.schema import APPENDED, BY_NAME, Table
from uploader.sql import parsed, rendered, with_views

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
    """Return the scans of partitioned tables in a statement; views that are not CTEs of it are not looked into."""
    from sqlglot.optimizer.scope import traverse_scope

    return [
        Scan(node.name, alias, node, tuple(one for one in _filters(scope, alias) if _bounds(one, alias, scope)))
        for scope in traverse_scope(tree)
        for alias, node in _tables(scope)
        if node.name.removesuffix(APPENDED) in BY_NAME
    ]


def unbounded(sql: str) -> list[str]:
    """Return the tables that a query, its views included, reads for all days. Raises `BadInput`."""
    return sorted({scan.table for scan in scans(parsed(with_views(sql))) if not scan.bounds})


def tables_read(sql: str) -> set[str]:
    """Return the names of the tables that a query reads, those of its views included. Raises `BadInput`."""
    from sqlglot.optimizer.scope import traverse_scope

    found = traverse_scope(parsed(with_views(sql)))
    return {node.sql(dialect="bigquery", copy=True).partition(" AS ")[0] for one in found for _, node in _tables(one)}


def bounded_inside(sql: str) -> str:
    """Return a query for an append-only dataset: each scan with a bound shows a key once within its days.

    The views that show each key of an append-only table once number its rows first, and that a filter on such a view
    prunes partitions is not documented. Rows with one key have one day, so that filtering first gives the same rows.
    """
    from sqlglot import exp, parse_one

    tree = parsed(sql).copy()
    for scan in [one for one in scans(tree) if one.bounds and one.table in BY_NAME and not one.node.db]:
        days = " AND ".join(_unqualified(one).sql(dialect="bigquery") for one in scan.bounds)
        once = parse_one(_once(BY_NAME[scan.table], days), read="bigquery")
        scan.node.replace(exp.Subquery(this=once, alias=exp.TableAlias(this=exp.to_identifier(scan.alias))))
    return rendered(tree)


def _once(table: Table, days: str) -> str:
    keys = ", ".join(("day", *table.key))
    return (
        f"SELECT * FROM {table.name}{APPENDED} WHERE {days} "
        f"QUALIFY ROW_NUMBER() OVER (PARTITION BY {keys} ORDER BY row_hash) = 1"
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
    """Yield the conjuncts of a query block that a row of one of its tables must meet to be read."""
    where = scope.expression.args.get("where")
    joins = scope.expression.args.get("joins") or []
    if where is not None and alias not in _nullable(scope):
        yield from where.this.flatten() if _is_and(where.this) else [where.this]
    for join in joins:
        condition = join.args.get("on")
        mine = join.alias_or_name == alias
        counts = {"": alias not in _nullable(scope), "LEFT": mine, "RIGHT": not mine}.get(join.side or "", False)
        if condition is not None and counts:
            yield from condition.flatten() if _is_and(condition) else [condition]


def _nullable(scope: Scope) -> set[str]:
    """Return the tables of a query block whose rows an outer join replaces by nulls."""
    from sqlglot import exp

    found: set[str] = set()
    before = [one.alias_or_name for one in scope.expression.args.values() if isinstance(one, exp.From)]
    for join in scope.expression.args.get("joins") or []:
        found |= {join.alias_or_name} if join.side in ("LEFT", "FULL") else set()
        found |= set(before) if join.side in ("RIGHT", "FULL") else set()
        before.append(join.alias_or_name)
    return found


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

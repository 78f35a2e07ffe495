"""The bytes that a query reads, by a simple model of the service's on-demand pricing.

Source: cloud.google.com/bigquery/pricing (data size of types; at least 10 MB for each table) and
docs/querying-partitioned-tables (pruning). A scan reads the columns that are named, of the partitions that remain after
conditions on the partition's column alone: comparisons with literals, parameters and expressions of them, not with
other columns or subqueries. Conditions outside of a view or subquery count where sqlglot can move them inward: not
through window functions. Where it cannot analyse a query, every column of every partition counts. Not modelled:
scripts, which read 0 bytes here, and the cache of answers.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

from sqlglot import errors, exp
from sqlglot.optimizer.pushdown_predicates import pushdown_predicates
from sqlglot.optimizer.pushdown_projections import pushdown_projections
from sqlglot.optimizer.qualify import qualify
from sqlglot.optimizer.scope import Scope, traverse_scope

from tests.uploader.service.catalog import Table
from tests.uploader.service.fields import Field, duckdb_type, quoted

FIXED_BYTES = {"INTEGER": 8, "FLOAT": 8, "BOOLEAN": 1, "DATE": 8, "TIMESTAMP": 8, "DATETIME": 8, "NUMERIC": 16}
LEAST_BILLED = 10 << 20
MIB = 1 << 20


def billed(scanned: Mapping[str, int]) -> int:
    """Return the bytes billed for bytes read by table: whole MiB, at least 10 for each table."""
    return sum(max(LEAST_BILLED, -(-size // MIB) * MIB) for size in scanned.values())


def scans(tree: exp.Expression, tables: Mapping[str, Table]) -> Iterator[tuple[Table, str]]:
    """Yield each table that a query scans, and DuckDB's query for the bytes; parameters stay as they are.

    `tree` names tables as DuckDB does; `tables` are by that name.
    """
    try:
        found = _analysed(tree, tables)
    except (errors.SqlglotError, KeyError, ValueError, RecursionError):
        yield from ((table, size(table, {one["name"] for one in table.fields}, [])) for table in tables.values())
        return
    for scope in traverse_scope(found):
        for alias, (_, source) in scope.selected_sources.items():
            if isinstance(source, exp.Table) and _key(source) in tables:
                table = tables[_key(source)]
                columns = {one.name for one in scope.columns if one.table == alias}
                yield table, size(table, columns, _bounds(scope, alias, table))


def size(table: Table, columns: set[str], bounds: list[exp.Expression]) -> str:
    """Return DuckDB's query for the bytes of columns of a table's partitions."""
    parts = [_bytes(one) for one in table.fields if one["name"].lower() in {name.lower() for name in columns}]
    where = exp.and_(*bounds).sql(dialect="duckdb") if bounds else "TRUE"
    return f"SELECT CAST(COALESCE(SUM({' + '.join(parts) or '0'}), 0) AS BIGINT) FROM {table.sql} WHERE {where}"


def _analysed(tree: exp.Expression, tables: Mapping[str, Table]) -> exp.Expression:
    schema: dict[str, Any] = {}
    for table in tables.values():
        columns = {one["name"]: duckdb_type(one) for one in table.fields}
        schema.setdefault(f"{table.project}.{table.dataset}", {})[table.name] = columns
    query = tree.copy()
    found = qualify(query, schema=schema, dialect="duckdb", validate_qualify_columns=False, quote_identifiers=False)
    return pushdown_projections(pushdown_predicates(found))


def _key(node: exp.Table) -> str:
    return f"{node.db}.{node.name}"


def _bounds(scope: Scope, alias: str, table: Table) -> list[exp.Expression]:
    """Return the conditions on a table's partition alone, without the table's name."""
    if table.partition is None:
        return []
    conditions = [scope.expression.args.get("where")]
    conditions += [one.args.get("on") for one in scope.expression.args.get("joins") or [] if not one.side]
    found = []
    for condition in conditions:
        if condition is None:
            continue
        body = condition.this if isinstance(condition, exp.Where) else condition
        for part in body.flatten() if isinstance(body, exp.And) else [body]:
            columns = list(part.find_all(exp.Column))
            own = [one for one in columns if one.table == alias and one.name == table.partition]
            if columns and len(own) == len(columns) and not part.find(exp.Query):
                bare = part.copy().transform(_bare)
                found.append(bare)
    return found


def _bare(node: exp.Expression) -> exp.Expression:
    return exp.column(node.name, quoted=True) if isinstance(node, exp.Column) else node


def _bytes(one: Field) -> str:
    name: Any = quoted(one["name"])
    if one["mode"] == "REPEATED":
        inner = FIXED_BYTES.get(one["type"], 2)
        text = f" + length(array_to_string({name}, ''))" if one["type"] == "STRING" else ""
        return f"COALESCE({inner} * len({name}){text}, 0)"
    if one["type"] in FIXED_BYTES:
        return f"CASE WHEN {name} IS NULL THEN 0 ELSE {FIXED_BYTES[one['type']]} END"
    return f"COALESCE(2 + strlen(CAST({name} AS VARCHAR)), 0)"

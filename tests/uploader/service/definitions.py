"""CREATE, DROP and ALTER of the fake service, in SQL and in the API; each with a lock, outside of transactions."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING, Any

from sqlglot import exp

from tests.uploader.service import problems
from tests.uploader.service.catalog import DAY_MS, Dataset, Table, schema_name, with_defaults
from tests.uploader.service.fields import Field, duckdb_type, normal, of_definition, quoted
from tests.uploader.service.names import Scope
from tests.uploader.service.statements import Answering

if TYPE_CHECKING:
    from tests.uploader.service.service import Service

RELAXED = ("REQUIRED", "NULLABLE")


def define(service: Service, tree: exp.Expression, scope: Scope, account: str, answer: Answering) -> None:
    """Run one statement that defines a table or view; `answer` runs a query. Raises `Refusal`."""
    if isinstance(tree, exp.Drop):
        _drop(service, tree, scope, account)
    elif isinstance(tree, exp.Alter):
        _alter(service, tree, scope, account)
    elif tree.args.get("kind") in ("TABLE", "VIEW"):
        _create(service, tree, scope, account, answer)
    else:
        raise problems.unmodelled(f"CREATE {tree.args.get('kind')}")


def _create(service: Service, tree: exp.Expression, scope: Scope, account: str, answer: Answering) -> None:
    node = tree.find(exp.Table)
    assert node is not None
    project, dataset_name, name = scope.address(node)
    scope.check_location(project, dataset_name)
    dataset = service.catalog.dataset(project, dataset_name)
    old = service.catalog.find(project, dataset_name, name)
    service.limits.require(account, "tables.update" if old else "tables.create", "Table", f"{dataset.id}.{name}")
    if old is not None and tree.args.get("exists"):
        return
    if old is not None and not tree.args.get("replace"):
        raise problems.duplicate("Table", old.id)
    query = tree.args.get("expression")
    fields, rows = list[Field](), list[tuple[Any, ...]]()
    if query is not None:
        own = replace(scope, dataset=None) if tree.args["kind"] == "VIEW" else scope
        _check_qualified(query, own)
        fields, rows = answer(query)
    columns = [of_definition(one) for one in tree.find_all(exp.ColumnDef) if one.parent is tree.this]
    view = query.sql(dialect="bigquery") if query is not None and tree.args["kind"] == "VIEW" else None
    made = Table(project, dataset_name, name, tuple(columns or fields), service.now_ms(), view=view)
    put(service, with_defaults(_with_properties(made, tree), dataset), rows)


def _check_qualified(query: exp.Expression, scope: Scope) -> None:
    """Raise `Refusal` for a view's table without a dataset."""
    ctes = {one.alias for one in query.find_all(exp.CTE)}
    for node in query.find_all(exp.Table):
        if not node.db and node.name not in ctes:
            scope.address(node)


def _with_properties(table: Table, tree: exp.Expression) -> Table:
    """Return a table with the clauses after its columns: PARTITION BY, CLUSTER BY, OPTIONS."""
    found = tree.args.get("properties")
    for one in found.expressions if found is not None else []:
        if isinstance(one, exp.PartitionedByProperty):
            column = one.this.find(exp.Column, exp.Identifier)
            table = replace(table, partition=column.name if column is not None else None)
        elif isinstance(one, exp.ClusterProperty | exp.Cluster):
            table = replace(table, clustered=tuple(item.name for item in one.expressions))
        elif isinstance(one, exp.Property) and one.name == "description":
            table = replace(table, description=one.args["value"].name)
        elif isinstance(one, exp.Property) and one.name == "partition_expiration_days":
            table = replace(table, partition_expires_ms=int(float(one.args["value"].name) * DAY_MS))
        elif isinstance(one, exp.Property) and one.name == "require_partition_filter":
            table = replace(table, filter_required=one.args["value"].sql().upper() == "TRUE")
    return table


def _drop(service: Service, tree: exp.Expression, scope: Scope, account: str) -> None:
    node = tree.find(exp.Table)
    assert node is not None
    key = scope.address(node)
    found = service.catalog.find(*key)
    if found is None and tree.args.get("exists"):
        return
    found = scope.table(node)
    service.limits.require(account, "tables.delete", "Table", found.id)
    remove(service, found)


def _alter(service: Service, tree: exp.Expression, scope: Scope, account: str) -> None:
    found = scope.table(tree.this)
    service.limits.require(account, "tables.update", "Table", found.id)
    added = [one for one in tree.args["actions"] if isinstance(one, exp.ColumnDef)]
    if len(added) != len(tree.args["actions"]):
        raise problems.unmodelled("ALTER TABLE other than ADD COLUMN")
    known = {one["name"] for one in found.fields}
    fields = [of_definition(one) for one in added if not (one.args.get("exists") and one.name in known)]
    change_fields(service, found, [*found.fields, *fields])


def put(service: Service, table: Table, rows: list[tuple[Any, ...]] | None = None) -> None:
    """Add a table or view, replacing an existing one."""
    with service.engine.definitions:
        old = service.catalog.find(table.project, table.dataset, table.name)
        if old is not None:
            remove(service, old)
        if table.view is None:
            service.engine.define(table.definition())
            if rows:
                with service.engine.autocommit() as work:
                    places = ", ".join("?" * len(table.fields))
                    work.cursor.executemany(f"INSERT INTO {table.sql} VALUES ({places})", rows)
        service.catalog.put(table)


def remove(service: Service, table: Table) -> None:
    """Remove a table or view."""
    with service.engine.definitions:
        if table.view is None:
            service.engine.define(f"DROP TABLE IF EXISTS {table.sql}")
        service.catalog.remove(table)


def change_fields(service: Service, table: Table, given: list[Field]) -> Table:
    """Set a table's columns. Raises `Refusal` unless they only add NULLABLE or REPEATED ones (docs: table schemas)."""
    wanted = {one["name"]: normal(one) for one in given}
    start = f"Provided Schema does not match Table {table.id}."
    if len(wanted) < len(given):
        raise problems.invalid_query(f"{start} A column is there twice")
    changed = []
    for old in table.fields:
        new = wanted.get(old["name"], {"type": None, "mode": None})
        if new["type"] != old["type"] or (new["mode"] != old["mode"] and (old["mode"], new["mode"]) != RELAXED):
            raise problems.invalid(f"{start} Field {old['name']} is missing or has changed")
        if new["mode"] != old["mode"]:
            changed.append(f"ALTER COLUMN {quoted(old['name'])} DROP NOT NULL")
    known = {one["name"] for one in table.fields}
    for one in wanted.values():
        if one["name"] not in known and one["mode"] == "REQUIRED":
            text = "Cannot add required fields to an existing schema."
            raise problems.invalid(f"{start} {text} (field: {one['name']})")
        if one["name"] not in known:
            changed.append(f"ADD COLUMN {quoted(one['name'])} {duckdb_type(one)}")
    made = replace(table, fields=tuple(wanted.values()))
    with service.engine.definitions:
        service.engine.define(*(f"ALTER TABLE {table.sql} {one}" for one in changed))
        service.catalog.put(made)
    return made


def make_dataset(service: Service, dataset: Dataset) -> None:
    """Add a dataset. Raises `Refusal`."""
    with service.engine.definitions:
        service.catalog.add_dataset(dataset)
        service.engine.define(f"CREATE SCHEMA IF NOT EXISTS {schema_name(dataset.project, dataset.name)}")

"""Translates BigQuery's SQL to DuckDB's: resolves tables, views, parameters and variables, then uses sqlglot.

A view is replaced by its query, so that it reads the tables as they are now. Where the dialects differ in meaning
(docs/bigquery.md lists what the project avoids), the fake gives DuckDB's answer. Names are compared as written.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from datetime import UTC, datetime
from functools import lru_cache
from typing import Any

from sqlglot import ErrorLevel, errors, exp, parse

from tests.uploader.service import problems
from tests.uploader.service.catalog import Catalog, Table

Values = Mapping[str, tuple[str, Any]]  # name -> the type by SQL's name, and the value
MOST_VIEWS = 16


@lru_cache(maxsize=512)
def parsed(sql: str) -> exp.Expression:
    """Return one statement; callers copy it before they change it. Raises `Refusal`."""
    try:
        found = [tree for tree in parse(sql, read="bigquery") if tree is not None]
    except errors.SqlglotError as error:
        raise problems.invalid_query(f"Syntax error: {str(error).splitlines()[0]}") from error
    if len(found) != 1:
        raise problems.invalid_query("Syntax error: Expected one statement")
    tree = found[0]
    assert isinstance(tree, exp.Expression)
    return tree


@dataclass(frozen=True)
class Scope:
    """Name resolution of a statement: tables, and the values of parameters and of a script's variables.

    `location` is where the job runs, `now_s` the time, in seconds since 1970, that CURRENT_TIMESTAMP and CURRENT_DATE
    mean; `read` is called for every table and view that is read and may refuse it.
    """

    catalog: Catalog
    project: str
    dataset: tuple[str, str] | None
    location: str
    now_s: float
    parameters: Values = field(default_factory=dict)
    variables: Values = field(default_factory=dict)
    read: Callable[[Table], None] = lambda table: None

    def address(self, node: exp.Table) -> tuple[str, str, str]:
        """Return project, dataset and name of a table. Raises `Refusal` for one without a dataset."""
        if "INFORMATION_SCHEMA" in f"{node.db}.{node.name}".upper():
            raise problems.unmodelled("INFORMATION_SCHEMA")
        if node.db:
            return (node.catalog or self.project, node.db, node.name)
        if self.dataset is None:
            text = f'Table "{node.name}" must be qualified with a dataset (e.g. dataset.table).'
            raise problems.Refusal("invalid", text, node.name)
        return (*self.dataset, node.name)

    def table(self, node: exp.Table) -> Table:
        """Return a name's table. Raises `Refusal` if it is missing, or in another location than the job's."""
        project, dataset, name = self.address(node)
        self.check_location(project, dataset)
        found = self.catalog.find(project, dataset, name)
        if found is None:
            raise problems.not_found("Table", f"{project}:{dataset}.{name}", self.location)
        return found

    def check_location(self, project: str, dataset: str) -> None:
        """Raise `Refusal` for a dataset that is not where the job runs (docs/locations: specify locations)."""
        found = self.catalog.datasets.get((project, dataset))
        if found is None or found.location.lower() != self.location.lower():
            raise problems.not_found("Dataset", f"{project}:{dataset}", self.location)


@dataclass(frozen=True)
class Translated:
    """A statement in DuckDB's dialect, its values, and the tables that it reads."""

    sql: str
    values: dict[str, Any]
    tables: tuple[Table, ...]
    tree: exp.Expression


def translated(tree: exp.Expression, scope: Scope) -> Translated:
    """Return a statement in DuckDB's dialect. Raises `Refusal`."""
    tree, tables = tree.copy(), list[Table]()
    resolve(tree, scope, tables)
    tree = _at(tree, scope.now_s)
    _replace_variables(tree, scope.variables, {one["name"] for table in tables for one in table.fields})
    values = _typed_parameters(tree, scope.parameters)
    try:
        sql = tree.sql(dialect="duckdb", unsupported_level=ErrorLevel.RAISE)
    except errors.SqlglotError as error:
        raise problems.unmodelled(str(error).splitlines()[0]) from error
    return Translated(sql, values, tuple(tables), tree)


def resolve(tree: exp.Expression, scope: Scope, tables: list[Table], depth: int = 0) -> None:
    """Replace tables by DuckDB's names and views by their queries; append the tables that are read."""
    if depth > MOST_VIEWS:
        raise problems.invalid_query("Views are nested too deeply")
    ctes = {one.alias for one in tree.find_all(exp.CTE)}
    target = written(tree)
    for node in list(tree.find_all(exp.Table)):
        if not node.db and node.name in ctes:
            continue
        if isinstance(node.this, exp.Func):
            continue
        found = scope.table(node)
        if node is target:
            _rename(node, found)
            tables.append(found)
            continue
        scope.read(found)
        if found.view is None:
            _rename(node, found)
            tables.append(found)
        else:
            query = parsed(found.view).copy()
            resolve(query, scope, tables, depth + 1)
            node.replace(exp.Subquery(this=query, alias=exp.TableAlias(this=exp.to_identifier(node.alias_or_name))))


def written(tree: exp.Expression) -> exp.Table | None:
    """Return the table that a statement writes to."""
    if not isinstance(tree, exp.Insert | exp.Update | exp.Delete | exp.Merge):
        return None
    found = tree.this
    while found is not None and not isinstance(found, exp.Table):
        found = found.this
    return found


def _rename(node: exp.Table, found: Table) -> None:
    alias = node.args.get("alias")
    if alias is None and not isinstance(node.parent, exp.Insert | exp.Schema):
        alias = exp.TableAlias(this=exp.to_identifier(found.name, quoted=True))
    made = exp.table_(found.name, db=f"{found.project}.{found.dataset}", quoted=True)
    for name in ("joins", "laterals", "pivots", "sample"):
        if node.args.get(name):
            made.set(name, node.args[name])
    made.set("alias", alias)
    node.replace(made)


def _at(tree: exp.Expression, now_s: float) -> exp.Expression:
    """Replace functions of the current time by a time."""
    now = datetime.fromtimestamp(now_s, UTC)

    def replaced(node: exp.Expression) -> exp.Expression:
        if isinstance(node, exp.CurrentTimestamp):
            return exp.cast(exp.Literal.string(now.isoformat()), exp.DataType.build("TIMESTAMPTZ"))
        if isinstance(node, exp.CurrentDate):
            return exp.cast(exp.Literal.string(now.date().isoformat()), exp.DataType.build("DATE"))
        return node

    return tree.transform(replaced)


def _replace_variables(tree: exp.Expression, variables: Values, columns: set[str]) -> None:
    """Replace names of a script's variables by their values, unless a column has the name."""
    for node in list(tree.find_all(exp.Column)):
        if not node.table and node.name in variables and node.name not in columns:
            value = literal(*variables[node.name])
            node.replace(exp.alias_(value, node.name) if isinstance(node.parent, exp.Select) else value)
    for system in list(tree.find_all(exp.Parameter)):
        if isinstance(system.this, exp.Parameter) and not isinstance(system.parent, exp.Parameter):
            name = f"@@{system.this.name}"
            if name not in variables:
                raise problems.invalid_query(f"Unrecognized name: {name}")
            system.replace(literal(*variables[name]))


def literal(kind: str, value: Any) -> exp.Expression:
    """Return a value as a typed SQL literal."""
    if isinstance(value, list):
        item = kind.removeprefix("ARRAY<").removesuffix(">")
        return exp.Array(expressions=[literal(item, one) for one in value])
    return exp.cast(exp.convert(value), exp.DataType.build(kind, dialect="bigquery"))


def _typed_parameters(tree: exp.Expression, parameters: Values) -> dict[str, Any]:
    """Cast every parameter to its type; return the values of the statement's parameters."""
    used: dict[str, Any] = {}
    for node in list(tree.find_all(exp.Parameter)):
        name = node.name
        if name not in parameters:
            raise problems.invalid_query(f"Query parameter '{name}' not found")
        kind, used[name] = parameters[name]
        node.replace(exp.cast(node.copy(), exp.DataType.build(kind, dialect="bigquery")))
    return used

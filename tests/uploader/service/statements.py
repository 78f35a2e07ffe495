"""Runs a query job of the fake service: one statement, or a script of several.

Modelled: SELECT, INSERT, UPDATE, DELETE, MERGE, TRUNCATE TABLE, CREATE TABLE [AS], CREATE VIEW, DROP, ALTER TABLE ADD
COLUMN; in scripts also DECLARE, SET, ASSERT and transactions. Not modelled: blocks, conditions, loops, exception
handlers, procedures, functions, sessions. The last SELECT is the answer of a script (docs/multi-statement-queries).
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass, field, replace
from functools import lru_cache
from typing import TYPE_CHECKING, Any

from sqlglot import TokenType, errors, exp
from sqlglot.dialects.bigquery import BigQuery

from tests.uploader.service import problems
from tests.uploader.service.catalog import Table
from tests.uploader.service.engine import Conflict, Work, execute
from tests.uploader.service.fields import Field, of_answer
from tests.uploader.service.names import Scope, Translated, parsed, translated, written

if TYPE_CHECKING:
    from tests.uploader.service.service import Service

Answering = Callable[[exp.Expression], tuple[list[Field], list[tuple[Any, ...]]]]
RETRIES = 3  # docs/data-manipulation-language: a conflicting statement is retried up to three times
KINDS = {
    exp.Insert: "INSERT",
    exp.Update: "UPDATE",
    exp.Delete: "DELETE",
    exp.Merge: "MERGE",
    exp.TruncateTable: "TRUNCATE_TABLE",
    exp.Drop: "DROP_TABLE",
    exp.Alter: "ALTER_TABLE",
    exp.Create: "CREATE_TABLE",
}


@dataclass
class Outcome:
    """The result of a query job: rows, or the number of changed rows."""

    kind: str = "SELECT"
    fields: list[Field] | None = None
    rows: list[tuple[Any, ...]] = field(default_factory=list)
    changed: int | None = None
    scanned: dict[str, int] = field(default_factory=dict)
    statements: int = 1


@lru_cache(maxsize=64)
def split(sql: str) -> tuple[str, ...]:
    """Return the statements of a script. Raises `Refusal`."""
    try:
        tokens = BigQuery().tokenize(sql)
    except errors.SqlglotError as error:
        raise problems.invalid_query(f"Syntax error: {error}") from error
    found, begins = list[str](), None
    for token in tokens:
        if token.token_type is TokenType.SEMICOLON:
            if begins is not None:
                found.append(sql[begins : token.start])
            begins = None
        elif begins is None:
            begins = token.start
    return (*found, sql[begins:]) if begins is not None else tuple(found)


def kind_of(sql: str) -> str:
    """Return the API's name for the kind of a query job: SELECT, MERGE, SCRIPT ..."""
    statements = split(sql)
    if len(statements) != 1:
        return "SCRIPT"
    first = statements[0].split(None, 1)[0].upper()
    if first in ("DECLARE", "SET", "BEGIN", "COMMIT", "ROLLBACK", "ASSERT"):
        return "SCRIPT"
    tree = parsed(statements[0])
    if isinstance(tree, exp.Create):
        if tree.kind == "VIEW":
            return "CREATE_VIEW"
        return "CREATE_TABLE_AS_SELECT" if tree.expression else "CREATE_TABLE"
    return next((name for kind, name in KINDS.items() if isinstance(tree, kind)), "SELECT")


class Run:
    """A running query job: a script's variables and its transaction."""

    def __init__(self, service: Service, account: str, scope: Scope) -> None:
        """Store the account and the name resolution of the query."""
        self._service = service
        self._account = account
        self._scope = scope
        self._variables: dict[str, tuple[str, Any]] = {}
        self._work: Work | None = None
        self._outcome = Outcome()

    def run(self, sql: str) -> Outcome:
        """Run a query. Raises `Refusal` after rolling back an open transaction (docs/transactions)."""
        statements = split(sql)
        if not statements:
            raise problems.invalid_query("Syntax error: Unexpected end of statement")
        self._outcome.kind, self._outcome.statements = kind_of(sql), len(statements)
        try:
            for statement in statements:
                self._one(statement)
        finally:
            if self._work is not None:
                self._service.engine.roll_back(self._work)
        return self._outcome

    def estimate(self, sql: str) -> Outcome:
        """Return the bytes that a query would read, without running it. Raises `Refusal`."""
        self._outcome.kind = kind_of(sql)
        for statement in split(sql):
            tree = parsed(statement) if self._outcome.kind != "SCRIPT" else None
            if isinstance(tree, exp.Query | exp.DML):
                ready = translated(tree, self.scope)
                self._outcome.scanned |= self._service.scanned(ready)
                if isinstance(tree, exp.Query):
                    self._outcome.fields = self._described(ready)
        return self._outcome

    @property
    def scope(self) -> Scope:
        """The current name resolution."""
        return replace(self._scope, variables=self._variables)

    def _one(self, sql: str) -> None:
        words = sql.split(None, 2)
        first = words[0].upper()
        control = {
            "DECLARE": self._declare,
            "SET": self._set,
            "ASSERT": self._assert,
            "BEGIN": self._begin,
            "COMMIT": self._commit,
            "ROLLBACK": self._roll_back,
        }
        if first in control:
            control[first](sql)
        elif first in ("IF", "LOOP", "WHILE", "FOR", "REPEAT", "CALL", "EXECUTE", "END", "RAISE", "RETURN"):
            raise problems.unmodelled(f"{first} in scripts")
        else:
            self._statement(parsed(sql))

    def _statement(self, tree: exp.Expression) -> None:
        if isinstance(tree, exp.Query):
            self._select(tree)
        elif isinstance(tree, exp.Insert | exp.Update | exp.Delete | exp.Merge | exp.TruncateTable):
            self._change(tree)
        elif isinstance(tree, exp.Create | exp.Drop | exp.Alter):
            if self._work is not None:
                raise problems.invalid_query("DDL statements are not supported in a transaction, except on temp tables")
            describe_only = isinstance(tree, exp.Create) and tree.args.get("kind") == "VIEW"
            answer = self._describe if describe_only else self._answer
            self._service.define(tree, self.scope, self._account, answer)
        else:
            raise problems.invalid_query(f"Syntax error: Unexpected {tree.sql(dialect='bigquery')[:60]}")

    # Scripting

    def _declare(self, sql: str) -> None:
        tree = parsed(sql)
        for item in tree.expressions:
            kind, default = item.args.get("kind"), item.args.get("default")
            names = item.this if isinstance(item.this, list) else [item.this]
            value = None if default is None else self._value(default)
            for name in names:
                text = kind.sql(dialect="bigquery") if kind is not None else _kind_of(value)
                self._variables[name.name] = (text, value)

    def _set(self, sql: str) -> None:
        for item in parsed(sql).expressions:
            target, value = item.this.this, self._value(item.this.expression)
            if not isinstance(target, exp.Column) or target.name not in self._variables:
                raise problems.invalid_query(f"Undeclared variable: {target.sql(dialect='bigquery')}")
            self._variables[target.name] = (self._variables[target.name][0], value)

    def _assert(self, sql: str) -> None:
        body = sql.split(None, 1)[1]
        tree = parsed(f"SELECT {body}")
        [found] = tree.expressions
        condition = found.this if isinstance(found, exp.Alias) else found
        if self._value(condition) is not True:
            said = found.alias if isinstance(found, exp.Alias) else f"Assertion failed: {body}"
            raise problems.invalid_query(said)

    def _value(self, tree: exp.Expression) -> Any:
        query = exp.select(exp.alias_(exp.paren(tree.copy()), "value"))
        with self._reading() as work:
            ready = translated(query, self.scope)
            return execute(work, ready.sql, ready.values).fetchall()[0][0]

    def _begin(self, sql: str) -> None:
        if sql.split()[1:] not in ([], ["TRANSACTION"], ["transaction"]):
            raise problems.unmodelled("blocks in scripts")
        if self._work is not None:
            raise problems.invalid_query("Transactions cannot be nested")
        self._service.limits.require_billing("Multi-statement transactions are")
        self._work = self._service.engine.begin(lasting=True)
        self._service.hold()

    def _commit(self, sql: str) -> None:
        work, self._work = self._opened(), None
        try:
            self._service.engine.commit(work)
        except Conflict as conflict:
            raise problems.aborted(conflict.table) from conflict

    def _roll_back(self, sql: str) -> None:
        work, self._work = self._opened(), None
        self._service.engine.roll_back(work)

    def _opened(self) -> Work:
        if self._work is None:
            raise problems.invalid_query("There is no active transaction")
        return self._work

    def _reading(self) -> Any:
        return _Same(self._work) if self._work is not None else self._service.engine.autocommit()

    # Queries and changes

    def _select(self, tree: exp.Expression) -> None:
        self._outcome.fields, self._outcome.rows = self._answer(tree)
        self._outcome.changed = None

    def _answer(self, tree: exp.Expression) -> tuple[list[Field], list[tuple[Any, ...]]]:
        ready = translated(_named(tree), self.scope)
        self._count_bytes(ready)
        with self._reading() as work:
            found = execute(work, ready.sql, ready.values)
            fields = [of_answer(one[0], one[1]) for one in found.description or []]
            return fields, found.fetchall()

    def _describe(self, tree: exp.Expression) -> tuple[list[Field], list[tuple[Any, ...]]]:
        """Return the columns of a view's query, without running it."""
        return self._described(translated(_named(tree), self.scope)), []

    def _described(self, ready: Translated) -> list[Field]:
        with self._reading() as work:
            found = execute(work, f"SELECT * FROM ({ready.sql}) LIMIT 0", ready.values)
            return [of_answer(one[0], one[1]) for one in found.description or []]

    def _count_bytes(self, ready: Translated) -> None:
        if self._outcome.kind != "SCRIPT":
            self._outcome.scanned |= self._service.scanned(ready)

    def _change(self, tree: exp.Expression) -> None:
        if isinstance(tree, exp.TruncateTable):
            tree = exp.Delete(this=tree.expressions[0].copy(), where=exp.Where(this=exp.true()))
        if isinstance(tree, exp.Update | exp.Delete) and not tree.args.get("where"):
            raise problems.invalid_query(f"{tree.key.upper()} must have a WHERE clause")
        name = written(_plain(tree))
        target = self.scope.table(name) if name is not None else None
        if target is None or target.view is not None:
            raise problems.invalid_query("Cannot change rows of a view")
        limits = self._service.limits
        limits.require(self._account, "tables.updateData", "Table", target.id)
        limits.require_billing("DML queries are")
        change = Change(tree, target, self.scope)
        self._count_bytes(change.ready)
        if isinstance(tree, exp.Insert):
            self._apply(change)
        else:
            with limits.outstanding(target.id):
                self._apply(change)
        self._service.expire()

    def _apply(self, change: Change) -> None:
        count = self._in_transaction(change) if self._work is not None else self._alone(change)
        self._outcome.changed = count
        self._variables["@@row_count"] = ("INT64", count)

    def _in_transaction(self, change: Change) -> int:
        try:
            return change.apply(self._service, self._opened())
        except Conflict as conflict:
            raise problems.aborted(change.target.id) from conflict

    def _alone(self, change: Change) -> int:
        engine = self._service.engine
        for number in range(RETRIES + 1):
            try:
                with engine.autocommit() as work:
                    if number == 0:
                        self._service.hold()
                    return change.apply(self._service, work)
            except Conflict:
                if not engine.wait_while_changed(change.target.id, self._service.queue_s):
                    break
        raise problems.not_serialized(change.target.id)


class Change:
    """One mutating statement of a table."""

    def __init__(self, tree: exp.Expression, target: Table, scope: Scope) -> None:
        """Translate the statement."""
        self.target = target
        self._tree = _plain(tree, target)
        self.ready: Translated = translated(self._tree, scope)
        self._matches = self._matching(scope)

    def apply(self, service: Service, work: Work) -> int:
        """Run the change in a transaction and return the number of affected rows. Raises `Conflict`, `Refusal`."""
        with service.engine.changing:
            return self._applied(service, work)

    def _applied(self, service: Service, work: Work) -> int:
        existing = 0
        if self._matches is not None:
            rows = execute(work, self._matches.sql, self._matches.values).fetchall()
            if any(count > 1 for (_, count) in rows):
                text = "UPDATE/MERGE must match at most one source row for each target row"
                raise problems.invalid_query(text)
            existing = len(rows)
        [(count,)] = execute(work, self.ready.sql, self.ready.values).fetchall()
        if isinstance(self._tree, exp.Update | exp.Delete):
            existing = count
        if existing:
            service.engine.claim(work, self.target.id)
        return int(count)

    def _matching(self, scope: Scope) -> Translated | None:
        """Return the query that counts the source rows of each existing row that a MERGE changes."""
        if not isinstance(self._tree, exp.Merge):
            return None
        whens = self._tree.args["whens"].expressions
        if not any(one.args.get("matched") or one.args.get("source") for one in whens):
            return None
        if any(one.args.get("source") for one in whens):
            raise problems.unmodelled("WHEN NOT MATCHED BY SOURCE")
        target = self._tree.this
        rows = exp.column("rowid", table=target.alias_or_name)
        query = exp.select(rows, exp.Count(this=exp.Star())).from_(target.copy())
        query = query.join(self._tree.args["using"].copy(), on=self._tree.args["on"].copy()).group_by(rows)
        return translated(query, scope)


def _plain(tree: exp.Expression, target: Table | None = None) -> exp.Expression:
    """Return a statement for DuckDB: with unqualified names in assignments, and the columns of INSERT ROW."""
    tree = tree.copy()
    if isinstance(tree, exp.Delete) and not tree.this:
        tree.set("this", tree.args["tables"][0])
        tree.set("tables", None)
    for item in _assignments(tree):
        item.set("this", exp.column(item.this.name))
    if isinstance(tree, exp.Merge) and target is not None:
        names = [one["name"] for one in target.fields]
        for when in tree.args["whens"].expressions:
            insert = when.args.get("then")
            if isinstance(insert, exp.Insert) and isinstance(insert.this, exp.Column | exp.Var):
                insert.set("this", exp.Tuple(expressions=[exp.to_identifier(one) for one in names]))
                insert.set("expression", exp.Tuple(expressions=[exp.column(one) for one in names]))
    return tree


def _named(tree: exp.Expression) -> exp.Expression:
    """Return a query with names for unnamed columns: f0_, f1_ ..."""
    tree, number = tree.copy(), 0
    if isinstance(tree, exp.Select):
        for item in list(tree.expressions):
            if not item.output_name and not item.is_star:
                item.replace(exp.alias_(item.copy(), f"f{number}_"))
                number += 1
    return tree


def _assignments(tree: exp.Expression) -> Iterator[exp.EQ]:
    if isinstance(tree, exp.Update):
        yield from (one for one in tree.expressions if isinstance(one, exp.EQ))
    if isinstance(tree, exp.Merge):
        for when in tree.args["whens"].expressions:
            if isinstance(when.args.get("then"), exp.Update):
                yield from when.args["then"].expressions


def _kind_of(value: Any) -> str:
    return {bool: "BOOL", int: "INT64", float: "FLOAT64"}.get(type(value), "STRING")


class _Same:
    """The transaction of a script, which ends later."""

    def __init__(self, work: Work) -> None:
        self._work = work

    def __enter__(self) -> Work:
        return self._work

    def __exit__(self, *what: object) -> None:
        """Keep the transaction open."""

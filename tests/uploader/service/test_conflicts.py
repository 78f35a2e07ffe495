"""Conflicts between changes of a table on the fake service, with the real client."""

from __future__ import annotations

from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest

from tests.uploader.service.asking import MARKS, ask, client, load, rows, start
from tests.uploader.service.engine import execute
from tests.uploader.service.limits import Quotas
from tests.uploader.service.server import Server
from tests.uploader.service.service import Service

pytestmark = MARKS
T, S, LEASE = "`some-project.d.t`", "`some-project.d.s`", "`some-project.d.lease`"
MERGE = f"MERGE {T} AS T USING {S} AS S ON T.k = S.k WHEN NOT MATCHED THEN INSERT (day, k, v) VALUES (day, k, v)"
UPDATE = f"UPDATE {T} SET v = v + 1 WHERE TRUE"
SCRIPT = f"""
DECLARE added INT64 DEFAULT 0;
BEGIN TRANSACTION;
UPDATE {LEASE} SET holder = 'x', taken_at = CURRENT_TIMESTAMP() WHERE TRUE;
INSERT INTO {T} (day, k, v)
SELECT day, k, v FROM {S} AS S
WHERE NOT EXISTS (SELECT 1 FROM {T} AS T WHERE T.day BETWEEN DATE '2026-01-01' AND DATE '2026-01-01' AND T.k = S.k)
QUALIFY ROW_NUMBER() OVER (PARTITION BY k ORDER BY v) = 1;
SET added = @@row_count;
COMMIT TRANSACTION;
SELECT added, (SELECT COUNT(*) FROM {T} WHERE k IN (SELECT k FROM {S})) AS present
"""
CREATE = "(day DATE NOT NULL, k INT64, v INT64) PARTITION BY day CLUSTER BY k"
DAY = "2026-01-01"


@pytest.fixture
def service() -> Service:
    return Service()


@pytest.fixture
def asking(service: Service) -> Iterator[Any]:
    with Server(service) as url:
        made = client(url)
        made.create_dataset("d")
        ask(made, f"CREATE TABLE {T} {CREATE}")
        ask(made, f"CREATE TABLE {S} {CREATE}")
        ask(made, f"CREATE TABLE {LEASE} (holder STRING, taken_at TIMESTAMP)")
        load(made, "some-project.d.s", [{"day": DAY, "k": 1, "v": 10}, {"day": DAY, "k": 2, "v": 20}]).result()
        load(made, "some-project.d.lease", [{"holder": "nobody"}]).result()
        yield made
        made.close()


def keys(asking: Any) -> list[int]:
    return [k for (k,) in ask(asking, f"SELECT k FROM {T} ORDER BY k")]


def together(service: Service, asking: Any, *statements: str) -> list[Any]:
    """Start statements that all take their snapshot before any of them writes; return their completed jobs."""
    service.prompt_s = 0.01
    with service.blocked() as gate:
        jobs = [start(asking, sql) for sql in statements]
        gate.wait_for(len(statements))
    for job in jobs:
        job.exception(timeout=30)
    service.prompt_s = 1.0
    return jobs


def test_overlapping_insert_only_merges_both_insert_a_key(service: Service, asking: Any) -> None:
    """docs/data-manipulation-language, DML statement conflicts: a MERGE that only inserts does not conflict."""
    jobs = together(service, asking, MERGE, MERGE)
    assert [job.num_dml_affected_rows for job in jobs] == [2, 2]
    assert keys(asking) == [1, 1, 2, 2]


def test_merge_after_a_merge_inserts_nothing(asking: Any) -> None:
    assert [start(asking, MERGE).result().num_dml_affected_rows for _ in range(2)] == [2, 0]
    assert keys(asking) == [1, 2]


def test_one_of_two_overlapping_transactions_that_update_a_lease_is_aborted(service: Service, asking: Any) -> None:
    """docs/transactions, transaction concurrency: conflicting transactions are cancelled."""
    jobs = together(service, asking, SCRIPT, SCRIPT)
    [failed] = [job for job in jobs if job.error_result]
    assert failed.error_result["reason"] == "invalidQuery"
    assert failed.error_result["message"] == (
        "Transaction is aborted due to concurrent update against table some-project:d.lease."
    )
    assert keys(asking) == [1, 2]


def test_transaction_that_is_retried_after_an_abort_adds_no_key_twice(service: Service, asking: Any) -> None:
    jobs = together(service, asking, SCRIPT, SCRIPT)
    [done] = [job for job in jobs if not job.error_result]
    assert rows(done) == [(2, 2)]
    assert ask(asking, SCRIPT) == [(0, 2)]
    assert keys(asking) == [1, 2]


def test_many_uploaders_that_retry_on_abort_add_each_key_once(asking: Any) -> None:
    from google.api_core.exceptions import BadRequest

    def push(number: int) -> int:
        for _ in range(100):
            try:
                [(added, present)] = ask(asking, SCRIPT)
            except BadRequest as error:
                assert "Transaction is aborted due to concurrent update" in str(error)
            else:
                assert present == 2
                return int(added)
        raise AssertionError("always aborted")

    with ThreadPoolExecutor(4) as pool:
        assert sum(pool.map(push, range(8))) == 2
    assert keys(asking) == [1, 2]


def test_transaction_whose_lease_has_no_row_conflicts_with_none(service: Service, asking: Any) -> None:
    """docs/transactions: only a transaction that mutates rows conflicts; UPDATE of an empty table mutates none."""
    ask(asking, f"DELETE FROM {LEASE} WHERE TRUE")
    jobs = together(service, asking, SCRIPT, SCRIPT)
    assert [job.error_result for job in jobs] == [None, None]
    assert keys(asking) == [1, 1, 2, 2]


def test_insert_does_not_conflict_with_a_transaction_that_updates(service: Service, asking: Any) -> None:
    """docs/transactions: INSERT statements run concurrently with a transaction that mutates the same table."""
    update = f"BEGIN TRANSACTION; {UPDATE}; COMMIT TRANSACTION"
    jobs = together(service, asking, update, f"INSERT INTO {T} (day, k, v) VALUES (DATE '{DAY}', 9, 9)")
    assert [job.error_result for job in jobs] == [None, None]
    assert keys(asking) == [9]


def test_statement_outside_of_a_transaction_waits_for_one_and_sees_its_changes(service: Service, asking: Any) -> None:
    """docs/transactions: conflicting statements outside of a transaction are queued to run later."""
    ask(asking, MERGE)
    other = service.engine.begin(lasting=True)
    execute(other, 'UPDATE "some-project.d"."t" SET v = v + 1')
    service.engine.claim(other, "some-project:d.t")
    service.prompt_s = 0.01
    waiting = start(asking, UPDATE)
    service.engine.commit(other)
    assert waiting.exception(timeout=30) is None
    assert ask(asking, f"SELECT v FROM {T} ORDER BY k") == [(12,), (22,)]


def test_statement_that_meets_others_too_often_could_not_be_serialized(service: Service, asking: Any) -> None:
    """docs/data-manipulation-language: a conflicting statement is retried up to three times, then fails."""
    ask(asking, MERGE)
    work = service.engine.begin(lasting=True)
    service.engine.claim(work, "some-project:d.t")
    service.queue_s = 0.01
    failed = start(asking, UPDATE)
    service.engine.roll_back(work)
    assert failed.error_result["message"] == (
        "Could not serialize access to table some-project:d.t due to concurrent update"
    )


def test_more_outstanding_statements_than_the_limit_end_with_resources_exceeded(service: Service, asking: Any) -> None:
    """docs/data-manipulation-language, concurrent jobs: statements past the queue's length fail, on the job."""
    ask(asking, MERGE)
    service.limits.quotas = Quotas(statements=2)
    with service.blocked() as gate:
        service.prompt_s = 0.01
        waiting = [start(asking, UPDATE) for _ in range(2)]
        gate.wait_for(2)
        service.prompt_s = 5.0
        third = start(asking, UPDATE)
    assert third.state == "DONE"
    assert third.error_result["reason"] == "resourcesExceeded"
    assert third.error_result["message"] == (
        "Resources exceeded during query execution: Too many DML statements outstanding against table "
        "some-project:d.t, limit is 2."
    )
    assert [job.exception(timeout=30) for job in waiting] == [None, None]


def test_transaction_that_fails_leaves_nothing(asking: Any) -> None:
    """docs/transactions: if an error occurs and there is no handler, the transaction is rolled back."""
    failed = start(asking, f"BEGIN TRANSACTION; {MERGE}; ASSERT FALSE AS 'no'; COMMIT TRANSACTION")
    assert failed.error_result["message"] == "no"
    ended = start(asking, f"BEGIN TRANSACTION; {MERGE}")  # the query ends before COMMIT
    assert ended.error_result is None
    ask(asking, f"BEGIN TRANSACTION; {MERGE}; ROLLBACK TRANSACTION")
    assert keys(asking) == []


def test_transaction_sees_its_own_changes_and_one_snapshot_of_all_else(service: Service, asking: Any) -> None:
    """docs/transactions: during a transaction, all reads return a consistent snapshot."""
    service.prompt_s = 0.01
    with service.blocked() as gate:
        reading = start(asking, f"BEGIN TRANSACTION; SELECT COUNT(*) FROM {S}; COMMIT TRANSACTION")
        gate.wait_for(1)
        load(asking, "some-project.d.s", [{"day": DAY, "k": 3, "v": 30}]).result()
    assert rows(reading) == [(2,)]
    assert ask(asking, f"BEGIN TRANSACTION; {MERGE}; SELECT COUNT(*) FROM {T}; ROLLBACK TRANSACTION") == [(3,)]


def test_merge_that_matches_a_row_twice_is_refused(asking: Any) -> None:
    ask(asking, MERGE)
    load(asking, "some-project.d.s", [{"day": DAY, "k": 1, "v": 11}]).result()
    failed = start(asking, f"MERGE {T} AS T USING {S} AS S ON T.k = S.k WHEN MATCHED THEN UPDATE SET T.v = S.v")
    assert failed.error_result["message"] == "UPDATE/MERGE must match at most one source row for each target row"


def test_merge_updates_rows_that_match_and_inserts_the_others(asking: Any) -> None:
    load(asking, "some-project.d.t", [{"day": DAY, "k": 1, "v": 0}]).result()
    merge = (
        f"MERGE {T} T USING {S} S ON T.k = S.k WHEN MATCHED THEN UPDATE SET v = S.v WHEN NOT MATCHED THEN INSERT ROW"
    )
    assert start(asking, merge).result().num_dml_affected_rows == 2
    assert ask(asking, f"SELECT k, v FROM {T} ORDER BY k") == [(1, 10), (2, 20)]

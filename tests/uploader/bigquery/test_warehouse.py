"""The real client with the fake service and an emulator: each row once under kills, network faults and overlaps."""

from __future__ import annotations

import contextlib
import itertools
import json
import os
import random
import shutil
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from keras_matrix.records.schema import Record
from keras_matrix.records.store import Results
from keras_matrix.uploader.bigquery import client as connecting
from keras_matrix.uploader.bigquery import ddl
from keras_matrix.uploader.bigquery.jobs import RetryPolicy
from keras_matrix.uploader.bigquery.schema_check import differences, refuse
from keras_matrix.uploader.bigquery.warehouse import BigQueryWarehouse
from keras_matrix.uploader.cli.main import main
from keras_matrix.uploader.errors import NotAllowed, QuotaExceeded, SchemaMismatch, Unreachable, WarehouseFailure
from keras_matrix.uploader.outbox import Batch, Outbox
from keras_matrix.uploader.push import PushSummary, push, send
from keras_matrix.uploader.rows import WarehouseRow, of_record
from keras_matrix.uploader.schema import CELLS, MEASUREMENTS
from keras_matrix.uploader.verify import verify
from keras_matrix.uploader.warehouse import BIGQUERY, Options
from tests.conftest import NIGHTLY, make_settings
from tests.uploader.conftest import emulator_dataset
from tests.uploader.faulty import Fault, Proxy
from tests.uploader.stored import Killed, results_with, store_run

pytestmark = pytest.mark.google_client
QUICK = RetryPolicy(tries=12, first_s=0.01, most_s=0.05)
# What the client decides by itself, or another test shows with the emulator: its requests take ten times as long.
AT_NIGHT = pytest.mark.emulated_at_night
# Every moment of a merge with the fake service; with the emulator some of them, both before and after a request.
KILLED_AT = {"fake": range(60), "emulator": range(0, 60, 1 if NIGHTLY else 7)}
_nights = itertools.count(0, 300)


def opened(address: str, **options: Any) -> BigQueryWarehouse:
    found = BIGQUERY.fullmatch(address)
    assert found is not None
    return connecting.connect(found["project"], found["dataset"], Options(**options), QUICK)


@pytest.fixture(scope="module")
def shared(service: str) -> Iterator[str]:
    """A dataset that tests with different runs share: an emulator takes seconds to create one."""
    with emulator_dataset() as address:
        made = opened(address)
        made.create()
        made.close()
        yield address


@pytest.fixture
def warehouse(shared: str) -> Iterator[BigQueryWarehouse]:
    made = opened(shared)
    yield made
    made.close()


@pytest.fixture
def first() -> int:
    """The first of nights that no other test has."""
    return next(_nights)


@pytest.fixture
def results(tmp_path: Path, first: int) -> Results:
    return results_with(tmp_path / "results", runs=1, first=first)


def pushed(results: Results, warehouse: BigQueryWarehouse, name: str = "outbox") -> int:
    return push(results, warehouse, Outbox(results.root.parent / name)).new


def test_repeated_and_overlapping_pushes_add_only_new_rows(
    results: Results, warehouse: BigQueryWarehouse, first: int
) -> None:
    assert [pushed(results, warehouse, name) for name in ("one", "one", "two")] == [53, 0, 0]
    store_run(results.root, first + 1)
    assert pushed(results, warehouse, "three") == 53
    found = verify(results, warehouse, values=True)
    assert (found.expected, found.problems) == (106, ())


def test_created_tables_have_no_differences(warehouse: BigQueryWarehouse) -> None:
    assert [line for one in differences(warehouse) for line in one.lines()] == []


@pytest.mark.emulated_at_night
@pytest.mark.fault("F36", mutation="no request is tried again")
@pytest.mark.parametrize(
    "fault",
    [
        pytest.param(Fault(503, "backendError"), marks=AT_NIGHT),
        pytest.param(Fault(500, "internalError", after=True), marks=AT_NIGHT),
        pytest.param(Fault(429, "rateLimitExceeded"), marks=AT_NIGHT),
        pytest.param(Fault(503, "backendError", half=True, after=True), marks=AT_NIGHT),
        pytest.param(Fault(reset=True), marks=AT_NIGHT),
        Fault(reset=True, after=True),
    ],
    ids=["503", "500 after", "429", "half", "reset", "reset after"],
)
def test_each_row_is_stored_once_when_a_third_of_all_requests_fail(
    results: Results, warehouse: BigQueryWarehouse, shared: str, monkeypatch: pytest.MonkeyPatch, fault: Fault
) -> None:
    chance = random.Random(3)
    plan = lambda number, method, path: fault if number == 0 or chance.random() < 1 / 3 else None  # noqa: E731
    proxy = Proxy(os.environ["BIGQUERY_EMULATOR_HOST"], plan)
    with proxy as url, monkeypatch.context() as patched:
        patched.setenv("BIGQUERY_EMULATOR_HOST", url)
        bad = opened(shared)
        pushed(results, bad)
        bad.close()
    assert len(proxy.seen) > 30
    assert verify(results, warehouse, values=True).problems == ()


@pytest.mark.emulated_at_night
@pytest.mark.fault("F36", mutation="an error that is not retryable is tried again")
@pytest.mark.parametrize(
    ("fault", "kind", "message"),
    [
        (
            Fault(403, "accessDenied", "no bigquery.tables.get"),
            NotAllowed,
            "no bigquery.tables.get.*uploader init prints the roles",
        ),
        pytest.param(
            *(Fault(403, "quotaExceeded", "too many"), QuotaExceeded, "push again when the quota is refilled"),
            marks=AT_NIGHT,
        ),
        pytest.param(Fault(403, "billingNotEnabled", "billing"), NotAllowed, "--append-only", marks=AT_NIGHT),
        pytest.param(Fault(401, "authError", "expired"), NotAllowed, "auth application-default login", marks=AT_NIGHT),
        pytest.param(Fault(503, "backendError", "down"), Unreachable, "push again later", marks=AT_NIGHT),
    ],
)
def test_error_is_reported_with_reason_and_advice_and_the_next_push_sends_everything(
    results: Results,
    warehouse: BigQueryWarehouse,
    shared: str,
    monkeypatch: pytest.MonkeyPatch,
    fault: Fault,
    kind: type[WarehouseFailure],
    message: str,
) -> None:
    outbox = Outbox(results.root.parent / "outbox")
    proxy = Proxy(os.environ["BIGQUERY_EMULATOR_HOST"], lambda number, method, path: fault)
    with proxy as url, monkeypatch.context() as patched:
        patched.setenv("BIGQUERY_EMULATOR_HOST", url)
        bad = opened(shared)
        with pytest.raises(kind, match=message):
            push(results, bad, outbox)
        bad.close()
    assert len(proxy.seen) == (QUICK.tries if kind is Unreachable else 1)
    assert push(results, warehouse, outbox).new == 53


@pytest.mark.fault("F37", mutation="a batch is inserted without a look at the existing keys")
def test_each_row_is_stored_once_when_a_merge_is_killed_before_or_after_any_request(
    tmp_path: Path, warehouse: BigQueryWarehouse, service: str, shared: str, first: int
) -> None:
    import requests

    call, died = requests.Session.request, 0
    for count in KILLED_AT[service]:
        batch = _cells(tmp_path, first + count)
        left = [count // 2]

        def dying(
            session: Any, *args: Any, _left: list[int] = left, _after: bool = count % 2 == 1, **kwargs: Any
        ) -> Any:
            _left[0] -= 1
            if _left[0] < 0 and not _after:
                raise Killed
            answer = call(session, *args, **kwargs)
            if _left[0] < 0:
                raise Killed
            return answer

        with pytest.MonkeyPatch.context() as patched:
            patched.setattr(requests.Session, "request", dying)
            patched.setattr("keras_matrix.uploader.bigquery.jobs.FIRST_POLL_S", 0.5)  # few requests that only poll
            dead = opened(shared)
            with contextlib.suppress(Killed):
                dead.merge(batch)
        if left[0] >= 0:
            break
        died += 1
        warehouse.merge(batch)
        run_id = next(batch.values())["run_id"]
        found = warehouse.query("SELECT COUNT(*) AS n FROM cells WHERE run_id = @run", {"run": run_id})
        assert found.rows == [(3,)]
    assert died >= 12 / KILLED_AT[service].step


def _cells(root: Path, night: int) -> Batch:
    run, outbox = store_run(root / "results", night), Outbox(root / "sealed")
    lines = [row.line for record in run.load()[0] for row in of_record(record) if row.table is CELLS]
    with outbox.locked():
        return outbox.seal(CELLS, lines)


@AT_NIGHT
@pytest.mark.fault("F37", mutation="a batch is inserted without a look at the existing keys")
@pytest.mark.process
def test_three_concurrent_uploaders_add_each_row_once(
    results: Results, warehouse: BigQueryWarehouse, shared: str
) -> None:
    roots = [results.root.parent / f"machine-{number}" for number in range(3)]
    for root in roots:
        shutil.copytree(results.root, root, symlinks=True)
    command = [sys.executable, "-m", "keras_matrix.uploader", "push", "--to", shared, "--results"]
    processes = [subprocess.Popen([*command, str(root)], stderr=subprocess.PIPE, text=True) for root in roots]
    for output, code in [(process.communicate()[1], process.returncode) for process in processes]:
        if code:  # an emulator may reject concurrent writers; the push can be repeated
            assert (code, "push again" in output) == (3, True), output
    for root in roots:
        assert main(["push", "--to", shared, "--results", str(root), "--quiet"]) == 0
    assert verify(results, warehouse, values=True).problems == ()


@AT_NIGHT
@pytest.mark.process
def test_push_verification_and_errors_need_no_grpc_which_the_images_do_not_have(
    results: Results, service: str, shared: str
) -> None:
    """Mutation: `google.cloud.bigquery_storage` reads the rows."""
    without = "import sys; sys.modules['grpc'] = None\n"
    without += "from keras_matrix.uploader.cli.main import main; sys.exit(main())"
    found = []
    for words in (["push"], ["verify"], ["query", "SELECT * FROM nowhere"]):
        arguments = [*words, "--to", shared, *([] if words[0] == "query" else ["--results", str(results.root)])]
        done = subprocess.run([sys.executable, "-c", without, *arguments], capture_output=True, text=True, check=False)
        found.append((words[0], done.returncode, "Traceback" in done.stderr))
    assert found == [("push", 0, False), ("verify", 0, False), ("query", 3, False)]


@pytest.mark.fault("F38", mutation="the types of columns are not compared")
def test_missing_retyped_or_outdated_table_is_reported_before_a_row_is_sent_and_migrated(emulated: str) -> None:
    own = opened(emulated)
    own.create()
    client = own._client
    client.delete_table(f"{own._dataset}.findings")
    with pytest.raises(SchemaMismatch, match="findings: is missing"):
        refuse(differences(own), own.address)
    client.delete_table(f"{own._dataset}.runs")
    client.query(f"CREATE TABLE `{own._dataset}.runs` (day DATE, run_id INT64)").result()
    with pytest.raises(SchemaMismatch, match=r"runs\.run_id: is INT64, must be STRING"):
        refuse(differences(own), own.address)
    for name in ("runs", "cells"):
        client.delete_table(f"{own._dataset}.{name}")
    definition = ddl.create_table(own._dataset, CELLS)
    client.query("\n".join(line for line in definition.splitlines() if not line.startswith("  machine_os "))).result()
    own.create()
    assert [one.name for found in differences(own) for one in found.missing] == ["machine_os"]
    assert main(["migrate", "--to", emulated]) == 0
    assert differences(own) == []
    own.close()


def test_migrate_adds_columns_and_then_replaces_the_views_that_read_them(
    emulated: str, capsys: pytest.CaptureFixture[str]
) -> None:
    own = opened(emulated)
    own.create()
    client, name = own._client, f"{own._dataset}.cells"
    client.delete_table(name)
    lines = ddl.create_table(own._dataset, CELLS).splitlines()
    client.query("\n".join(line for line in lines if not line.startswith("  machine_machine_type "))).result()
    client.query(f"CREATE OR REPLACE VIEW `{own._dataset}.benchmarks` AS SELECT 1 AS test_id").result()
    assert main(["init", "--to", emulated]) == 3
    assert f"add missing columns with: uploader migrate --to {emulated}" in capsys.readouterr().err
    assert main(["migrate", "--to", emulated]) == 0
    assert capsys.readouterr().out == (
        "added cells.machine_machine_type\n"
        "replaced the views benchmarks, latest_findings, newest_cells, which read the last 400 days\n"
    )
    assert own.query("SELECT platform_info.machine_type AS type FROM benchmarks").rows == []
    own.close()


@pytest.mark.fault("F39", mutation="a batch that was refused is not split")
def test_one_invalid_row_is_set_aside_and_the_others_are_sent(results: Results, warehouse: BigQueryWarehouse) -> None:
    outbox, done = Outbox(results.root.parent / "outbox"), PushSummary()
    rows = [row for record in results.runs()[0].load()[0] for row in _rows(record) if row.table is MEASUREMENTS]
    lines = [row.line for row in rows[:8]]
    lines[5] = lines[5].replace('"value":', '"value":"much","was":')
    with outbox.locked():
        outbox.seal(MEASUREMENTS, lines)
        send(warehouse, outbox, done, lambda text: None)
    assert done.arrived == {"measurements": 7}
    [letter] = outbox.dead()
    assert "much" in letter.row
    assert letter.reason


def _rows(record: Record) -> list[WarehouseRow]:
    return list(of_record(record))


def test_hostile_names_are_stored_unchanged_and_work_as_parameters(
    tmp_path: Path, warehouse: BigQueryWarehouse, shared: str, first: int, capsys: pytest.CaptureFixture[str]
) -> None:
    hostile = "'; DROP TABLE cells; -- \"`$1@x%s{}\\\u2028\x85\t\u202e\U0001f4a9"
    settings = make_settings(workload=hostile, params={hostile: hostile})
    store_run(tmp_path / "results", first, settings=settings, reason=hostile, warnings=[hostile])
    results = Results(tmp_path / "results")
    pushed(results, warehouse)
    assert verify(results, warehouse, values=True).problems == ()
    sql = "SELECT workload, COUNT(*) AS attempts FROM cells WHERE workload = @workload GROUP BY workload"
    assert main(["query", sql, "--set", f"workload={hostile}", "--json", "--to", shared]) == 0
    assert json.loads(capsys.readouterr().out) == {"workload": hostile, "attempts": 3}


def test_without_dml_rows_are_appended_and_views_remove_duplicates(results: Results, emulated: str) -> None:
    appending = opened(emulated, append_only=True)
    appending.create()
    for name in ("one", "two"):
        pushed(results, appending, name)
    assert verify(results, appending, values=True).problems == ()
    appending.close()


@AT_NIGHT
def test_unreachable_server_leaves_everything_pending(
    results: Results, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], shared: str
) -> None:
    monkeypatch.setattr(connecting, "RetryPolicy", lambda: QUICK)
    began = time.monotonic()
    with Proxy(os.environ["BIGQUERY_EMULATOR_HOST"], lambda number, method, path: Fault(reset=True)) as url:
        monkeypatch.setenv("BIGQUERY_EMULATOR_HOST", url)
        assert main(["push", "--to", shared, "--results", str(results.root)]) == 3
    assert "push again later" in capsys.readouterr().err
    assert time.monotonic() - began < 20


@pytest.mark.emulated_at_night
@pytest.mark.fault("F36", mutation="requests have no deadline")
@pytest.mark.parametrize(
    "path",
    [
        pytest.param("/upload/", marks=pytest.mark.nightly),
        "/jobs?",
        pytest.param("/queries/", marks=pytest.mark.nightly),
    ],
    ids=["load", "insert", "rows"],
)
def test_push_ends_at_its_deadline_when_the_network_fails_after_a_job_was_accepted(
    results: Results, warehouse: BigQueryWarehouse, shared: str, monkeypatch: pytest.MonkeyPatch, path: str
) -> None:
    dead: list[str] = []

    def plan(number: int, method: str, request: str) -> Fault | None:
        if dead:
            return Fault(silent=True)
        if path in request:
            dead.append(request)
            return Fault(silent=True, after=True)
        return None

    outbox, deadline_s = Outbox(results.root.parent / "outbox"), 4.0
    with Proxy(os.environ["BIGQUERY_EMULATOR_HOST"], plan) as url, monkeypatch.context() as patched:
        patched.setenv("BIGQUERY_EMULATOR_HOST", url)
        bad = opened(shared, deadline_s=deadline_s)
        began_s = time.monotonic()
        with pytest.raises(Unreachable, match="push again"):
            push(results, bad, outbox)
        assert time.monotonic() - began_s < 3 * deadline_s
        bad.close()
    assert dead
    assert len(outbox.pending()) == 4
    push(results, warehouse, outbox)
    assert verify(results, warehouse, values=True).problems == ()


@AT_NIGHT
def test_without_dml_a_batch_sent_from_another_outbox_adds_nothing(
    results: Results, emulated: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["init", "--append-only", "--to", emulated]) == 0
    theirs = results.root.parent / "old.csv"
    theirs.write_text("name,backend,when,time\nlstm,jax,2025-01-01T00:00:00,1.5\n")
    maps = {"workload": "name", "backend": "backend", "started_at": "when", "value": "time"}
    command = ["import", str(theirs), "--metric", "times.suite_total_time_s", "--source", "lab", "--to", emulated]
    command += [f"--map={ours}={name}" for ours, name in maps.items()]
    for folder, said in (("one", "3 new rows, 0 already present"), ("two", "0 new rows, 3 already present")):
        capsys.readouterr()
        assert main([*command, "--results", str(results.root.parent / folder)]) == 0
        assert said in capsys.readouterr().out


def test_external_table_is_imported_through_a_mapping_of_its_structs(
    results: Results, warehouse: BigQueryWarehouse, shared: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    pushed(results, warehouse)
    maps = {
        "workload": "test_name",
        "backend": "keras_backend.type",
        "value": "metrics.totaltime",
        "started_at": "recorded_time",
        "batch_size": "metrics.batch_size",
    }
    command = ["import", f"{shared}.benchmarks", "--metric", "times.suite_total_time_s", "--source", "their table"]
    command += [f"--map={ours}={theirs}" for ours, theirs in maps.items()]
    assert main([*command, "--results", str(tmp_path / "mine")]) == 0
    capsys.readouterr()
    sql = "SELECT source, workload, backend, COUNT(*) AS n FROM cells GROUP BY source, workload, backend"
    assert main(["query", sql, "--csv", "--results", str(tmp_path / "mine")]) == 0
    assert any(line.startswith("their table,mnist_mlp,jax,") for line in capsys.readouterr().out.splitlines())

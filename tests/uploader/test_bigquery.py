"""The real client against an emulator: exactly once through kills, bad networks, overlaps and replays."""

from __future__ import annotations

import os
import random
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from records.schema import Record
from records.store import Results
from tests.uploader.faulty import Fault, Proxy
from tests.uploader.stored import results_with, store_run
from uploader import connect as connecting
from uploader.bigquery import BigQueryWarehouse
from uploader.cli.main import main
from uploader.differences import differences, refuse
from uploader.errors import NotAllowed, QuotaSpent, SchemaDiffers, Unreachable, WarehouseFailure
from uploader.outbox import Outbox
from uploader.push import Pushed, push, send
from uploader.retry import Patience
from uploader.rows import Row, of_record
from uploader.schema import CELLS
from uploader.verify import verify
from uploader.warehouse import BIGQUERY, Options

pytestmark = [
    pytest.mark.emulator,
    # The client leaves its connections for the collector to close.
    pytest.mark.filterwarnings("ignore::ResourceWarning", "ignore::pytest.PytestUnraisableExceptionWarning"),
    pytest.mark.filterwarnings("ignore::FutureWarning:google", "ignore::DeprecationWarning:google"),
]
QUICK = Patience(tries=6, first_s=0.01, most_s=0.05)
Opened = Callable[..., BigQueryWarehouse]


@pytest.fixture
def opened(emulated: str) -> Iterator[Opened]:
    found = BIGQUERY.fullmatch(emulated)
    assert found is not None
    made: list[BigQueryWarehouse] = []

    def open_one(**options: bool) -> BigQueryWarehouse:
        made.append(connecting.connect(found["project"], found["dataset"], Options(**options), QUICK))
        return made[-1]

    yield open_one
    for one in made:
        one.close()


@pytest.fixture
def warehouse(opened: Opened) -> BigQueryWarehouse:
    made = opened()
    made.create()
    return made


def pushed(results: Results, warehouse: BigQueryWarehouse, name: str = "outbox") -> int:
    return push(results, warehouse, Outbox(results.root.parent / name)).new


def test_a_push_arrives_and_the_next_one_brings_nothing(tmp_path: Path, warehouse: BigQueryWarehouse) -> None:
    results = results_with(tmp_path / "results")
    assert pushed(results, warehouse) == 106
    assert pushed(results, warehouse) == 0
    found = verify(results, warehouse, values=True)
    assert (found.expected, found.found, found.problems) == (106, 106, ())


def test_the_tables_that_were_made_differ_in_nothing(warehouse: BigQueryWarehouse) -> None:
    assert [line for one in differences(warehouse) for line in one.lines()] == []


def test_replayed_by_three_machines_and_overlapping_each_row_is_there_once(
    tmp_path: Path, warehouse: BigQueryWarehouse
) -> None:
    results = results_with(tmp_path / "results", runs=1)
    for name in ("one", "two", "three"):
        pushed(results, warehouse, name)
    store_run(results.root, 1)
    assert pushed(results, warehouse, "four") == 53
    assert verify(results, warehouse).problems == ()


@pytest.mark.parametrize("after", [False, True])
@pytest.mark.parametrize(
    "fault",
    [Fault(503, "backendError"), Fault(500, "internalError"), Fault(429, "rateLimitExceeded"), Fault(reset=True)],
    ids=["503", "500", "429", "reset"],
)
def test_every_request_fails_once_and_each_row_is_there_once(
    tmp_path: Path,
    warehouse: BigQueryWarehouse,
    monkeypatch: pytest.MonkeyPatch,
    emulated: str,
    fault: Fault,
    after: bool,
) -> None:
    """Every second request is spoiled, before it was done or after, so that each step is met by a failure."""
    results = results_with(tmp_path / "results", runs=1)
    told = Fault(fault.status, fault.reason, reset=fault.reset, after=after)
    with Proxy(os.environ["BIGQUERY_EMULATOR_HOST"], lambda number, m, p: told if number % 2 == 0 else None) as url:
        monkeypatch.setenv("BIGQUERY_EMULATOR_HOST", url)
        found = BIGQUERY.fullmatch(emulated)
        assert found is not None
        bad = connecting.connect(found["project"], found["dataset"], Options(), QUICK)
        pushed(results, bad)
        bad.close()
    assert verify(results, warehouse, values=True).problems == ()


@pytest.mark.parametrize(
    ("fault", "kind", "told"),
    [
        (Fault(403, "accessDenied", "no bigquery.tables.get"), NotAllowed, "no bigquery.tables.get.*least roles"),
        (Fault(403, "quotaExceeded", "too many"), QuotaSpent, "push again when the quota is refilled"),
        (Fault(403, "billingNotEnabled", "billing"), NotAllowed, "--append-only"),
        (Fault(401, "authError", "expired"), NotAllowed, "log in again"),
        (Fault(503, "backendError", "down"), Unreachable, "push again later"),
    ],
)
def test_a_refusal_is_told_with_its_reason_and_advice_and_what_is_pending_stays(
    tmp_path: Path,
    warehouse: BigQueryWarehouse,
    monkeypatch: pytest.MonkeyPatch,
    emulated: str,
    fault: Fault,
    kind: type[WarehouseFailure],
    told: str,
) -> None:
    results, outbox = results_with(tmp_path / "results", runs=1), Outbox(tmp_path / "outbox")
    found = BIGQUERY.fullmatch(emulated)
    assert found is not None
    proxy = Proxy(os.environ["BIGQUERY_EMULATOR_HOST"], lambda number, method, path: fault)
    with proxy as url, monkeypatch.context() as patched:
        patched.setenv("BIGQUERY_EMULATOR_HOST", url)
        bad = connecting.connect(found["project"], found["dataset"], Options(), QUICK)
        with pytest.raises(kind, match=told):
            push(results, bad, outbox)
        bad.close()
    assert len(proxy.seen) == (QUICK.tries if kind is Unreachable else 1)
    assert len(outbox.pending()) == 4
    assert push(results, warehouse, outbox).new == 53


def test_killed_at_random_moments_each_row_is_there_once(
    tmp_path: Path, warehouse: BigQueryWarehouse, emulated: str
) -> None:
    results, chance = results_with(tmp_path / "results", runs=1), random.Random(7)
    killed = 0
    for number in range(int(os.environ.get("PUSHES", "12"))):
        store_run(results.root, number + 1, count=1)
        command = [sys.executable, "-m", "uploader", "push", "--to", emulated, "--results", str(results.root)]
        process = subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
        try:
            process.wait(timeout=0.6 + 3.5 * chance.random())
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()
            killed += 1
    outbox = Outbox(results.root / "outbox" / emulated.replace("://", "-"))
    assert outbox.folder.is_dir()
    push(results, warehouse, outbox)
    assert killed > 0
    assert verify(results, warehouse, values=True).problems == ()


def test_three_uploaders_at_once_add_each_row_once(tmp_path: Path, warehouse: BigQueryWarehouse, emulated: str) -> None:
    import shutil

    results = results_with(tmp_path / "results", runs=3)
    roots = [tmp_path / f"machine-{number}" for number in range(3)]
    for root in roots:
        shutil.copytree(results.root, root, symlinks=True)
    command = [sys.executable, "-m", "uploader", "push", "--to", emulated, "--results"]
    processes = [subprocess.Popen([*command, str(root)], stderr=subprocess.PIPE, text=True) for root in roots]
    ended = [(process.communicate()[1], process.returncode) for process in processes]
    for told, code in ended:
        if code:  # an emulator may refuse writers that meet; pushing again is the promise
            assert (code, "push again" in told) == (3, True)
    for root in roots:
        assert main(["push", "--to", emulated, "--results", str(root), "--quiet"]) == 0
    assert verify(results, warehouse, values=True).problems == ()


def test_a_missing_and_a_retyped_table_are_told_before_a_row_is_sent(
    opened: Opened, warehouse: BigQueryWarehouse
) -> None:
    client = warehouse._client
    client.delete_table(f"{warehouse._dataset}.findings")
    with pytest.raises(SchemaDiffers, match="findings: is missing"):
        refuse(differences(warehouse), warehouse.address)
    client.delete_table(f"{warehouse._dataset}.runs")
    client.query(f"CREATE TABLE `{warehouse._dataset}.runs` (day DATE, run_id INT64)").result()
    with pytest.raises(SchemaDiffers, match=r"runs\.run_id: is INT64, must be STRING"):
        refuse(differences(warehouse), warehouse.address)


def test_migrate_adds_a_missing_nullable_column(warehouse: BigQueryWarehouse, emulated: str) -> None:
    from uploader import ddl

    table = f"{warehouse._dataset}.cells"
    warehouse._client.delete_table(table)
    whole = ddl.create_table(warehouse._dataset, CELLS)
    older = "\n".join(line for line in whole.splitlines() if not line.strip().startswith("machine_os "))
    warehouse._client.query(older).result()
    assert [one.name for found in differences(warehouse) for one in found.missing] == ["machine_os"]
    assert main(["migrate", "--to", emulated]) == 0
    assert differences(warehouse) == []


def test_one_bad_row_among_many_is_set_aside_and_the_rest_goes(tmp_path: Path, warehouse: BigQueryWarehouse) -> None:
    results, outbox = results_with(tmp_path / "results", runs=1), Outbox(tmp_path / "outbox")
    warehouse.create()
    with outbox.locked():
        rows = [row for run in results.runs() for record in run.load()[0] for row in _rows(record)]
        bad = rows[5].line.replace('"value":', '"value":"much","was":')
        outbox.seal(
            rows[5].table, [bad if i == 5 else row.line for i, row in enumerate(rows) if row.table is rows[5].table]
        )
    done = Pushed()
    with outbox.locked():
        send(warehouse, outbox, done, lambda text: None)
    assert done.arrived["measurements"] == 47
    [letter] = outbox.dead()
    assert "much" in letter.row
    assert letter.reason


def _rows(record: Record) -> list[Row]:
    return list(of_record(record))


def test_without_dml_rows_are_appended_and_views_show_each_once(tmp_path: Path, opened: Opened) -> None:
    results, appending = results_with(tmp_path / "results", runs=1), opened(append_only=True)
    appending.create()
    for name in ("one", "two"):
        pushed(results, appending, name)
    assert verify(results, appending, values=True).problems == ()


def test_a_lost_server_leaves_everything_pending(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("BIGQUERY_EMULATOR_HOST", "http://127.0.0.1:9")
    monkeypatch.setattr(connecting, "Patience", lambda: QUICK)
    results, began = results_with(tmp_path / "results", runs=1), time.monotonic()
    assert main(["push", "--to", "bigquery://some-project.benchmarks", "--results", str(results.root)]) == 3
    assert "push again later" in capsys.readouterr().err
    assert time.monotonic() - began < 20

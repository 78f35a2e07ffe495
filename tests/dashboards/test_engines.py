"""Every question gives the same rows on DuckDB and, unchanged, on an emulator; a full night runs there."""

from __future__ import annotations

import math
import subprocess
import sys
from collections.abc import Iterator
from datetime import UTC, date, datetime
from pathlib import Path
from typing import Any

import pytest

from keras_matrix.dashboards.live import page
from keras_matrix.dashboards.live.app.application import Application, statements
from keras_matrix.dashboards.live.app.needed import needed
from keras_matrix.dashboards.live.app.refreshed import RefreshClocks, Refreshed, RefreshPolicy
from keras_matrix.dashboards.live.questions import EARLIEST_DAY, DashboardFilter, answer, questions
from keras_matrix.records.store import Results
from keras_matrix.runner.cli.main import main as runner
from keras_matrix.runner.measure.seams import Seams
from keras_matrix.uploader.bigquery import ddl
from keras_matrix.uploader.bigquery.client import connect
from keras_matrix.uploader.bigquery.partition_pruning import push_down_day_filters
from keras_matrix.uploader.cli.main import main as uploader
from keras_matrix.uploader.local.warehouse import LocalWarehouse
from keras_matrix.uploader.outbox import Outbox
from keras_matrix.uploader.push import push
from keras_matrix.uploader.schema import CELLS, FINDINGS, RUNS
from keras_matrix.uploader.sql import EVERY_DAY, SINCE, views, with_views
from keras_matrix.uploader.warehouse import BIGQUERY, Options, Warehouse
from tests.conftest import NIGHTLY
from tests.dashboards.boards import cell_of, stored, warehouse_of
from tests.dashboards.googles_engine import answers
from tests.fakes.executor import FakeExecutor
from tests.uploader.conftest import emulator_dataset

pytestmark = [pytest.mark.emulator, pytest.mark.google_client]


@pytest.fixture
def emulated() -> Iterator[str]:
    """A separate dataset per test, not created yet."""
    with emulator_dataset() as address:
        yield address


def alike(rows: list[tuple[Any, ...]]) -> list[tuple[Any, ...]]:
    """Rows in a form that is equal in both engines: floats with 12 digits, other values unchanged."""
    return [tuple(_alike(value) for value in row) for row in rows]


def _alike(value: Any) -> Any:
    return float(f"{value:.12g}") if isinstance(value, float) and math.isfinite(value) else value


@pytest.fixture(scope="module")
def results(tmp_path_factory: pytest.TempPathFactory) -> Results:
    return stored(tmp_path_factory.mktemp("engines") / "results", nights=10)


@pytest.fixture(scope="module")
def local(results: Results) -> LocalWarehouse:
    return warehouse_of(results)


@pytest.fixture(scope="module")
def remote(results: Results, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Warehouse]:
    with emulator_dataset() as address:
        found = BIGQUERY.fullmatch(address)
        assert found is not None
        opened = connect(found["project"], found["dataset"], Options(first_day=EARLIEST_DAY))
        opened.create()
        push(results, opened, Outbox(tmp_path_factory.mktemp("engines-outbox")))
        yield opened
        opened.close()


@pytest.mark.parametrize(
    "choice",
    [
        DashboardFilter(backend="jax", since="2026-01-05"),
        pytest.param(DashboardFilter(), marks=pytest.mark.nightly),  # as the panels ask, of which each change is tested
        pytest.param(DashboardFilter(backend="jax"), marks=pytest.mark.nightly),
        pytest.param(DashboardFilter(since="2026-01-05"), marks=pytest.mark.nightly),
    ],
    ids=str,
)
@pytest.mark.parametrize("name", list(questions()))
def test_a_question_has_the_same_rows_on_both(
    local: Warehouse, remote: Warehouse, name: str, choice: DashboardFilter
) -> None:
    here, there = (answer(one, questions()[name], choice) for one in (local, remote))
    assert here.columns == there.columns
    assert alike(here.rows) == alike(there.rows)


@pytest.fixture(scope="module")
def reference(local: LocalWarehouse) -> dict[str, Any]:
    """The answer of ZetaSQL, Google's analyser and reference engine, to every query; rows only every night."""
    queries = {}
    for name, question in questions().items():
        asked = {name: question.sql, f"{name}, appended": push_down_day_filters(question.sql)}
        for parameter, value in DashboardFilter().parameters(question.sql).items():
            asked = {way: sql.replace(f"@{parameter}", f"'{value}'") for way, sql in asked.items()}
        queries |= asked
    made = {f"view {name}": _body(name) for name in views() if name != "benchmarks"}
    return answers(local if NIGHTLY else None, (RUNS, CELLS, FINDINGS), {}, queries | made)


def _body(name: str) -> str:
    """The statement of a view as in a dataset, without the name of the dataset."""
    return with_views(ddl.create_view("p.d", name).partition("\nAS ")[2].replace("`p`.`d`.", "")).replace(
        SINCE, EVERY_DAY
    )


# One worker of pytest asks Google's engine, once, and the others the emulator.
GOOGLES = pytest.mark.xdist_group("googles_engine")


@GOOGLES
@pytest.mark.parametrize("name", [name for name in views() if name != "benchmarks"])
def test_googles_engine_accepts_the_views_of_a_dataset(reference: dict[str, Any], name: str) -> None:
    assert "error" not in reference[f"view {name}"], reference[f"view {name}"]["error"]


@GOOGLES
@pytest.mark.parametrize("name", list(questions()))
def test_googles_engine_accepts_the_questions_and_gives_them_the_same_columns(
    local: LocalWarehouse, reference: dict[str, Any], name: str
) -> None:
    columns = answer(local, questions()[name], DashboardFilter()).columns
    for there in (reference[name], reference[f"{name}, appended"]):
        assert "error" not in there, there["error"]
        assert list(columns) == there["columns"]


@GOOGLES
@pytest.mark.nightly
@pytest.mark.parametrize("name", list(questions()))
def test_question_has_the_same_rows_in_googles_engine(
    local: LocalWarehouse, reference: dict[str, Any], name: str
) -> None:
    here = answer(local, questions()[name], DashboardFilter())
    rows = [tuple(value.isoformat() if isinstance(value, date) else value for value in row) for row in here.rows]
    for there in (reference[name], reference[f"{name}, appended"]):
        assert "error" not in there, there["error"]
        assert list(here.columns) == there["columns"]
        assert alike(rows) == alike([tuple(row) for row in there["rows"]])


def test_the_flat_view_has_the_same_rows_on_both(local: Warehouse, remote: Warehouse) -> None:
    sql = (
        "SELECT test_id, test_name, test_type, metrics.totaltime AS totaltime, metrics.epochs AS epochs, "
        "keras_backend.type AS backend, keras_backend.version AS version, cpu_info.memory AS memory, keras_version, "
        "gpu_info.count AS gpus FROM benchmarks ORDER BY test_id"
    )
    here, there = local.query(sql), remote.query(sql)
    assert len(here.rows) > 100
    assert alike(here.rows) == alike(there.rows)


def test_live_dashboard_reads_the_emulator_once_and_gives_equal_answers(
    local: LocalWarehouse, remote: Warehouse
) -> None:
    source = Refreshed(
        remote, needed(statements()), RefreshPolicy(since="2026-01-01"), RefreshClocks(lambda: datetime.now(UTC))
    )
    status: list[str] = []
    [body] = Application(source)({"PATH_INFO": "/"}, lambda sent, headers: status.append(sent))
    assert status == ["200 OK"]
    assert b"no answer" not in body
    assert cell_of("jax").encode() in body
    snapshot = source.edition().reader
    for question in questions().values():
        assert alike(answer(snapshot, question, DashboardFilter()).rows) == alike(
            answer(local, question, DashboardFilter()).rows
        )


def test_panels_are_the_same_from_both(local: Warehouse, remote: Warehouse) -> None:
    pages = [page.panels_of(one, questions().values(), DashboardFilter()) for one in (local, remote)]
    for here, there in zip(*pages, strict=True):
        assert (here.kind, here.count, here.problem) == (there.kind, there.count, there.problem)


def test_a_night_of_run_push_verify_and_site(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, emulated: str, capsys: pytest.CaptureFixture[str]
) -> None:
    """The steps of docs/nightly.md, twice, with simulated processes."""
    monkeypatch.chdir(tmp_path)
    (tmp_path / "matrix.yaml").write_text(
        "version: 1\nbackends: [tensorflow, jax]\ncells:\n  - workload: mnist_mlp\n    repeats: 5\n"
    )
    assert uploader(["init", "--to", emulated]) == 0
    assert "roles/bigquery.jobUser" in capsys.readouterr().out
    for _ in range(2):
        assert runner(["--new", "--upload", emulated], Seams(executor=FakeExecutor())) == 0
        assert uploader(["push", "--to", emulated]) == 0
        assert "0 new rows" in capsys.readouterr().out
        assert uploader(["verify", "--to", emulated, "--values"]) == 0
        assert "0 lost, 0 duplicated" in capsys.readouterr().out
    assert runner(["report", "--publish", "site"], Seams(executor=FakeExecutor())) == 0
    assert len(list((tmp_path / "site" / "runs").iterdir())) == 2
    found = BIGQUERY.fullmatch(emulated)
    assert found is not None
    opened = connect(found["project"], found["dataset"], Options())
    assert answer(opened, questions()["matrix"], DashboardFilter()).rows
    opened.close()


def test_the_example_of_the_documentation_answers(emulated: str) -> None:
    command = [sys.executable, "-m", "keras_matrix.uploader", "init", "--to", emulated]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert (done.returncode, done.stderr) == (0, "")

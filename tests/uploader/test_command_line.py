"""The command `uploader`, end to end on the local warehouse."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

from keras_matrix.uploader.bigquery.ddl import minimum_roles
from keras_matrix.uploader.cli.main import main
from keras_matrix.uploader.errors import (
    BadInput,
    NotAllowed,
    QuotaExceeded,
    SchemaMismatch,
    Unreachable,
    WarehouseFailure,
)
from keras_matrix.uploader.local.warehouse import LocalWarehouse
from keras_matrix.uploader.verify import verify
from keras_matrix.uploader.warehouse import Options
from tests.fakes.warehouse import FakeWarehouse
from tests.uploader.stored import full_at, results_with

ROOT = Path(__file__).parent.parent.parent


@pytest.fixture
def results(tmp_path: Path) -> str:
    return str(results_with(tmp_path / "results").root)


def test_user_query_reads_only_the_warehouses_files(
    results: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    main(["push", "--results", results, "--quiet"])
    (tmp_path / "secret.csv").write_text("a\ncanary\n")
    assert main(["query", f"SELECT * FROM read_csv('{tmp_path}/secret.csv')", "--results", results]) == 3
    output = capsys.readouterr()
    assert "file system operations are disabled" in output.err
    assert "canary" not in output.out + output.err


@pytest.mark.parametrize(
    ("arguments", "expected"),
    [
        (["push"], Options(deadline_s=1800.0)),
        (["push", "--append-only", "--deadline", "2.5"], Options(append_only=True, deadline_s=150.0)),
        (["init", "--location", "EU", "--append-only"], Options(append_only=True, location="EU")),
        (["verify", "--impersonate", "me@x.example"], Options(impersonate="me@x.example")),
        (["query", "SELECT 1 AS one", "--maximum-bytes-billed", "7"], Options(most_bytes_billed=7)),
        (["init", "--since", "2020-02-29"], Options(first_day="2020-02-29")),
        (["migrate", "--since", "20200229"], Options(first_day="2020-02-29")),
    ],
)
def test_bigquery_flags_are_passed_to_the_warehouse(
    results: str, monkeypatch: pytest.MonkeyPatch, arguments: list[str], expected: Options
) -> None:
    opened: list[Options] = []

    def opening(address: str, folder: Path, options: Options) -> FakeWarehouse:
        opened.append(options)
        return FakeWarehouse(address)

    monkeypatch.setattr("keras_matrix.uploader.opening.open_warehouse", opening)
    main([*arguments, "--to", BIGQUERY, "--results", results])
    assert opened == [expected]


def test_imported_table_is_read_within_the_limits_of_the_flags(results: str, monkeypatch: pytest.MonkeyPatch) -> None:
    opened: list[tuple[str, Options]] = []

    def opening(address: str, folder: Path, options: Options) -> FakeWarehouse:
        opened.append((address, options))
        raise BadInput("that is enough")

    monkeypatch.setattr("keras_matrix.uploader.opening.open_warehouse", opening)
    theirs = "bigquery://some-project.theirs"
    maps = [f"--map={name}={name}" for name in ("workload", "backend", "value", "started_at")]
    command = ["import", f"{theirs}.old", *maps, "--metric", "times.step_time_s", "--source", "lab", "--append-only"]
    limits = ["--maximum-bytes-billed", "7", "--deadline", "2", "--location", "EU", "--impersonate", "me@x.example"]
    assert main([*command, *limits, "--to", BIGQUERY, "--results", results]) == 2
    assert opened == [(theirs, Options(False, "EU", "me@x.example", 7, 120.0))]


BIGQUERY = "bigquery://some-project.data"


@pytest.fixture
def fake(monkeypatch: pytest.MonkeyPatch) -> FakeWarehouse:
    """The warehouse at any BigQuery address: created, and empty."""
    made = FakeWarehouse()
    made.create()
    monkeypatch.setattr("keras_matrix.uploader.opening.open_warehouse", lambda address, results, options: made)
    return made


@pytest.mark.fault("F36", mutation="an error of the warehouse removes the pending batches")
@pytest.mark.parametrize("kind", [Unreachable, QuotaExceeded, NotAllowed, SchemaMismatch])
def test_warehouse_error_exits_with_3_and_the_next_push_sends_the_batches(
    results: str, fake: FakeWarehouse, kind: type[WarehouseFailure], capsys: pytest.CaptureFixture[str]
) -> None:
    fake.failures = [None, (kind("the reason, and what to do"), False)]
    assert main(["push", "--to", BIGQUERY, "--results", results]) == 3
    capsys.readouterr()
    assert main(["status", "--to", BIGQUERY, "--results", results, "--json"]) == 0
    output = json.loads(capsys.readouterr().out)
    assert (output["unsealed"], len(output["pending"]), output["done"], output["dead"]) == (0, 3, 1, [])
    assert main(["push", "--to", BIGQUERY, "--results", results]) == 0
    assert {name: fake.count(name) for name in fake.rows} == {
        "runs": 2,
        "cells": 6,
        "measurements": 96,
        "findings": 2,
    }


def test_roles_of_an_append_only_dataset_do_not_include_a_staging_dataset() -> None:
    rights = minimum_roles("some-project", "data", append_only=True)
    assert rights.count("roles/bigquery.dataEditor") == 1
    assert "staging" not in rights


def test_init_prints_minimum_roles_limited_to_two_datasets(
    fake: FakeWarehouse, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["init", "--to", BIGQUERY]) == 0
    output = capsys.readouterr().out  # all of it is in golden/init.txt
    project = [line for line in output.splitlines() if "add-iam-policy-binding" in line]
    assert {line.rpartition("--role=")[2] for line in project} == {"roles/bigquery.jobUser"}
    assert not re.search("owner|admin|editor --member", output, re.IGNORECASE)


@pytest.mark.fault("F21", mutation="the message about a full disk does not name the path")
def test_full_disk_exits_with_3_names_the_path_and_loses_nothing(
    results: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    for count in (0, 3, 30):
        with full_at(monkeypatch, count):
            assert main(["push", "--results", results]) == 3
        output = capsys.readouterr().err
        assert f"uploader: {results}" in output
        assert "No space left on device" in output
    assert main(["push", "--results", results]) == 0
    assert main(["verify", "--results", results]) == 0


@pytest.mark.process
def test_help_imports_neither_duckdb_nor_the_bigquery_client_nor_a_subcommand() -> None:
    script = (
        "import sys\nfrom keras_matrix.uploader.cli.main import main\n"
        "try:\n    main(['--help'])\nexcept SystemExit:\n    pass\n"
        "heavy = {'duckdb', 'sqlglot', 'google.cloud', 'rich', 'numpy', 'dataclasses'} & set(sys.modules)\n"
        "assert not heavy | ({'keras_matrix.uploader.cli.push'} & set(sys.modules)), heavy\n"
    )
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=False)
    assert (done.returncode, done.stderr) == (0, "")


@pytest.mark.process
def test_opening_the_local_warehouse_does_not_import_the_sql_parser(results: str) -> None:
    main(["push", "--results", results, "--quiet"])
    script = (
        "import sys\nfrom pathlib import Path\nfrom keras_matrix.uploader.local.warehouse import LocalWarehouse\n"
        "sql = 'SELECT COUNT(*) FROM newest_cells'\n"
        "print(LocalWarehouse(Path(sys.argv[1]))._opened(sql).execute(sql).fetchall())\n"
        "assert 'duckdb' in sys.modules and 'sqlglot' not in sys.modules\n"
    )
    command = [sys.executable, "-c", script, f"{results}/warehouse"]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False)
    assert (done.returncode, done.stdout, done.stderr) == (0, "[(1,)]\n", "")


@pytest.mark.process
@pytest.mark.fault("F40", mutation="the outbox stores the variables of the push")
def test_no_secret_from_the_environment_is_in_any_output_or_row(tmp_path: Path, results: str) -> None:
    canary = "canary-4f1c"
    environment = {**os.environ, "SECRET_TOKEN": canary, "BIGQUERY_EMULATOR_HOST": "http://127.0.0.1:9"}
    for command in (["push"], ["status"], ["verify"]):
        done = subprocess.run(
            [sys.executable, "-m", "keras_matrix.uploader", *command, "--results", results],
            env=environment,
            cwd=ROOT,
            capture_output=True,
            text=True,
            check=False,
        )
        assert canary not in done.stdout + done.stderr
    assert [path for path in Path(results).rglob("*") if path.is_file() and canary.encode() in path.read_bytes()] == []


@pytest.mark.process
def test_three_concurrent_pushes_into_one_folder_wait_for_each_other_and_add_each_row_once(tmp_path: Path) -> None:
    results = results_with(tmp_path / "results", runs=3)
    command = [sys.executable, "-m", "keras_matrix.uploader", "push", "--results", str(results.root)]
    started = [subprocess.Popen(command, cwd=ROOT, stdout=subprocess.PIPE, text=True) for _ in range(3)]
    output = [process.communicate()[0].splitlines()[-1] for process in started]
    assert [process.returncode for process in started] == [0, 0, 0]
    assert sorted(output) == ["0 new rows, 0 already present"] * 2 + ["159 new rows, 0 already present"]
    assert verify(results, LocalWarehouse(results.root / "warehouse"), values=True).problems == ()

"""The command `uploader`, end to end on the local warehouse."""

from __future__ import annotations

import csv
import json
import os
import re
import shutil
import subprocess
import sys
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import pytest

from keras_matrix.records.schema import SCHEMA_VERSION
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
from keras_matrix.uploader.warehouse import Options, Scalar
from tests.fakes.warehouse import FakeWarehouse
from tests.uploader.stored import full_at, results_with, store_run

ROOT = Path(__file__).parent.parent.parent


@pytest.fixture
def results(tmp_path: Path) -> str:
    return str(results_with(tmp_path / "results").root)


def test_push_push_again_verify_status_and_query(results: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["push", "--results", results]) == 0
    assert "106 new rows, 0 already present" in capsys.readouterr().out
    assert main(["push", "--results", results]) == 0
    assert "0 new rows, 0 already present" in capsys.readouterr().out
    assert main(["verify", "--results", results, "--values"]) == 0
    assert "106 rows expected from the records, 106 in the warehouse" in capsys.readouterr().out
    assert main(["status", "--results", results]) == 0
    assert "0 batches pending, 4 arrived, 0 rows set aside" in capsys.readouterr().out
    sql = "SELECT backend, COUNT(*) AS attempts FROM cells WHERE repeat < @most GROUP BY backend"
    assert main(["query", sql, "--set", "most:int=2", "--csv", "--results", results]) == 0
    assert capsys.readouterr().out.split() == ["backend,attempts", "jax,4"]


def test_a_query_prints_a_table_or_json(results: str, capsys: pytest.CaptureFixture[str]) -> None:
    main(["push", "--results", results, "--quiet"])
    assert main(["query", "SELECT 1 AS one, NULL AS two", "--results", results]) == 0
    assert "1 rows" in capsys.readouterr().out
    assert main(["query", "SELECT day FROM runs ORDER BY day", "--json", "--results", results]) == 0
    assert json.loads(capsys.readouterr().out.splitlines()[0]) == {"day": "2026-01-01"}


def test_query_of_a_removed_warehouse_warns_that_rows_were_sent_to_it(
    results: str, capsys: pytest.CaptureFixture[str]
) -> None:
    query = ["query", "SELECT COUNT(*) AS n FROM cells", "--csv", "--results", results]
    assert main(query) == 0
    assert capsys.readouterr().err == ""
    main(["push", "--results", results, "--quiet"])
    shutil.rmtree(Path(results) / "warehouse")
    assert main(query) == 0
    captured = capsys.readouterr()
    assert captured.out.split() == ["n", "0"]
    assert captured.err == (
        "warning: the warehouse has no rows, but 6 attempts had been sent to it; send them again with: "
        f"uploader push --to local --results {results}\n"
    )


def test_dashboard_query_is_read_from_its_file(results: str, capsys: pytest.CaptureFixture[str]) -> None:
    main(["push", "--results", results, "--quiet"])
    given = [f"--set={one}" for one in ("workload=", "backend=jax", "since=2026-01-02")]
    command = ["query", "--file", str(ROOT / "dashboards" / "queries" / "runs.sql"), *given]
    assert main([*command, "--json", "--results", results]) == 0
    assert [json.loads(line)["day"] for line in capsys.readouterr().out.splitlines()] == ["2026-01-02"]


@pytest.mark.parametrize(
    ("assignment", "expected"),
    [
        ("value=12e4", "12e4"),
        ("value=0042", "0042"),
        ("value=a=b", "a=b"),
        ("value=", ""),
        ("value:int=42", 42),
        ("value:float=12e4", 120000.0),
        ("value:bool=True", True),
    ],
)
def test_parameter_is_a_string_unless_its_type_is_declared(
    results: str, capsys: pytest.CaptureFixture[str], assignment: str, expected: object
) -> None:
    command = ["query", "SELECT @value AS value", "--set", assignment, "--json", "--results", results]
    assert main(command) == 0
    assert json.loads(capsys.readouterr().out) == {"value": expected}


def test_invalid_first_day_is_rejected(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit, match="2"):
        main(["init", "--since", "yesterday"])
    assert "argument --since: must be a day such as 2026-01-31, got 'yesterday'" in capsys.readouterr().err


def test_since_bounds_the_views_that_a_query_reads(results: str, capsys: pytest.CaptureFixture[str]) -> None:
    main(["push", "--results", results, "--quiet"])
    sql = "WITH own AS (SELECT run_id FROM latest_findings) SELECT COUNT(*) AS n FROM own"
    for since, expected in (("2026-01-01", 2), ("2026-01-02", 1), ("2026-01-03", 0)):
        capsys.readouterr()
        assert main(["query", sql, "--set", f"since={since}", "--json", "--results", results]) == 0
        assert json.loads(capsys.readouterr().out) == {"n": expected}


def test_dry_run_of_a_local_query_is_free(results: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["query", "SELECT 1 AS one", "--dry-run", "--results", results]) == 0
    assert capsys.readouterr().out == "the local warehouse: reading is free\n"


AT_LIST_PRICE = (
    "at the list price of USD 6.25 per TiB (US, on demand, since 2023-07-05); the first TiB of a month is free"
)


class Measuring(FakeWarehouse):
    """A warehouse that only reports the bytes of a dry run."""

    def bytes_read(self, sql: str, parameters: Mapping[str, Scalar] | None = None) -> int | None:
        """Return 40 MiB."""
        return 40 << 20


@pytest.mark.parametrize(
    ("arguments", "expected"),
    [
        (
            ["SELECT run_id FROM cells WHERE day >= '2026-01-31'"],
            [
                "would read 41,943,040 bytes (40.0 MiB) of 1 tables",
                f"billed at most 40.0 MiB (at least 10 MiB per table): USD 0.00024 {AT_LIST_PRICE}",
            ],
        ),
        (
            ["SELECT c.run_id FROM cells AS c JOIN newest_cells USING (cell_id)", "--maximum-bytes-billed", "50000000"],
            [
                "would read 41,943,040 bytes (40.0 MiB) of 3 tables",
                f"billed at most 60.0 MiB (at least 10 MiB per table): USD 0.00036 {AT_LIST_PRICE}",
                "above --maximum-bytes-billed (47.7 MiB): the query would be rejected",
                "reads every day of cells: add a condition such as day >= '2026-01-31' to read less",
            ],
        ),
    ],
)
def test_dry_run_prints_bytes_and_price_without_running_the_query(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], arguments: list[str], expected: list[str]
) -> None:
    monkeypatch.setattr("keras_matrix.uploader.opening.open_warehouse", lambda *args: Measuring())
    assert main(["query", "--dry-run", "--to", BIGQUERY, *arguments]) == 0
    assert capsys.readouterr().out.splitlines() == expected


def test_query_prints_non_finite_numbers_as_bigquery_does(results: str, capsys: pytest.CaptureFixture[str]) -> None:
    main(["push", "--results", results, "--quiet"])
    sql = "SELECT CAST('nan' AS FLOAT64) AS a, CAST('-inf' AS FLOAT64) AS b, [CAST('inf' AS FLOAT64)] AS c, versions"
    assert main(["query", f"{sql} FROM cells LIMIT 1", "--json", "--results", results]) == 0
    found = json.loads(capsys.readouterr().out, parse_constant=pytest.fail)
    versions = {"jax": "0.10.0", "keras": "3.15.0"}
    assert found == {"a": "NaN", "b": "-Infinity", "c": ["Infinity"], "versions": versions}


def test_structs_and_arrays_are_json_in_csv_and_in_tables(results: str, capsys: pytest.CaptureFixture[str]) -> None:
    main(["push", "--results", results, "--quiet"])
    command = ["query", "SELECT versions, ['a'] AS b, 1 AS c FROM cells LIMIT 1", "--results", results]
    assert main([*command, "--csv"]) == 0
    [_, [versions, *rest]] = csv.reader(capsys.readouterr().out.splitlines())
    assert (json.loads(versions), rest) == ({"jax": "0.10.0", "keras": "3.15.0"}, ['["a"]', "1"])
    assert main(command) == 0
    assert '["a"]' in capsys.readouterr().out


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


def test_query_file_that_is_not_text_is_bad_input(
    results: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "query.sql").write_bytes(b"SELECT '\xff'")
    assert main(["query", "--file", str(tmp_path / "query.sql"), "--results", results]) == 2
    assert "query.sql: must be text in UTF-8, got an invalid byte at offset 8" in capsys.readouterr().err


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


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["push", "--to", "bigquery://P.d"], "--to: must be local"),
        (["push", "--to", "postgres://x"], "--to: must be local"),
        (["push", "--results", "absent"], "--results: must be a folder, got absent"),
        (["status", "--results", "absent"], "--results: must be a folder, got absent"),
        (["status", "--to", "postgres://x"], "--to: must be local"),
        (["query", "SELECT 1 AS x", "--results", "absent"], "--results: must be a folder, got absent"),
        (["verify", "--results", "run"], "--results: run is a run; name the folder above it: --results ."),
        (["query", "DROP TABLE cells"], "the query must be one SELECT"),
        (["query"], "SELECT: must be given, or --file"),
        (
            ["query", "SELECT 1 AS x", "--set", "y:int=x"],
            "--set: 'y:int=x': the value must have the declared type",
        ),
        (["query", "SELECT 1 AS x", "--set", "y:day=x"], "one of int, float or bool (true, false)"),
        (["query", "SELECT 1 AS x", "--set", "y"], "--set: must be NAME=VALUE or NAME:TYPE=VALUE, got 'y'"),
    ],
)
def test_invalid_arguments_exit_with_2_and_a_reason(
    arguments: list[str],
    message: str,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "results").mkdir()
    (tmp_path / "run" / "records").mkdir(parents=True)
    (tmp_path / "run" / "run.json").write_text("{}")
    assert main(arguments) == 2
    assert message in capsys.readouterr().err


def test_rows_set_aside_are_reported_with_exit_code_1(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    store_run(tmp_path, 0, count=1, reason="x" * (1 << 20))
    assert main(["push", "--results", str(tmp_path)]) == 1
    assert main(["status", "--results", str(tmp_path)]) == 1
    output = capsys.readouterr().out
    assert "1 row set aside" in output
    assert "bytes, more than 1,048,576" in output


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
    assert "uploader: the reason, and what to do" in capsys.readouterr().err
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


def test_status_reports_unsealed_attempts(
    results: str, fake: FakeWarehouse, capsys: pytest.CaptureFixture[str]
) -> None:
    fake.columns.clear()
    assert main(["push", "--to", BIGQUERY, "--results", results]) == 3
    capsys.readouterr()
    assert main(["status", "--to", BIGQUERY, "--results", results]) == 0
    assert "not sealed yet: 6 attempts; uploader push seals and sends them" in capsys.readouterr().out
    fake.create()
    assert main(["push", "--to", BIGQUERY, "--results", results, "--quiet"]) == 0
    assert main(["status", "--to", BIGQUERY, "--results", results]) == 0
    assert "not sealed" not in capsys.readouterr().out


def test_refused_row_exits_with_1_and_can_be_retried(
    results: str, fake: FakeWarehouse, capsys: pytest.CaptureFixture[str]
) -> None:
    fake.refuses = lambda row: "value: out of range" if row.get("metric") == "learning.loss" else None
    assert main(["push", "--to", BIGQUERY, "--results", results]) == 1
    assert "24 rows set aside: uploader status lists the reasons" in capsys.readouterr().out
    assert main(["status", "--to", BIGQUERY, "--results", results]) == 1
    output = capsys.readouterr().out
    assert output.count("value: out of range") == 20
    assert "and 4 more" in output
    fake.refuses = lambda row: None
    assert main(["push", "--to", BIGQUERY, "--results", results, "--retry-dead"]) == 0
    assert "tried again: 24 rows that had been set aside" in capsys.readouterr().out
    assert fake.count("measurements") == 96


@pytest.mark.fault("F38", mutation="a push does not compare the tables")
@pytest.mark.parametrize(
    ("spoil", "message"),
    [
        (lambda columns: columns.clear(), "create them with: uploader init --to"),
        (lambda columns: columns.pop("findings"), "findings: is missing"),
        (lambda columns: columns["cells"].pop("machine_os"), "add the missing columns with: uploader migrate --to"),
        (
            lambda columns: columns["cells"].update(batch_size=("STRING", "NULLABLE")),
            "cells.batch_size: is STRING, must be INT64\ncorrect the columns by hand",
        ),
    ],
)
def test_schema_mismatch_is_reported_before_anything_is_sealed_or_sent(
    results: str, fake: FakeWarehouse, spoil: Callable[[Any], object], message: str, capsys: pytest.CaptureFixture[str]
) -> None:
    spoil(fake.columns)
    assert main(["push", "--to", BIGQUERY, "--results", results]) == 3
    assert message in capsys.readouterr().err
    assert fake.batches == []
    assert list((Path(results) / "outbox").rglob("*.ndjson")) == []


@pytest.mark.fault("F38", mutation="migrate ignores wrong columns")
def test_migrate_reports_the_difference_and_adds_only_nullable_columns(
    fake: FakeWarehouse, capsys: pytest.CaptureFixture[str]
) -> None:
    del fake.columns["cells"]["machine_os"]
    before = json.dumps(fake.columns)
    assert main(["migrate", "--to", BIGQUERY, "--dry-run"]) == 1
    assert "cells.machine_os: is missing (STRING NULLABLE)" in capsys.readouterr().out
    assert json.dumps(fake.columns) == before
    assert main(["migrate", "--to", BIGQUERY]) == 0
    assert capsys.readouterr().out == "added cells.machine_os\n"
    assert main(["migrate", "--to", BIGQUERY]) == 0
    assert "the tables have the schema of this version" in capsys.readouterr().out
    fake.columns["runs"]["planned"] = ("STRING", "NULLABLE")
    assert main(["migrate", "--to", BIGQUERY]) == 3
    assert "runs.planned: is STRING, must be INT64" in capsys.readouterr().err
    del fake.columns["runs"], fake.columns["cells"]["machine_os"]
    assert main(["migrate", "--to", BIGQUERY]) == 3
    assert "runs: is missing\ncreate them with: uploader init --to" in capsys.readouterr().err
    assert "machine_os" not in fake.columns["cells"]


def test_migrate_replaces_the_views_except_in_a_dry_run(
    fake: FakeWarehouse, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(FakeWarehouse, "create", lambda self: ["view benchmarks", "view newest_cells"])
    assert main(["migrate", "--to", BIGQUERY, "--dry-run"]) == 0
    assert capsys.readouterr().out == "the tables have the schema of this version\n"
    assert main(["migrate", "--to", BIGQUERY]) == 0
    assert capsys.readouterr().out == (
        "the tables have the schema of this version\n"
        "replaced the views benchmarks, newest_cells, which read the last 400 days\n"
    )


def test_migrate_reports_the_tables_that_it_creates(
    fake: FakeWarehouse, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["init", "--to", BIGQUERY]) == 0
    monkeypatch.setattr(FakeWarehouse, "create", lambda self: ["table lease", "view benchmarks"])
    capsys.readouterr()
    assert main(["migrate", "--to", BIGQUERY]) == 0
    assert "created the table lease\n" in capsys.readouterr().out


def test_roles_of_an_append_only_dataset_do_not_include_a_staging_dataset() -> None:
    rights = minimum_roles("some-project", "data", append_only=True)
    assert rights.count("roles/bigquery.dataEditor") == 1
    assert "staging" not in rights


def test_init_prints_minimum_roles_limited_to_two_datasets(
    fake: FakeWarehouse, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["init", "--to", BIGQUERY]) == 0
    output = capsys.readouterr().out
    project = [line for line in output.splitlines() if "add-iam-policy-binding" in line]
    assert {line.rpartition("--role=")[2] for line in project} == {"roles/bigquery.jobUser"}
    assert "`roles/bigquery.dataEditor` ON SCHEMA `some-project`.data TO" in output
    assert "`roles/bigquery.dataEditor` ON SCHEMA `some-project`.data_staging TO" in output
    assert "`roles/bigquery.dataViewer` ON SCHEMA `some-project`.data TO" in output
    assert not re.search("owner|admin|editor --member", output, re.IGNORECASE)


@pytest.mark.fault("F24", mutation="a run that was left out does not change the exit code")
def test_record_of_a_newer_version_exits_with_1_and_other_runs_are_sent(
    results: str, capsys: pytest.CaptureFixture[str]
) -> None:
    path = sorted(Path(results).glob("2*/records/*.json"))[0]
    path.write_text(json.dumps(json.loads(path.read_text()) | {"schema_version": SCHEMA_VERSION + 1}))
    assert main(["push", "--results", results]) == 1
    output = capsys.readouterr().out
    assert f"skipped: {path}" in output
    assert "is newer than" in output
    assert main(["verify", "--results", results]) == 1
    assert "not compared: " in capsys.readouterr().out


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

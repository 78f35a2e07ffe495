"""What each command of `uploader` prints and refuses, as one golden transcript a command."""

from __future__ import annotations

import json
import re
import shutil
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import pytest

from keras_matrix.records.schema import SCHEMA_VERSION
from keras_matrix.records.store import Results
from keras_matrix.uploader.errors import NotAllowed, QuotaExceeded, SchemaMismatch, Unreachable
from keras_matrix.uploader.local.manifest import NAME
from keras_matrix.uploader.local.warehouse import LocalWarehouse
from keras_matrix.uploader.warehouse import Scalar
from tests.fakes.warehouse import FakeWarehouse
from tests.golden import Golden
from tests.messages import check_texts
from tests.sessions import run_name
from tests.transcripts import Transcript
from tests.uploader.stored import import_two_rows, results_with, store_run
from tests.uploader.test_conflicts import store_other
from tests.uploader.test_repair import cut, only_file

ROOT = Path(__file__).parent.parent.parent
BIGQUERY = "bigquery://some-project.data"
COLUMNS = "--map workload=name --map backend=lib --map value=seconds --map started_at=when"
IMPORT = f"import old.csv --metric times.step_time_s --source lab {COLUMNS}"


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The current folder, with two runs of one cell in `results`."""
    results_with(tmp_path / "results")
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("COLUMNS", "120")
    return tmp_path


@pytest.fixture
def shown(folder: Path, capsys: pytest.CaptureFixture[str]) -> Transcript:
    return Transcript(capsys)


@pytest.fixture
def fake(monkeypatch: pytest.MonkeyPatch) -> FakeWarehouse:
    """The warehouse at any BigQuery address: created, and empty."""
    made = FakeWarehouse()
    made.create()
    monkeypatch.setattr("keras_matrix.uploader.opening.open_warehouse", lambda address, results, options: made)
    return made


def lose_cells(folder: Path) -> None:
    """Remove the files of cells from the manifest."""
    path = folder / "results" / "warehouse" / NAME
    manifest = json.loads(path.read_text())
    path.write_text(json.dumps(manifest | {"tables": manifest["tables"] | {"cells": []}}))


@pytest.mark.fault("F24", mutation="a run that was left out does not change the exit code")
def test_push_to_the_local_warehouse(golden: Golden, shown: Transcript, folder: Path) -> None:
    run = sorted((folder / "results").glob("2*"))[0]
    record = sorted(run.glob("records/*.json"))[0]
    text = record.read_text()
    record.write_text(json.dumps(json.loads(text) | {"schema_version": SCHEMA_VERSION + 1}))
    shown.note("a newer version wrote a record of the first run")
    shown.upload("push", "verify")
    shown.note("this version wrote all of them")
    record.write_text(text)
    shown.upload("push", "push", "push --quiet")
    shown.note("a run was forgotten")
    shown.upload(f"push --forget {run.name}")
    shown.note("the warehouse was removed")
    shutil.rmtree(folder / "results" / "warehouse")
    shown.upload("push")
    lose_cells(folder)
    shown.note("the manifest has lost a file")
    shown.upload("push", "push --repair", "push --repair")
    golden.check("push.txt", shown.text)


def test_push_that_repairs(golden: Golden, shown: Transcript, folder: Path) -> None:
    """Damaged, missing, altered and imported rows: what each command says of them, and what a repair does."""
    import duckdb

    warehouse, results = folder / "results" / "warehouse", Results(folder / "results")
    shown.upload("push --quiet")
    path = only_file(warehouse, "measurements")
    good = path.read_bytes()
    shown.note("a file is cut")
    cut(path)
    store_run(results.root, 2, count=1)
    shown.upload("query 'SELECT COUNT(*) AS n FROM measurements'", "verify", "push", "push --repair", "verify --values")
    shown.note("the file that was set aside is whole again")
    (warehouse / "damaged" / "measurements" / path.name).write_bytes(good)
    shown.upload("push --repair")
    shown.note("the manifest is damaged")
    (warehouse / NAME).write_text("{")
    shown.upload("query 'SELECT 1 AS one'", "verify", "push", "push --repair")
    shown.note("the manifest is missing")
    (warehouse / NAME).unlink()
    store_run(results.root, 3, count=1)
    shown.upload("push", "push --repair")
    shown.note("the file of two attempts that were imported is cut")
    import_two_rows(results, folder)
    for path in (warehouse / "cells").glob("*.parquet"):
        if duckdb.sql(f"SELECT 1 FROM '{path}' WHERE source = 'lab'").fetchall():
            cut(path)
    shown.upload("push --repair")
    shown.note("rows were altered and doubled")
    [path, *_] = sorted((warehouse / "cells").glob("*.parquet"))
    original = path.rename(folder / "original.parquet")
    altered = f"SELECT * REPLACE (row_hash + 1 AS row_hash) FROM '{original}'"
    duckdb.sql(f"COPY ({altered} UNION ALL SELECT * FROM '{original}') TO '{path}'")
    shown.upload("verify", "push --repair")
    shown.note("the folder of the records cannot be listed")
    records = results.runs()[0].folder / "records"
    shutil.rmtree(records)
    records.symlink_to(records)
    shown.upload("verify", "push")
    text = re.sub(r"cannot be read: .*?(?=; set aside|$)", "cannot be read: ...", shown.text, flags=re.MULTILINE)
    golden.check("push_repair.txt", text)  # DuckDB says why a file cannot be read


@pytest.mark.fault("F38", mutation="a push does not compare the tables")
def test_push_of_a_run_with_other_values(
    golden: Golden, shown: Transcript, folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Mutation: `_merge` does not compare the rows that the warehouse already has."""
    shared = "local:results/warehouse"
    shutil.copytree(folder / "results", folder / "copy", symlinks=True)
    store_other(results_with(folder / "other", runs=1))
    store_other(results_with(folder / "others", runs=2))
    shown.upload("push --quiet")
    shown.note("the folder was copied to another host")
    shown.upload(f"push --results copy --to {shared}")
    shown.note("another host has a run of the same name, with another peak of memory")
    shown.upload(f"push --results other --to {shared}", f"push --results other --to {shared}")
    shown.upload(f"status --results other --to {shared}", f"verify --results other --from {shared}")
    shown.upload("push", "verify")
    shutil.rmtree(folder / "results" / "warehouse")
    shutil.rmtree(folder / "copy" / "outbox")
    (folder / "copy" / run_name(1)).rename(folder / "later")
    shown.upload(f"push --results copy --to {shared} --quiet")
    shown.note("a third host has a further run, whose rows arrive in the same batch")
    shown.upload(f"push --results others --to {shared}")

    def fails(*arguments: object) -> object:
        raise QuotaExceeded("more than 10 GiB would be read")

    monkeypatch.setattr(LocalWarehouse, "row_hashes", fails)
    shown.note("the rows that were already there cannot be read")
    shown.upload(f"push --results {results_with(folder / 'last', runs=1).root.name} --to {shared} --quiet")
    golden.check("push_other_values.txt", shown.text)


def test_push_to_bigquery(golden: Golden, shown: Transcript, folder: Path, fake: FakeWarehouse) -> None:
    columns = json.dumps(fake.columns)
    spoils: Mapping[str, Callable[[Any], object]] = {
        "the dataset was not created": lambda columns: columns.clear(),
        "a table is missing": lambda columns: columns.pop("findings"),
        "a column is missing": lambda columns: columns["cells"].pop("machine_os"),
        "a column has another type": lambda columns: columns["cells"].update(batch_size=("STRING", "NULLABLE")),
    }
    for note, spoil in spoils.items():
        spoil(fake.columns)
        shown.note(note)
        shown.upload(f"push --to {BIGQUERY}")
        fake.columns = json.loads(columns)
    assert fake.batches == []
    assert list((folder / "results" / "outbox").rglob("*.ndjson")) == []
    for kind in (Unreachable, QuotaExceeded, NotAllowed, SchemaMismatch):
        fake.failures = [(kind("the reason, and what to do"), False)]
        shown.note(f"the warehouse answers {kind.__name__}")
        shown.upload(f"push --to {BIGQUERY}")
    fake.refuses = lambda row: "value: out of range" if row.get("metric") == "learning.loss" else None
    shown.note("the warehouse refuses the values of the loss")
    shown.upload(f"push --to {BIGQUERY}", f"status --to {BIGQUERY}")
    fake.refuses = lambda row: None
    shown.note("the warehouse takes them")
    shown.upload(f"push --to {BIGQUERY} --retry-dead")
    assert fake.count("measurements") == 96
    golden.check("push_to_bigquery.txt", shown.text)


def test_status(golden: Golden, shown: Transcript, folder: Path, fake: FakeWarehouse) -> None:
    columns, fake.columns = fake.columns, {}
    shown.note("the dataset was not created, so that nothing was sealed")
    shown.upload(f"push --to {BIGQUERY}", f"status --to {BIGQUERY}")
    fake.columns, fake.failures = columns, [None, (Unreachable("no response"), False)]
    shown.note("the connection was lost")
    shown.upload(f"push --to {BIGQUERY}", f"status --to {BIGQUERY}", f"status --to {BIGQUERY} --json")
    shown.note("it is back")
    shown.upload(f"push --to {BIGQUERY} --quiet", f"status --to {BIGQUERY}")
    store_run(folder / "results", 2, count=1, reason="x" * (1 << 20))
    shown.note("a row is longer than a warehouse takes")
    shown.upload(f"push --to {BIGQUERY}", f"status --to {BIGQUERY}", f"status --to {BIGQUERY} --json")
    golden.check("status.txt", shown.text)


def test_verify(golden: Golden, shown: Transcript, folder: Path) -> None:
    shown.upload("verify", "push --quiet", "verify", "verify --values")
    lose_cells(folder)
    shown.note("the manifest has lost a file")
    shown.upload("verify")
    shown.note("there is no run")
    (folder / "other").mkdir()
    shown.upload("verify --results other")
    golden.check("verify.txt", shown.text)


class Measuring(FakeWarehouse):
    """A warehouse that only reports the bytes of a dry run."""

    def bytes_read(self, sql: str, parameters: Mapping[str, Scalar] | None = None) -> int | None:
        """Return 40 MiB."""
        return 40 << 20


def test_query(golden: Golden, shown: Transcript, folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    count = "query 'SELECT COUNT(*) AS n FROM cells' --csv"
    shown.upload(count, "push --quiet")
    shown.upload("query 'SELECT 1 AS one, NULL AS two'", "query 'SELECT day FROM runs ORDER BY day' --json")
    grouped = "SELECT backend, COUNT(*) AS attempts FROM cells WHERE repeat < @most GROUP BY backend"
    shown.upload(f"query '{grouped}' --set most:int=2 --csv")
    for value in ("=12e4", "=0042", "=a=b", "=", ":int=42", ":float=12e4", ":bool=True"):
        shown.upload(f"query 'SELECT @value AS value' --set value{value} --json")
    structs = 'versions, ["a"] AS b, 1 AS c FROM cells LIMIT 1'
    shown.upload(f"query 'SELECT {structs}'", f"query 'SELECT {structs}' --csv")
    numbers = 'CAST("nan" AS FLOAT64) AS a, CAST("-inf" AS FLOAT64) AS b, [CAST("inf" AS FLOAT64)] AS c'
    shown.upload(f"query 'SELECT {numbers}' --json")
    shown.note("a query of the dashboards")
    shutil.copy(ROOT / "dashboards" / "queries" / "runs.sql", folder)
    shown.upload("query --file runs.sql --set workload= --set backend=jax --set since=2026-01-02 --json")
    shown.note("@since is the first day that the views read")
    for day in ("01", "02", "03"):
        own = "WITH own AS (SELECT run_id FROM latest_findings) SELECT COUNT(*) AS n FROM own"
        shown.upload(f"query '{own}' --set since=2026-01-{day} --json")
    shown.upload("query 'SELECT 1 AS one' --dry-run")
    shown.note("the warehouse was removed")
    shutil.rmtree(folder / "results" / "warehouse")
    shown.upload(count)
    (folder / "query.sql").write_bytes(b"SELECT '\xff'")
    shown.upload("query --file query.sql", "query --file none.sql")
    monkeypatch.setattr("keras_matrix.uploader.opening.open_warehouse", lambda *args: Measuring())
    bounded = 'SELECT run_id FROM cells WHERE day >= "2026-01-31"'
    joined = "SELECT c.run_id FROM cells AS c JOIN newest_cells USING (cell_id)"
    shown.note("on BigQuery, where reading is billed")
    shown.upload(f"query --dry-run --from {BIGQUERY} '{bounded}'")
    shown.upload(f"query --dry-run --from {BIGQUERY} '{joined}' --maximum-bytes-billed 50000000")
    golden.check("query.txt", shown.text)


def test_init(golden: Golden, shown: Transcript, fake: FakeWarehouse) -> None:
    fake.columns.clear()
    shown.upload(f"init --to {BIGQUERY}", f"init --to {BIGQUERY}")
    fake.first_day = "2026-01-02"
    shown.note("the dataset's partitions expire")
    shown.upload(f"init --to {BIGQUERY} --since 2020-02-29")
    golden.check("init.txt", shown.text)


@pytest.mark.fault("F38", mutation="migrate ignores wrong columns")
def test_migrate(golden: Golden, shown: Transcript, fake: FakeWarehouse, monkeypatch: pytest.MonkeyPatch) -> None:
    del fake.columns["cells"]["machine_os"]
    before = json.dumps(fake.columns)
    shown.note("a column is missing")
    shown.upload(f"migrate --to {BIGQUERY} --dry-run")
    assert json.dumps(fake.columns) == before
    shown.upload(f"migrate --to {BIGQUERY}", f"migrate --to {BIGQUERY}")
    fake.columns["runs"]["planned"] = ("STRING", "NULLABLE")
    shown.note("a column has another type")
    shown.upload(f"migrate --to {BIGQUERY}")
    del fake.columns["runs"], fake.columns["cells"]["machine_os"]
    shown.note("a table is missing")
    shown.upload(f"migrate --to {BIGQUERY}")
    assert "machine_os" not in fake.columns["cells"]
    fake.create()
    FakeWarehouse.create(fake)
    fake.columns["cells"]["machine_os"] = ("STRING", "NULLABLE")
    monkeypatch.setattr(FakeWarehouse, "create", lambda self: ["table lease", "view benchmarks", "view newest_cells"])
    shown.note("a table without rows and views are missing")
    shown.upload(f"migrate --to {BIGQUERY} --dry-run", f"migrate --to {BIGQUERY}")
    golden.check("migrate.txt", shown.text)


def test_import(golden: Golden, shown: Transcript, folder: Path, fake: FakeWarehouse) -> None:
    (folder / "old.csv").write_text(
        "name,lib,seconds,when\nmlp,theano,1.5,2017-10-02\nmlp,cntk,2,2017-06-01\n" + "mlp,cntk,x,2017-10-02\n" * 22
    )
    shown.upload(f"{IMPORT} --dry-run")
    fake.columns.clear()
    shown.note("the dataset was not created")
    shown.upload(f"{IMPORT} --to {BIGQUERY}")
    assert fake.batches == []
    fake.create()
    fake.refuses = lambda row: "no" if row.get("value") == 2.0 else None
    shown.note("the warehouse refuses a row")
    shown.upload(f"{IMPORT} --to {BIGQUERY}", f"{IMPORT} --to {BIGQUERY}")
    assert {name: fake.count(name) for name in fake.rows} == {"runs": 2, "cells": 2, "measurements": 1, "findings": 0}
    golden.check("import.txt", shown.text)


FILES: Mapping[str, bytes] = {
    "utf16.csv": b"\xff\xfe,x\n1,2\n",
    "cut.csv": b'a,"b\n',
    "empty.csv": b"",
    "doubled.csv": b"x,y,x\n1,2,3\n",
    "one.csv": b"x\n1\n",
}


def test_every_wrong_argument_has_its_message(golden: Golden, shown: Transcript, folder: Path) -> None:
    (folder / "run" / "records").mkdir(parents=True)
    (folder / "run" / "run.json").write_text("{}")
    for name, content in FILES.items():
        (folder / name).write_bytes(content)

    def messages_of(text: str) -> list[str]:
        begin = len(shown.text)
        shown.upload(text.strip())
        *_, printed = shown.text[begin:].partition(f"$ uploader {text.strip()}\n")
        assert printed.endswith("exit code 2\n")
        lines = printed.removesuffix("exit code 2\n").splitlines()
        return [line.removeprefix("! ") for line in lines if not line.startswith(("! usage: ", "!      "))]

    check_texts(golden, "refused.txt", messages_of)

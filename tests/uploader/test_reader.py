"""The independent reader agrees with a correct warehouse and finds every kind of difference."""

from __future__ import annotations

import ast
import json
from pathlib import Path

import duckdb
import pytest

from keras_matrix.records.findings import keep
from keras_matrix.records.instruments.usage import MemoryUse, Usage
from keras_matrix.records.schema import Learning
from keras_matrix.records.store import Run
from keras_matrix.records.task import Metric, TaskRun
from keras_matrix.uploader.cli.main import main
from keras_matrix.uploader.schema import TABLES
from tests.conftest import make_record, make_settings
from tests.sessions import run_name, store_session
from tests.synthetic_devices import replicas_of
from tests.uploader.reader import compare as comparing
from tests.uploader.reader.actual import local_rows
from tests.uploader.reader.compare import Comparison, compare
from tests.uploader.reader.expected import expected_rows
from tests.uploader.reader.tables import Column, documented, normal
from tests.uploader.stored import found, results_with

PAIRED = "a\x00'; DROP TABLE cells; -- \"`$1@x%s{}\\\u2028\x85\t\U0001f4a9"  # a name, without half of a surrogate pair
HOSTILE = "a\x00HALF'; DROP TABLE cells; -- \"`$1@x%s{}\\\u2028\x85\t\U0001f4a9"


def pushed(root: Path) -> Path:
    """Push a results folder into its local warehouse and return the warehouse's folder."""
    assert main(["push", "--results", str(root), "--quiet"]) == 0
    return root / "warehouse"


def compared(root: Path) -> Comparison:
    return compare(expected_rows([root]), local_rows(root / "warehouse"))


@pytest.fixture
def root(tmp_path: Path) -> Path:
    """A results folder of two runs, pushed."""
    folder = results_with(tmp_path / "results").root
    pushed(folder)
    return folder


def rewrite(root: Path, table: str, select: str) -> None:
    """Replace the single Parquet file of a table by the result of a query, in which it is called `old`."""
    [path] = (root / "warehouse" / table).glob("*.parquet")
    rows = f"WITH old AS MATERIALIZED (SELECT * FROM '{path}') {select}"
    with duckdb.connect(":memory:") as engine:
        engine.execute(f"CREATE TABLE new AS {rows}")
        engine.execute(f"COPY new TO '{path}' (FORMAT parquet)")


def test_reader_uses_only_the_documented_tables_of_the_program() -> None:
    folder = Path(comparing.__file__).parent
    modules = sorted(folder.glob("*.py"))
    names = set()
    for path in modules:
        for node in ast.walk(ast.parse(path.read_text())):
            if isinstance(node, ast.Import):
                names |= {alias.name for alias in node.names}
            elif isinstance(node, ast.ImportFrom):
                names |= {f"{node.module}.{alias.name}" for alias in node.names}
    assert len(modules) == 4
    assert [name for name in names if name.startswith("keras_matrix")] == ["keras_matrix.uploader.bigquery.ddl.page"]
    assert [name for name in names if name.startswith("tests") and not name.startswith("tests.uploader.reader")] == []


def test_page_of_the_schema_describes_every_column_of_every_table() -> None:
    assert [(table.name, [column.name for column in table.columns], table.key) for table in documented()] == [
        (table.name, [one.name for one in table.columns if one.name != "row_hash"], table.key) for table in TABLES
    ]


def test_reader_agrees_with_a_pushed_folder(root: Path) -> None:
    assert compared(root) == Comparison(106, (), (), (), ())


def test_reader_agrees_where_every_group_of_a_record_is_filled(tmp_path: Path) -> None:
    usage = Usage(2.5, 0.1, "processes", "usage/a.json", MemoryUse(2.0, 0.0, 3, 1, 4), None, [5, None])
    metrics = [Metric("speed_s", 3.5, "samples/s"), Metric("loss", 1), Metric("lost", None, problem="no_match")]
    records = [
        make_record(
            0.01,
            repeat,
            usage=usage,
            task=TaskRun(HOSTILE, ["true", HOSTILE], "speed", metrics, log_bytes=7),
            learning=Learning([1.0, None], {HOSTILE: [0.5, None, 1], "val_s": [2]}),
            settings=make_settings(
                workload=PAIRED, params={PAIRED: PAIRED, "n": 1, "f": 0.5}, jit=jit, threads=2, devices=2
            ),
            replicas=replicas_of("torch", 2, semantics=[HOSTILE, "second"]),
            reason=HOSTILE,
            warnings=[HOSTILE, "second"],
        )
        for repeat, jit in enumerate((True, "auto"))
    ]
    root = tmp_path / "results"
    machine = {"host_id": "0" * 16, "cpu_model": "a CPU", "logical_cpus": 2, "gpus": ["one", "two"]}
    folder = store_session(
        root,
        run_name(0),
        records,
        started_at="2026-01-01T04:00:00+02:00",
        matrix_path="/home/someone/matrix.yaml",
        arm="slower",
        arms={"slower": {"fault": "slower:0.2"}},
        versions={"keras": "3.15.0"},
        planned=2,
        machine=machine,
    )
    for path in (folder / "records").iterdir():  # JSON may contain a lone surrogate, as an escape
        path.write_text(path.read_text().replace("HALF", "\\ud800"))
    keep(Run(folder), [found("0" * 16, facts={"a": "b"}, said=HOSTILE)])
    pushed(root)
    assert compared(root).differences == ()


@pytest.mark.parametrize(
    ("table", "select", "line"),
    [
        ("runs", "SELECT * FROM old WHERE run_id NOT LIKE '20260101%'", "lost: runs "),
        ("cells", "SELECT * FROM old WHERE repeat <> 1 OR run_id LIKE '20260101%'", "lost: cells "),
        ("measurements", "SELECT * FROM old QUALIFY row_number() OVER () > 1", "lost: measurements "),
        ("findings", "SELECT * FROM old LIMIT 1", "lost: findings "),
        ("cells", "FROM old UNION ALL (FROM old LIMIT 1)", "doubled: cells "),
        ("measurements", "FROM old UNION ALL (FROM old WHERE step IS NULL LIMIT 1)", "doubled: measurements "),
    ],
)
def test_deleted_or_duplicated_row_is_reported(root: Path, table: str, select: str, line: str) -> None:
    rewrite(root, table, select)
    [difference] = compared(root).differences
    assert difference.startswith(line)


@pytest.mark.parametrize(
    ("table", "change", "line"),
    [
        ("runs", "planned + 1 AS planned", "planned is 4, the files say 3"),
        ("cells", "'tensorflow' AS backend", "backend is 'tensorflow', the files say 'jax'"),
        ("cells", "NULL AS evidence_exit_code", "evidence_exit_code is None, the files say 0"),
        ("cells", "started_at + INTERVAL 1 SECOND AS started_at", "started_at is "),
        ("measurements", "value * (1 + 1e-15) AS value", "value is "),
        ("findings", "'{\"a\": 1}'::JSON AS facts", "facts is {'a': 1}, the files say None"),
    ],
)
def test_a_value_that_was_altered_is_reported_with_both_values(root: Path, table: str, change: str, line: str) -> None:
    one = "row_number() OVER () = 1"
    column = change.rpartition(" AS ")[2]
    numbered = f"SELECT * EXCLUDE (place) FROM (SELECT *, {one} AS place FROM old)"
    select = f"{numbered} WHERE NOT place UNION ALL BY NAME (SELECT * REPLACE ({change}) FROM ({numbered} WHERE place))"
    rewrite(root, table, select)
    [difference] = compared(root).differences
    assert difference.startswith(f"altered: {table} ")
    assert line in difference
    assert difference.count(column) == 1


def test_row_without_a_source_file_is_reported(root: Path) -> None:
    rewrite(root, "runs", "FROM old UNION ALL (SELECT * REPLACE ('other' AS run_id) FROM old LIMIT 1)")
    assert compared(root).differences == ("foreign: runs ('other',)",)


def test_manifest_without_a_file_loses_its_rows(root: Path) -> None:
    path = root / "warehouse" / "manifest.json"
    manifest = json.loads(path.read_text())
    manifest["tables"]["cells"] = []
    path.write_text(json.dumps(manifest))
    assert len(compared(root).lost) == 6


@pytest.mark.parametrize("value", [None, [], {}])
def test_empty_values_are_null(value: object) -> None:
    assert normal(Column("a", "JSON", False), value) is None

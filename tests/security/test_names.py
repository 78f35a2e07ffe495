"""Names given by users become identifiers only in one narrow form; any other name becomes a bound value or a hash.

The narrow form is `^[a-z][a-z0-9_]{0,31}$`: parameters, and axes of tasks. Workloads, tasks, sections, machines, hosts,
titles and values of parameters are free texts: no path and no statement contains them.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, example, given, settings
from hypothesis import strategies as st

from keras_matrix.dashboards.live import page
from keras_matrix.dashboards.live.questions import DashboardFilter, questions
from keras_matrix.records import identity, replicas
from keras_matrix.records.codec import canonical
from keras_matrix.records.identity import cell_id
from keras_matrix.records.instruments import influence, parity, work
from keras_matrix.records.instruments.influence import Influence
from keras_matrix.records.instruments.parity import ParityRecord
from keras_matrix.records.instruments.work import Work
from keras_matrix.records.replicas import ReplicaProof
from keras_matrix.runner.cli.main import main
from keras_matrix.runner.matrix import grammar
from keras_matrix.runner.matrix import task_rules as rules
from keras_matrix.runner.measure import tensorboard
from keras_matrix.runner.measure.seams import Seams
from keras_matrix.uploader.bigquery import ddl
from keras_matrix.uploader.local import parquet
from keras_matrix.uploader.local.warehouse import LocalWarehouse
from keras_matrix.uploader.outbox import Batch, Outbox
from keras_matrix.uploader.push import push
from keras_matrix.uploader.verify import verify
from keras_matrix.uploader.warehouse import outbox_folder
from tests.conftest import MACHINE, make_record, make_settings
from tests.fakes.executor import FakeExecutor
from tests.fakes.warehouse import FakeWarehouse
from tests.uploader.stored import results_with, store_run

IDENTIFIER = re.compile(r"[a-z][a-z0-9_]{0,31}", re.ASCII)
# For paths, SQL, shells, templates, markup and terminals; look-alikes, and what a file system treats specially.
HOSTILE = (
    "../../../etc/passwd", "/etc/passwd", "a/../../b", "..", ".", "-rf", "~", "CON", "a\0b", "a\n", "a\rb", "\x1b[2J",
    "'", '"', "`", "'; DROP TABLE cells; --", "') OR ('1'='1", "{{ 7*7 }}", "$(touch x)", "`touch x`", "a;b", "%s%n",
    "<script>alert(1)</script>", "раypal", "ﬁt", "a\u202eb", "\ud800", "a" * 300, "", " ",
)  # fmt: skip
HASH = r"[0-9a-f]{16,64}"
texts = st.one_of(st.sampled_from(HOSTILE), st.text(max_size=80))


@pytest.mark.fault("F33", mutation="NAME of the matrix grammar permits a hyphen, or is not ASCII")
@settings(max_examples=50)
@given(name=st.one_of(texts, st.from_regex(IDENTIFIER, fullmatch=True)))
@example("a\n")
@example("a-b")
@example("a/b")
@example("aé")
@example("a" * 32)
@example("a" * 33)
def test_names_of_parameters_and_axes_have_the_form_of_an_identifier(name: str) -> None:
    expected = IDENTIFIER.fullmatch(name) is not None
    assert (grammar.NAME.fullmatch(name) is not None) is expected
    assert (rules.AXIS_NAME.fullmatch(name) is not None) is expected


@pytest.mark.fault("F33", mutation="`folder_of` of TensorBoard's files, or `record_path`, uses a name as it is")
@settings(suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(name=texts, value=texts)
def test_every_path_derived_from_a_cell_stays_inside_its_folder(tmp_path: Path, name: str, value: str) -> None:
    named = make_settings(workload=name, backend="torch", params={"value": value})
    record = make_record(settings=named, machine=replace(MACHINE, host_id=name))
    argument = name.replace("\0", "").encode(errors="ignore").decode()
    compared = ParityRecord(1, name, {"value": value}, 8, 2, 0, "2026-01-01T00:00:00+00:00")
    paths = [
        tmp_path / "{}.{}.{}.json".format(*record.key),
        tmp_path / tensorboard.folder_of(record),
        parity.record_path(tmp_path, compared),
        work._path(tmp_path, canonical([name, value]), name),
        outbox_folder(f"local:{tmp_path}/x{argument}", tmp_path),
    ]
    for path in paths:
        parts = path.relative_to(tmp_path).parts
        assert ".." not in parts, path
        assert re.fullmatch(r"[A-Za-z0-9_.:=-]+", "".join(parts), re.ASCII), path
        assert max(map(len, parts)) < 255 - len(".tmp") - 40, path
    assert identity.CELL_ID.fullmatch(cell_id(named))


@pytest.mark.fault("F33", mutation="`influence.keep` names its file after the host as it is")
@pytest.mark.parametrize("name", HOSTILE)
def test_stored_instruments_are_written_into_their_folder_whatever_the_names(tmp_path: Path, name: str) -> None:
    results = tmp_path / "above" / "results"
    results.mkdir(parents=True)
    parity.save(results, ParityRecord(1, name, {"value": name}, 8, 2, 0, name))
    replicas.save_proof(results, ReplicaProof(1, name, {"value": name}, 8, 2, 0, 2))
    work.keep(results, name, name, Work(name, {"value": name}, 1))
    influence.keep(results, [Influence(name, "cpu", 2, name, "jax", name, 1.0)])
    written = [path.relative_to(results) for path in tmp_path.rglob("*") if path.is_file()]
    assert sorted(str(path.parent) for path in written) == ["influence", "parity", "parity/devices", "work"]


def matrix(names: tuple[str, ...]) -> str:
    """Return a matrix with these texts wherever one is accepted: names of tasks and metrics, values, units."""
    tasks = [
        f"  - task: {name!r}\n    command: [x, '{{value}}']\n    params: {{value: [{name!r}, b]}}\n"
        f"    metrics: {{{name!r}: {{pattern: 'a (.)', unit: {name!r}}}}}\n"
        for name in names
    ]
    return "version: 1\ndefaults: {repeats: 1}\ntasks:\n" + "".join(tasks)


@pytest.mark.process
@pytest.mark.fault("F33", mutation="the folder of a task's outputs is named after the task")
def test_a_run_with_hostile_names_writes_only_into_its_folders(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """From the plan to the site: those names that the grammar of tasks accepts, with dots, slashes and signs."""
    project = tmp_path / "above" / "project"
    project.mkdir(parents=True)
    monkeypatch.chdir(project)
    monkeypatch.setenv("KERAS_BENCHMARK_HOST", "../../../host")
    names = ("a/../../../../escaped", "a/../..", "a.", "a %s %n", "CON", "a" * 64)
    assert [name for name in names if not rules.NAME.fullmatch(name)] == []
    (project / "matrix.yaml").write_text(matrix(names))
    assert main(["--log-dir", "tensorboard", "--upload", "local"], Seams(executor=FakeExecutor())) == 0
    assert main(["report", "--publish", "site"], Seams()) == 0
    assert {path.name for path in tmp_path.iterdir()} == {"above"}
    assert {path.name for path in project.parent.iterdir()} == {"project"}
    assert {path.name for path in project.iterdir()} == {"matrix.yaml", "results", "site", "tensorboard"}
    outside = [path for path in project.rglob("*") if not path.resolve().is_relative_to(project)]
    assert outside == []


class Spy:
    """A connection of DuckDB that notes the statements it gets."""

    def __init__(self, connection: Any, statements: list[str]) -> None:
        self._connection, self._statements = connection, statements

    def execute(self, sql: str, *parameters: Any) -> Any:
        self._statements.append(sql)
        return self._connection.execute(sql, *parameters)

    def __enter__(self) -> Spy:
        return self

    def __exit__(self, *what: object) -> None:
        self._connection.close()

    def __getattr__(self, name: str) -> Any:
        return getattr(self._connection, name)


@contextmanager
def noted() -> Iterator[list[str]]:
    """Note the statements to all engines of the local warehouse."""
    engine, statements = parquet.engine, list[str]()
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(parquet, "engine", lambda only_in=None: Spy(engine(only_in), statements))
        yield statements


def named_record(name: str) -> dict[str, Any]:
    """Return the changes of a record that has this text wherever one is possible."""
    machine = replace(MACHINE, host_id=name, cpu_model=name, gpus=[name], kernel=name, machine_type=name)
    return {
        "settings": make_settings(workload=name, params={"value": name}),
        "machine": machine,
        "versions": {"keras": name, "jax": name},
        "reason": name,
        "warnings": [f"{name}: {name}"],
    }


def statements(folder: Path, name: str) -> list[str]:
    """Return what a push, a check and every question of the dashboard send to DuckDB, without paths and hashes."""
    results = results_with(folder / "results", runs=0)
    store_run(results.root, 0, **named_record(name))
    with noted() as sent:
        warehouse = LocalWarehouse(results.root / "warehouse")
        warehouse.create()
        push(results, warehouse, Outbox(results.root / "outbox"))
        verify(results, warehouse, values=True)
        page.panels_of(warehouse, questions().values(), DashboardFilter(name, name, cell=name))
        warehouse.close()
    return [re.sub(HASH, "HASH", one.replace(str(folder), "FOLDER")) for one in sent]


@pytest.mark.process
@pytest.mark.fault("F33", mutation="`answer` of the dashboard's questions formats the choice into the query")
@pytest.mark.parametrize("name", ["'; DROP TABLE cells; --", "`a` = `b`", "$run @run ?"])
def test_statements_to_duckdb_are_the_same_whatever_the_names(tmp_path: Path, name: str) -> None:
    plain, hostile = statements(tmp_path / "a", "plain"), statements(tmp_path / "b", name)
    assert len(plain) > 30
    assert hostile == plain


class Statements(FakeWarehouse):
    """A fake warehouse that notes the statements with which BigQuery would get each batch."""

    def merge(self, batch: Batch) -> int:
        """Note them, without the batch's own name, which is a hash."""
        writing = ddl.insert_missing("p.d", batch, "p.d.staging", "2026-01-01")
        reading = ddl.existing_keys("p.d", batch)
        self.batches += [re.sub(HASH, "HASH", one) for one in (writing, reading)]
        return len(list(batch.lines()))


@pytest.mark.fault("F33", mutation="`insert_missing` begins with a comment that contains the first row")
@pytest.mark.parametrize("name", [name for name in HOSTILE if name != "\ud800"])
def test_statements_to_bigquery_are_the_same_whatever_the_names(tmp_path: Path, name: str) -> None:
    found = []
    for folder, text in ((tmp_path / "a", "plain"), (tmp_path / "b", name)):
        results = results_with(folder / "results", runs=0)
        store_run(results.root, 0, **named_record(text))
        warehouse = Statements()
        push(results, warehouse, Outbox(folder / "outbox"))
        found.append(warehouse.batches)
    assert len(found[0]) == 8  # two for each table
    assert found[0] == found[1]

"""Files for what-ifs that are refused: stored graphs, timed collectives, cost models and settings."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from pathlib import Path

import pytest

from keras_matrix.analysis.whatif.graph import GraphError
from keras_matrix.records.codec import dumps
from keras_matrix.runner.errors import UsageError
from keras_matrix.runner.whatif import cost_data, source
from keras_matrix.runner.whatif.strategy_file import checked_changes
from tests.analysis.whatif.cost.fake_machine import FASTER, graph, usual_model
from tests.conftest import make_record
from tests.golden import Golden
from tests.messages import check_messages, refusal
from tests.runner.whatif.graphs import two_workers
from tests.runner.whatif.test_cost_data import collect, run_of, traced
from tests.runner.whatif.test_strategy_file import FC, cells

Case = Callable[[Path], object]


def another_graph(folder: Path) -> object:
    first = source.write(two_workers(), folder / "a")
    second = source.write(two_workers(forward_ns=3_000_000), folder / "b")
    return source.read([first[0], second[1]])


def another_parquet_file(folder: Path) -> object:
    import duckdb

    with duckdb.connect(":memory:") as connection:
        connection.execute(f"COPY (SELECT 1 AS a) TO '{folder}/rank0.parquet' (FORMAT parquet)")
    return source.read([folder / "rank0.parquet"])


def times(text: str) -> Case:
    def case(folder: Path) -> object:
        (folder / "times.json").write_text(text)
        return source.of_file(folder / "times.json")

    return case


def without_a_file(folder: Path) -> object:
    run = run_of(folder, traced())
    (run.folder / "traces" / "0" / "rank0.parquet").unlink()
    return collect(folder)


def without_a_trace(folder: Path) -> object:
    run_of(folder).publish(make_record())
    return collect(folder)


def model(folder: Path) -> Path:
    (folder / "model.json").write_text(dumps(usual_model()))
    return folder / "model.json"


def damaged_model(folder: Path) -> object:
    path = model(folder)
    path.write_text(path.read_text()[:1])  # the length of its numbers depends on the version of NumPy
    return cost_data.read(path)


def changed(text: str, **changes: float | str) -> Case:
    return lambda folder: checked_changes(cells(text)[0], changes)


ON_JAX = FC.replace("torch", "jax").replace(", network: 200mbit", "")
CASES: Mapping[str, Case] = {
    "a graph without the file of a rank": lambda folder: source.read(source.write(two_workers(), folder)[:1]),
    "files of two graphs": another_graph,
    "another file in Parquet": another_parquet_file,
    "two folders": lambda folder: source.files_of([folder, folder]),
    "an empty folder": lambda folder: source.files_of([folder]),
    "a missing file of times": lambda folder: source.of_file(folder / "times.json"),
    "times that are no list": times('{"a": 1}'),
    "no times": times("[]"),
    "a time without its size": times('[{"operation": "all_reduce", "ranks": 2, "seconds": 0.1}]'),
    "times of one size": times('[{"operation": "all_reduce", "ranks": 2, "bytes": 8, "seconds": 0.1}]'),
    "a run whose trace has no file": without_a_file,
    "a run without a trace": without_a_trace,
    "a missing cost model": lambda folder: cost_data.read(folder / "model.json"),
    "a cost model that is damaged": damaged_model,
    "a cost model for a device without peaks": lambda folder: cost_data.applied(
        model(folder), graph(FASTER).header, None
    ),
    "a setting that there is not": changed(FC, bucket="3,5,5"),
    "a setting that its backend does not have": changed(ON_JAX, bucket_cap_mb=8.0),
    "buckets of more gradients than there are": changed(FC, buckets="3,5"),
}


def test_every_wrong_file_of_a_what_if_has_its_message(golden: Golden, tmp_path: Path) -> None:
    def messages_of(number: int, case: Case) -> list[str]:
        folder = tmp_path / str(number)
        folder.mkdir()
        lines = refusal((GraphError, UsageError), lambda: case(folder))
        return [line.replace(str(folder), "FOLDER") for line in lines]

    check_messages(
        golden, "files.txt", {title: messages_of(number, case) for number, (title, case) in enumerate(CASES.items())}
    )


def test_a_huge_cost_model_is_not_read(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    path = model(tmp_path)
    monkeypatch.setattr(cost_data, "LIMIT_BYTES", 10)
    [message] = refusal(UsageError, lambda: cost_data.read(path))
    assert message == f"{path}: cannot be read: larger than 10 bytes; name the file of a cost model"

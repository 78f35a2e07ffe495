"""`runner costmodel` from end to end: it learns from stored graphs, runs and records, and shows what it has learned."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

import pytest

from keras_matrix.analysis.whatif.cost_model import predict
from keras_matrix.analysis.whatif.graph import Graph
from keras_matrix.records.codec import dumps
from keras_matrix.runner.cli.main import main
from keras_matrix.runner.whatif import cost_data, cost_regressor, source
from tests.analysis.whatif.cost.fake_machine import PRODUCT, elementwise_s, graph, node, product_s, product_work
from tests.analysis.whatif.hand_made import chain
from tests.conftest import MACHINE
from tests.synthetic_peaks import make_peaks


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(cost_regressor, "TREES", 30)  # enough for the fake machine, and faster
    return tmp_path


def stored(folder: Path, name: str, one: Graph) -> str:
    source.write(one, folder / name)
    return name


def peaks_file(folder: Path) -> str:
    (folder / "peaks.json").write_text(dumps(make_peaks(replace(MACHINE, cpu_model=PRODUCT))))
    return "peaks.json"


def test_a_model_is_learned_written_and_shown_with_its_held_out_errors(
    folder: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    name = stored(folder, "graph", graph())
    assert main(["costmodel", "train", name, "--peaks", peaks_file(folder), "--to", "model.json"]) == 0
    printed = capsys.readouterr().out
    assert "held-out error by kind of operation: median / 90th percentile / of time" in printed
    assert "torch matrix product" in printed
    assert "predicts 2 of 2 kinds of operation, with 100.0 % of their time" in printed
    assert (
        f"torch on {PRODUCT}, 2 cores: bfloat16 945 GFLOP/s, float32 400 GFLOP/s, memory 20.0 GB/s (measured)"
        in printed
    )
    assert main(["costmodel", "show", "model.json"]) == 0
    assert capsys.readouterr().out == printed
    model = cost_data.read(Path("model.json"))
    product = node("aten::mm", 1, **product_work((200, 300)))
    assert predict(model, product, model.devices[0]) == pytest.approx(product_s((200, 300)), rel=0.3)
    assert predict(model, node("aten::add", 1, bytes=50_000), model.devices[0]) == pytest.approx(
        elementwise_s(50_000), rel=0.1
    )


def test_without_measured_peaks_the_best_rates_are_used_and_it_is_said(
    folder: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["costmodel", "train", stored(folder, "graph", graph())]) == 0
    assert "(best rates in the traces)" in capsys.readouterr().out
    assert Path("costmodel.json").is_file()


def test_graphs_of_one_device_are_learned_together_and_one_json_document_has_the_errors(
    folder: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    names = [stored(folder, "one", graph()), stored(folder, "two", graph(sides=(20, 40, 80, 160)))]
    assert main(["costmodel", "train", *names, "--json"]) == 0
    found = json.loads(capsys.readouterr().out)
    assert (names, 1) == (found["data"]["sources"], len(found["devices"]))
    assert "regressions" not in found  # thousands of numbers
    assert {one["kind"]: one["operations"] for one in found["errors"]} == {"matrix product": 36 + 16, "elementwise": 40}


def test_a_trace_without_flops_and_bytes_is_refused(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["costmodel", "train", stored(folder, "graph", chain([1000, 2000]))]) == 2
    assert "graph: no usable operation: none of 2 has FLOPs or bytes; PyTorch: record with" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("arguments", "problem"),
    [
        (["train", "missing.json"], "missing.json: no such file"),
        (["train", "empty"], "empty: contains no "),
        (["train", "graph", "--to", "nowhere/model.json"], "--to: must be a file in an existing folder"),
        (["train", "graph", "--peaks", "missing.json"], "--peaks: missing.json: cannot be read"),
        (["train", "graph", "--peaks", "text.json"], "--peaks: text.json: is not a file of peaks"),
        (["train", "graph/rank0.parquet", "text.parquet"], "text.parquet: "),
        (["show", "missing.json"], "missing.json: cannot be read"),
        (["show", "empty"], "empty: cannot be read"),
        (["show", "text.json"], "text.json: is damaged"),
        (["show", "other.json"], "other.json: is not a cost model"),
        (["show", "old.json"], "old.json: has version 0, this program reads 1"),
    ],
)
def test_bad_input_is_one_error_that_names_it(
    folder: Path, capsys: pytest.CaptureFixture[str], arguments: list[str], problem: str
) -> None:
    stored(folder, "graph", graph())
    (folder / "empty").mkdir()
    for name in ("text.json", "text.parquet"):
        (folder / name).write_text("text")
    (folder / "other.json").write_text("{}")
    (folder / "old.json").write_text('{"format": "keras-matrix cost model", "version": 0}')
    assert main(["costmodel", *arguments]) == 2
    error = capsys.readouterr().err.splitlines()[-1]
    assert error.startswith("runner: ")
    assert problem in error

"""`runner costmodel` from end to end: it learns from stored graphs, runs and records, and shows what it has learned."""

from __future__ import annotations

import json
import re
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
from tests.golden import Golden
from tests.synthetic_peaks import make_peaks
from tests.transcripts import Transcript


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
    assert main(["costmodel", "show", "model.json"]) == 0
    assert capsys.readouterr().out == printed
    model = cost_data.read(Path("model.json"))
    product = node("aten::mm", 1, **product_work((200, 300)))
    assert predict(model, product, model.devices[0]) == pytest.approx(product_s((200, 300)), rel=0.3)
    assert predict(model, node("aten::add", 1, bytes=50_000), model.devices[0]) == pytest.approx(
        elementwise_s(50_000), rel=0.1
    )


def test_graphs_of_one_device_are_learned_together_and_one_json_document_has_the_errors(
    folder: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    names = [stored(folder, "one", graph()), stored(folder, "two", graph(sides=(20, 40, 80, 160)))]
    assert main(["costmodel", "train", *names, "--json"]) == 0
    found = json.loads(capsys.readouterr().out)
    assert (names, 1) == (found["data"]["sources"], len(found["devices"]))
    assert "regressions" not in found  # thousands of numbers
    assert {one["kind"]: one["operations"] for one in found["errors"]} == {"matrix product": 36 + 16, "elementwise": 40}


def test_what_is_printed_of_a_cost_model(folder: Path, transcript: Transcript, golden: Golden) -> None:
    stored(folder, "graph", graph())
    peaks_file(folder)
    transcript.run("costmodel train graph --peaks peaks.json --to model.json", "costmodel show model.json")
    transcript.note("without measured peaks")
    transcript.run("costmodel train graph --to other.json")
    (folder / "empty").mkdir()
    for name in ("text.json", "text.parquet"):
        (folder / name).write_text("text")
    (folder / "other.json").write_text("{}")
    (folder / "old.json").write_text('{"format": "keras-matrix cost model", "version": 0}')
    stored(folder, "plain", chain([1000, 2000]))
    transcript.run(
        "costmodel train missing.json",
        "costmodel train empty",
        "costmodel train plain",
        "costmodel train graph --to nowhere/model.json",
        "costmodel train graph --peaks missing.json",
        "costmodel train graph --peaks text.json",
        *(f"costmodel show {name}" for name in ("missing.json", "empty", "text.json", "other.json", "old.json")),
    )
    # What the regression has learned depends on its library, as does the width of a column; the tests above check it.
    text = re.sub(r"[\d.]+ % / [\d.]+ % / [\d.]+ %", "N % / N % / N %", transcript.text)
    table = re.sub(
        r"^.*(N %|new device  predicted).*$", lambda line: re.sub("  +", "  ", line[0]), text, flags=re.MULTILINE
    )
    golden.check("costmodel.txt", table)

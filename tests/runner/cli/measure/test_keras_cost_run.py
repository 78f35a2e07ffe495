"""A run that compares Keras with native code, from the matrix file to the report."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from keras_matrix.records.schema import MEASURED
from keras_matrix.runner.cli.main import main
from tests.sessions import counted_records

pytestmark = pytest.mark.process
MATRIX = """\
version: 1
defaults: {repeats: 1, epochs: 3, steps_per_epoch: 2, threads: 1}
backends: [jax]
cells:
  - workload: mnist_mlp
    image_size: 6
    implementation: [keras, native]
  - workload: gpt2
    phase: generate
    implementation: [keras, native]
    prompt_length: 4
    max_length: 8
"""
PARTS = ("callbacks and input + metrics + optimizer + layers and loss", "sampling and layers")


@pytest.mark.nightly(why="every part of the cost in processes of its own")
def test_the_cost_of_keras_is_measured_and_shown(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    matrix, results = tmp_path / "matrix.yaml", tmp_path / "results"
    matrix.write_text(MATRIX)
    assert main(["--matrix", str(matrix), "--results", str(results)]) == 0
    shown = capsys.readouterr().out
    records = {(one.settings.phase, one.settings.implementation): one for one in counted_records(tmp_path)}
    assert {name: record.status in MEASURED for name, record in records.items()} == dict.fromkeys(records, True)
    assert sorted(records) == [(phase, by) for phase in ("fit", "generate") for by in ("keras", "native")]
    assert shown.count("cost of Keras: jax ") == len(PARTS)
    for part in PARTS:
        assert f"; of a step: {part} " in shown
    page = (results / "latest" / "report.html").read_text(encoding="utf-8")
    assert "<h2>What Keras costs</h2>" in page
    assert main(["report", "--results", str(results), "--json"]) == 0
    cells = [cell for row in json.loads(capsys.readouterr().out)["rows"] for cell in row["cells"].values()]
    costs = [cell["keras_cost"] for cell in cells if cell["keras_cost"]]
    assert sorted(name for cost in costs for name in cost["shares"]) == sorted(PARTS)

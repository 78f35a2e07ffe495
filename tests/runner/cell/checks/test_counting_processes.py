"""Real processes of one revision count the same calls."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from keras_matrix.records.backends import TRAINING_BACKENDS
from keras_matrix.runner.cli.main import main
from keras_matrix.runner.measure.seams import Seams

pytestmark = pytest.mark.process
MATRIX = """\
version: 1
defaults: {{repeats: 1, epochs: 2, discard: 1, samples: 32, batch_size: 8, steps_per_epoch: 4, threads: 1}}
backends: [{backend}]
cells:
  - {{workload: mnist_mlp, phase: predict, call: model}}
"""


@pytest.mark.one_backend
@pytest.mark.parametrize("backend", TRAINING_BACKENDS)
def test_processes_of_a_side_count_the_same_calls(
    backend: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """Mutation: calls of the garbage collector's callbacks, or of the harness between two steps, are counted."""
    monkeypatch.chdir(tmp_path)
    (tmp_path / "matrix.yaml").write_text(MATRIX.format(backend=backend))
    main(["compare", "--plant", "slower:0.1", "--counts", "--json"], Seams())
    (comparison,) = json.loads(capsys.readouterr().out)["comparisons"]
    calls = {(one["step"], one["count"]): one["base"] for one in comparison["counts"] if one["count"].endswith("calls")}
    assert len(calls) == 4
    for counts in calls.values():
        assert len(counts) > 1
        assert {count > 0 and count for count in counts} == {counts[0]}

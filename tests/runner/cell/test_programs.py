"""People's own programs are measured unchanged: calls of Keras's methods, loops of one's own, and what has neither."""

from __future__ import annotations

import shutil
from pathlib import Path

import numpy as np
import pytest

from keras_matrix.records.backends import TRAINING_BACKENDS
from keras_matrix.records.schema import MEASURED, Status
from keras_matrix.runner.cli.main import main
from tests.sessions import counted_records

pytestmark = pytest.mark.process
SCRIPTS = Path(__file__).parent / "scripts"
MATRIX = """\
version: 1
defaults: {{repeats: 1, epochs: 3, steps_per_epoch: 4}}
backends: [{backend}]
cells:
  - workload: {{script: functional.py, args: [--width, 4]}}
    steps_per_epoch: seed
  - workload: {{script: twice.py}}
  - workload: {{script: twice.py, call: 1}}
  - workload: {{script: twice.py, call: predict}}
  - workload: {{script: twice.py, call: evaluate}}
  - workload: {{script: loop.py}}
  - workload: {{script: contexts.py}}
  - workload: {{script: stateless.py}}
  - workload: {{script: modelless.py}}
  - workload: {{script: idle.py}}
  - workload: {{script: breaks.py}}
  - workload: {{script: once.py}}
  - workload: {{script: downloaded.py}}
  - workload: {{script: cached.py}}
    env: {{DATA_DIR: {data}}}
    precision: mixed_bfloat16
  - workload: {{script: caught.py}}
  - workload: {{script: nothing.py}}
  - workload: {{script: misplaced.py}}
"""
# The measured call, as scouting has named it, its place, and the steps of its epochs.
EXPECTED = {
    ("functional.py", "fit:1"): ("fit functional.py:22", 5),
    ("twice.py", "fit:1"): ("fit parts/training.py:13", 2),
    ("twice.py", "fit:2"): ("fit twice.py:11", 8),
    ("twice.py", "predict:1"): ("predict twice.py:13", 1),
    ("twice.py", "evaluate:1"): ("evaluate twice.py:12", 1),
    ("loop.py", "steps:1"): ("steps loop.py:23", 5),
    ("contexts.py", "step:1"): ("step contexts.py:15", 4),
    ("modelless.py", "steps:1"): ("steps modelless.py:5", 4),
    ("breaks.py", "steps:1"): ("steps breaks.py:13", 6),
    ("once.py", "steps:1"): ("steps once.py:12", 3),
    ("downloaded.py", "fit:1"): ("fit downloaded.py:10", 2),
    ("cached.py", "fit:1"): ("fit cached.py:16", 2),
}


@pytest.mark.one_backend
@pytest.mark.parametrize("backend", TRAINING_BACKENDS)
def test_programs_are_measured_by_the_call_that_is_chosen(
    tmp_path: Path, backend: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    project = tmp_path / "project"
    shutil.copytree(SCRIPTS, project)
    (project / "large.log").write_bytes(b"x" * (2 << 20))  # the copy has a link to it
    before = {path: path.read_bytes() for path in project.rglob("*") if path.is_file()}
    matrix = project / "matrix.yaml"
    data_sets = tmp_path / "data"
    matrix.write_text(MATRIX.format(backend=backend, data=data_sets))
    data_sets.mkdir()
    np.save(data_sets / "numbers.npy", np.random.rand(64, 4))
    snapshot = tmp_path / "hub" / "datasets--targets" / "snapshots" / "1"
    snapshot.mkdir(parents=True)
    np.save(snapshot / "targets.npy", np.random.rand(64, 1))
    (tmp_path / "hub" / "datasets--targets" / "refs").mkdir()
    (tmp_path / "hub" / "datasets--targets" / "refs" / "main").write_text("1")
    monkeypatch.setenv("HF_HUB_CACHE", str(tmp_path / "hub"))
    places = ["--results", str(tmp_path / "results"), "--datasets", str(data_sets)]
    assert main(["--matrix", str(matrix), "--allow-env", "DATA_DIR", *places]) == 1
    records = counted_records(tmp_path)
    failed = [record for record in records if record.status not in MEASURED]
    reasons = {record.settings.script: record.reason or "" for record in failed}
    assert set(reasons) == {"nothing.py", "misplaced.py", "idle.py", "caught.py"}, reasons
    assert reasons["idle.py"] == "0 of 2 trainable weights changed in the epochs: the model was not trained"
    assert {record.status for record in failed if record.settings.script == "idle.py"} == {Status.WORK_MISMATCH}
    assert f"{project}/caught.py:10" in reasons["caught.py"], reasons["caught.py"]
    assert "ended by sys.exit(0) without a call of fit" in reasons["nothing.py"]
    assert "for batch in keras_matrix.steps(dataset):" in reasons["nothing.py"]
    assert f"the program runs in {project}, of a copy of its project" in reasons["misplaced.py"]
    assert "put 'data/missing.txt' there, or start this command in the folder" in reasons["misplaced.py"]
    assert f"{project}/misplaced.py:5" in reasons["misplaced.py"], "the place has its path in the project"
    measured = {
        (record.settings.script, str(record.settings.params.get("call", ""))): record
        for record in records
        if record.status in MEASURED
    }
    calls = {
        key: record.resolved and (record.resolved.call, record.resolved.steps_per_epoch)
        for key, record in measured.items()
    }
    stateless = ("steps stateless.py:21" if backend == "jax" else "steps stateless.py:27", 5)
    assert calls == {**EXPECTED, ("stateless.py", "steps:1"): stateless}
    for key in (("loop.py", "steps:1"), ("contexts.py", "step:1"), ("stateless.py", "steps:1")):
        work = measured[key].work
        assert work
        assert (work.changed_variables, work.weight_platforms) == (2, ["cpu"]), key
    for key in (("loop.py", "steps:1"), ("contexts.py", "step:1")):
        epochs_s = measured[key].times.epoch_times_s
        assert min(epochs_s) >= 0.1, f"{key}: opening the data set, or what lies between steps, is in each epoch"
    modelless = measured["modelless.py", "steps:1"]
    assert any(warning.startswith("work_not_counted: steps modelless.py:5") for warning in modelless.warnings)
    assert any(warning.startswith("prefetched_in_rest: steps modelless.py:5") for warning in modelless.warnings)
    functional, predict = measured["functional.py", "fit:1"], measured["twice.py", "predict:1"]
    assert functional.resolved
    assert functional.work
    assert functional.resolved.samples == 300
    assert functional.work.changed_variables == functional.work.trainable_variables == 4
    assert any(warning.startswith("stop_deferred: a callback asked to stop after") for warning in functional.warnings)
    assert predict.settings.phase == "predict"
    assert predict.times.samples_per_s
    cleared = measured["cached.py", "fit:1"]
    assert cleared.resolved
    assert cleared.resolved.layer_policies == ["mixed_bfloat16"]
    assert not [warning for warning in cleared.warnings if warning.startswith("own_options")], cleared.warnings
    evaluate = measured["twice.py", "evaluate:1"]
    assert evaluate.resolved
    assert (evaluate.resolved.samples, evaluate.resolved.batch_size) == (256, None)
    assert not [warning for warning in evaluate.warnings if "not_counted" in warning], "every sample is counted"
    after = {path: path.read_bytes() for path in project.rglob("*") if path.is_file() and path != matrix}
    assert after == before, "a program writes into its copy alone"

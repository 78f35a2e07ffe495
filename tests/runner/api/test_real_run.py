"""The API and `init` with real processes of a real backend."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

import keras_matrix as km
from keras_matrix.records.backends import TRAINING_BACKENDS
from keras_matrix.records.schema import MEASURED
from keras_matrix.runner.cli.main import main
from keras_matrix.runner.service.starter import FirstMatrix, write

pytestmark = pytest.mark.process
CELL = {"workload": "my_workload:build", "steps_per_epoch": 2, "threads": 1}


@pytest.mark.backends
def test_run_measures_in_processes_that_ignore_the_callers_settings(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Neither the working folder's `keras`, nor KERAS_BACKEND, PYTHONPATH and keras.json of the user reach a cell."""
    monkeypatch.chdir(tmp_path)
    write(Path(), FirstMatrix(("jax",)))
    settings = tmp_path / "home" / ".keras" / "keras.json"
    settings.parent.mkdir(parents=True)
    settings.write_text(json.dumps({"backend": "torch", "floatx": "float64", "image_data_format": "channels_first"}))
    wrong = tmp_path / "wrong"
    wrong.mkdir()
    (wrong / "keras.py").write_text("raise SystemExit('the keras of PYTHONPATH')")
    environment = {"HOME": settings.parents[1], "KERAS_HOME": settings.parent, "PYTHONPATH": wrong}
    for name, value in {**environment, "KERAS_BACKEND": "torch"}.items():
        monkeypatch.setenv(name, str(value))
    run = km.run({"version": 1, "backends": ["jax"], "cells": [CELL]}, repeats=1, progress=False)
    [cell] = run.cells
    assert (cell.backend, cell.processes) == ("jax", 1)
    assert cell.status in MEASURED, cell.reasons
    assert cell.step_time_s is not None
    assert run.report().is_file()


def test_what_init_writes_is_measured(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    assert main(["init"]) == 0
    assert main(["--repeats", "1", "--backend", "jax", "--set", "steps_per_epoch=2", "--filter", "my_workload"]) == 0
    found = {cell.params["width"]: cell.status for cell in km.load().cells}
    assert (sorted(found), set(found.values()) <= MEASURED) == ([64, 256], True)
    assert "backends: [" + ", ".join(TRAINING_BACKENDS) + "]" in (tmp_path / "matrix.yaml").read_text()

"""The models of Keras's published benchmarks at small size, as the command line measures them, on each backend."""

from __future__ import annotations

from pathlib import Path

import pytest

from keras_matrix.records.backends import TRAINING_BACKENDS
from keras_matrix.records.schema import MEASURED
from keras_matrix.records.store import Results
from keras_matrix.runner.cli.main import main
from keras_matrix.runner.measure.seams import Seams

ROOT = Path(__file__).parents[4]
SHORT = ("epochs=2", "discard=1", "steps_per_epoch=1")
SMALL = {"bert": 2, "gemma": 3, "mistral": 3, "sam": 2, "stable_diffusion_3": 2}


@pytest.mark.process
@pytest.mark.nightly
@pytest.mark.parametrize("backend", TRAINING_BACKENDS)
def test_every_small_row_of_the_published_benchmarks_is_measured(backend: str, tmp_path: Path) -> None:
    """Mutation: `built` returns the plain layers whatever the phase."""
    once = ["--backend", backend, "--filter", "size=tiny", "--repeats", "1", *(f"--set={one}" for one in SHORT)]
    assert main(["--matrix", str(ROOT / "matrices" / "keras-io.yaml"), "--results", str(tmp_path), *once], Seams()) == 0
    run = Results(tmp_path).latest()
    assert run is not None
    records, _ = run.load()
    assert [(one.settings.workload, one.reason) for one in records if one.status not in MEASURED] == []
    found = [cell.workload for cell in {one.cell_id: one.settings for one in records}.values()]
    assert {name: found.count(name) for name in SMALL} == SMALL

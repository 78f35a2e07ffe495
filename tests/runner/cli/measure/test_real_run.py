"""One run of the real command line per backend: a matrix file in, a published record and a report out."""

from __future__ import annotations

from pathlib import Path

import pytest

from keras_matrix.records.backends import TRAINING_BACKENDS
from keras_matrix.records.schema import MEASURED
from keras_matrix.runner.cli.main import main
from tests.sessions import counted_records

pytestmark = [pytest.mark.process, pytest.mark.smoke]
MATRIX = """\
version: 1
defaults: {repeats: 1, epochs: 3, steps_per_epoch: 2, threads: 1}
backends: [tensorflow, jax, torch]
cells:
  - workload: mnist_mlp
"""


@pytest.mark.parametrize("backend", TRAINING_BACKENDS)
def test_a_matrix_is_measured_in_a_real_process_of_each_backend(tmp_path: Path, backend: str) -> None:
    matrix, results = tmp_path / "matrix.yaml", tmp_path / "results"
    matrix.write_text(MATRIX)
    assert main(["--matrix", str(matrix), "--results", str(results), "--backend", backend]) == 0
    [record] = counted_records(tmp_path)
    assert (record.settings.backend, record.device.platform, record.evidence.exit_code) == (backend, "cpu", 0)
    assert record.status in MEASURED
    assert len(record.times.epoch_times_s) == 2
    assert len(record.learning.loss) == 3
    assert "mnist_mlp" in (results / "latest" / "report.html").read_text(encoding="utf-8")

"""The CUDA driver's cache of compiled kernels: one for the GPU cells of a run."""

from __future__ import annotations

from pathlib import Path

import pytest

from keras_matrix.runner.cell.job import Job
from keras_matrix.runner.cli.main import main
from keras_matrix.runner.executors import Outcome
from keras_matrix.runner.measure.seams import Seams
from tests.fakes.executor import FakeExecutor
from tests.sessions import newest_records

MATRIX = """\
version: 1
defaults: {{epochs: 3, repeats: 2, device: {device}}}
backends: [tensorflow, jax]
cells:
  - workload: gru
"""


def measured(tmp_path: Path, device: str) -> set[str | None]:
    """Measure, every cell compiling something, and return the folders of the driver's cache."""
    (tmp_path / "matrix.yaml").write_text(MATRIX.format(device=device))
    executor, found = FakeExecutor(), set()

    def behave(job: Job) -> Outcome:
        found.add(job.cuda_cache_dir)
        if job.cuda_cache_dir is not None:
            (Path(job.cuda_cache_dir) / f"{job.settings.backend}-{job.repeat}").touch()
        return executor.succeed(job)

    executor.behaviours = {"gru": behave}
    assert main(["--results", str(tmp_path / "results")], Seams(executor=executor)) == 0
    return found


def test_gpu_cells_share_a_cache_which_is_removed_when_the_run_is_finished(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    (folder,) = measured(tmp_path, "gpu")
    run_id = newest_records(tmp_path)[0].run_id
    assert folder == str(tmp_path / "results" / run_id / "cuda-cache")
    assert not Path(folder).exists()


def test_cpu_cells_have_no_cuda_cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    assert measured(tmp_path, "cpu") == {None}

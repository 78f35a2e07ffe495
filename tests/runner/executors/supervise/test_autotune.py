"""The variables for a backend's autotuners: per process, once for all repeats, or off."""

from __future__ import annotations

import os
import subprocess
import sys
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from keras_matrix.records.backends import TRAINING_BACKENDS
from keras_matrix.records.identity import cell_id
from keras_matrix.records.schema import MEASURED, Status
from keras_matrix.runner.cell.job import Job, keep_tuning
from keras_matrix.runner.executors.process.executor import ProcessExecutor
from keras_matrix.runner.executors.supervise.environment import autotuning
from keras_matrix.runner.measure.judge import judge
from keras_matrix.runner.measure.record_builder import read_result
from tests.conftest import make_settings


def make_job(tmp_path: Path, backend: str, autotune: str, **changes: Any) -> Job:
    settings = make_settings(backend=backend, autotune=autotune, device="gpu", **changes)
    folder, shared = tmp_path / "scratch", tmp_path / "shared"
    for place in (folder, shared):
        place.mkdir(exist_ok=True)
    return Job(
        "n", cell_id(settings), 0, 0, settings, 2, str(folder), [], None, None,
        autotune_dir=str(shared) if autotune == "pinned" else None,
    )  # fmt: skip


@pytest.mark.parametrize("backend", TRAINING_BACKENDS)
def test_default_sets_no_variables(tmp_path: Path, backend: str) -> None:
    assert autotuning(make_job(tmp_path, backend, "fresh")) == {}


@pytest.mark.parametrize(
    ("backend", "expected"),
    [
        ("jax", {"XLA_FLAGS": "--xla_gpu_autotune_level=0"}),
        ("tensorflow", {"XLA_FLAGS": "--xla_gpu_autotune_level=0", "TF_CUDNN_USE_AUTOTUNE": "0"}),
        ("torch", {"TORCHINDUCTOR_DETERMINISTIC": "1"}),
    ],
)
def test_off_disables_every_tuner_of_the_backend(tmp_path: Path, backend: str, expected: dict[str, str]) -> None:
    assert autotuning(make_job(tmp_path, backend, "off")) == expected


@pytest.mark.parametrize("backend", ["jax", "tensorflow"])
def test_first_repeat_stores_its_tuning_results_and_later_repeats_load_them(tmp_path: Path, backend: str) -> None:
    job = make_job(tmp_path, backend, "pinned")
    assert autotuning(job) == {"XLA_FLAGS": f"--xla_gpu_dump_autotune_results_to={tmp_path}/scratch/xla.textproto"}
    job.tuning_path.write_text("first")
    keep_tuning(job)
    assert autotuning(job) == {"XLA_FLAGS": f"--xla_gpu_load_autotune_results_from={tmp_path}/shared/xla.textproto"}
    job.tuning_path.write_text("second")
    keep_tuning(job)
    assert job.tuned_path.read_text() == "first"


def test_cell_without_pinned_autotuning_stores_nothing(tmp_path: Path) -> None:
    job = make_job(tmp_path, "jax", "fresh")
    keep_tuning(job)
    assert not (tmp_path / "shared" / "xla.textproto").exists()


def test_pytorch_shares_the_compilers_folder(tmp_path: Path) -> None:
    assert autotuning(make_job(tmp_path, "torch", "pinned")) == {
        "TORCHINDUCTOR_CACHE_DIR": f"{tmp_path}/shared/inductor"
    }


USES_XLA = """
import sys
from keras_matrix.records.settings import Settings
from keras_matrix.runner.cell.backends import Unsupported
from keras_matrix.runner.cell.backends.tensorflow import Adapter
from tests.conftest import make_settings

def refused(**changes):
    try:
        Adapter().configure(make_settings(backend="tensorflow", autotune="pinned", device="gpu", **changes), None)
    except Unsupported:
        return True
    return False

found = [refused(jit="auto"), refused(jit=True), refused(jit=False), refused(jit="auto", eager=True)]
assert found == [False, False, True, True], found
"""


@pytest.mark.nightly
@pytest.mark.process
def test_pinned_autotuning_of_tensorflow_needs_xla_which_keras_enables_on_a_gpu() -> None:
    root = Path(__file__).parents[4]
    environment = {**os.environ, "KERAS_BACKEND": "tensorflow", "TF_CPP_MIN_LOG_LEVEL": "3", "PYTHONPATH": str(root)}
    done = subprocess.run(
        [sys.executable, "-c", USES_XLA], env=environment, capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stderr


@pytest.mark.process
@pytest.mark.parametrize("autotune", ["off", "pinned"])
@pytest.mark.parametrize("shared", [False, True])
def test_the_installed_xla_knows_the_flags(tmp_path: Path, autotune: str, shared: bool) -> None:
    """XLA ends the process at a flag it does not know, on a CPU too."""
    job = make_job(tmp_path, "jax", autotune)
    if shared:
        job.tuned_path.parent.mkdir(exist_ok=True)
        job.tuned_path.write_text("")
    environment = {"PATH": os.environ["PATH"], "JAX_PLATFORMS": "cpu", **autotuning(job)}
    script = "import jax; print(jax.jit(lambda x: x + 1)(1.0))"
    done = subprocess.run([sys.executable, "-c", script], env=environment, capture_output=True, text=True, check=False)
    assert (done.returncode, done.stdout.strip()) == (0, "2.0"), done.stderr


@pytest.mark.process
def test_unknown_xla_flag_is_detected() -> None:
    environment = {"PATH": os.environ["PATH"], "JAX_PLATFORMS": "cpu", "XLA_FLAGS": "--xla_gpu_autotune_levels=0"}
    script = "import jax; print(jax.jit(lambda x: x + 1)(1.0))"
    done = subprocess.run([sys.executable, "-c", script], env=environment, capture_output=True, text=True, check=False)
    assert done.returncode != 0
    assert "Unknown flag" in done.stderr


@pytest.mark.nightly
@pytest.mark.process
def test_the_installed_inductor_knows_its_variable() -> None:
    script = "import torch._inductor.config as config; print(config.deterministic)"
    environment = {"PATH": os.environ["PATH"], "TORCHINDUCTOR_DETERMINISTIC": "1"}
    done = subprocess.run([sys.executable, "-c", script], env=environment, capture_output=True, text=True, check=False)
    assert done.stdout.strip() == "True", done.stderr


@pytest.mark.gpu
@pytest.mark.parametrize("settings", [{"autotune": "off"}, {"autotune": "pinned", "jit": True}, {"clocks": "locked"}])
@pytest.mark.parametrize("backend", TRAINING_BACKENDS)
def test_a_gpu_cell_is_measured_and_its_gpu_is_read(tmp_path: Path, backend: str, settings: dict[str, Any]) -> None:
    executor = ProcessExecutor()
    job = make_job(tmp_path, backend, **({"autotune": "fresh"} | settings), samples=64, steps_per_epoch=2)
    try:
        outcome = executor.start(replace(job, steps=2), 300).finish()
    finally:
        executor.close()
    verdict = judge(job, outcome, *read_result(job))
    if verdict.status is Status.UNSUPPORTED and "clocks: locked" in (verdict.reason or ""):
        pytest.skip(f"this user may not lock clocks: {verdict.reason}")
    assert verdict.status in MEASURED, (verdict, outcome.output_tail)
    assert outcome.surroundings.gpu is not None
    assert len(outcome.surroundings.gpu.sm_clocks_hz) == 4

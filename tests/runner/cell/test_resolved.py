"""The environment of a cell in its record, and TF32 if only the backend's settings are known."""

from __future__ import annotations

import platform
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

from keras_matrix.records.fc.spec import WorkerPlacement, expected_shapes, problem_of, traffic_per_step
from keras_matrix.records.host import inherited_environment
from keras_matrix.records.schema import CellResult, DeviceProof, Learning, Memory, Times
from keras_matrix.runner.cell import fc
from keras_matrix.runner.cell.backends import CompileEvents, jax
from keras_matrix.runner.cell.job import Job
from keras_matrix.runner.cell.options import found_versions, resolved_of
from keras_matrix.runner.cell.replicated.interface import DeviceGroup
from tests.conftest import make_settings


def adapter(**changes: Any) -> Any:
    """Return a backend on a GPU of compute capability 8.0 that allows TF32."""
    answers: dict[str, Any] = {"tf32": True, "compute_capability": (8, 0), "intra_op_threads": None} | changes
    methods = {name: lambda answer=answer: answer for name, answer in answers.items()}
    return SimpleNamespace(group=DeviceGroup(), **methods)


def test_a_record_has_the_variables_that_may_change_a_figure(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("LD_LIBRARY_PATH", "/opt/cudnn")
    monkeypatch.delenv("CUDA_HOME", raising=False)
    found = resolved_of(make_settings(), adapter(), ("fresh", 3)).inherited
    assert found == inherited_environment.recorded({"LD_LIBRARY_PATH": "/opt/cudnn"})
    assert len(found) == 1


def test_recorded_version_of_keras_is_that_of_the_imported_module(monkeypatch: pytest.MonkeyPatch) -> None:
    """Mutation: `found_versions` asks the distribution `keras`, which is another one than a nightly wheel."""
    monkeypatch.setattr("keras.__version__", "3.99.0.dev1")
    assert found_versions(adapter(versions={"jax": "0.10"})) == {
        "python": platform.python_version(),
        "jax": "0.10",
        "keras": "3.99.0.dev1",
        "numpy": np.__version__,
    }


def test_recorded_versions_of_a_gpu_cell_on_jax_include_the_installed_plugin(monkeypatch: pytest.MonkeyPatch) -> None:
    """Mutation: `versions` leaves out the plugins, so that `runner reproduce` makes an environment without a GPU."""
    installed = {"jax-cuda12-plugin": "0.10.2"}

    def version(name: str) -> str:
        if name not in installed:
            raise jax.metadata.PackageNotFoundError(name)
        return installed[name]

    monkeypatch.setattr(jax.metadata, "version", version)
    libraries = {"jax": jax.jax.__version__, "jaxlib": jax.jax.lib.__version__}
    for platform_name, plugins in (("cpu", {}), ("gpu", installed)):
        monkeypatch.setattr(jax.jax, "default_backend", lambda name=platform_name: name)
        assert jax.Adapter().versions() == {**libraries, **plugins}


TASK = {"mode": "fc_data", "workers": 1, "level": 1, "weight_size": 8}
SETTINGS = make_settings(workload="fc", device="gpu", params=TASK, batch_size=4)


def fc_result(monkeypatch: pytest.MonkeyPatch, folder: Path, process: int | None = None, **answers: Any) -> CellResult:
    """Return the result of an FC cell whose worker, in this process or another, and backend are fakes."""
    task = problem_of(SETTINGS)
    worker_group = SimpleNamespace(
        places=lambda: [WorkerPlacement(0, "cuda:0", *expected_shapes(task, 0), process=process)],
        traffic=lambda: traffic_per_step(task),
        peaks_bytes=lambda: [0],
        device_peaks_bytes=list,
        run=lambda steps: None,
        close=lambda: None,
    )
    fake = adapter(compile_events=CompileEvents(), versions={}, **answers)
    fake.configure = lambda settings, cache: None
    monkeypatch.setattr(fc.backends, "load", lambda backend: fake)
    stubs: dict[str, Any] = {
        "Turns": None,
        "reserve": None,
        "assemble": worker_group,
        "_proved": DeviceProof("gpu", "cuda:0", 1),
        "_trained": (Times(), Learning(), 3),
        "_memory": Memory(),
        "_communication": (None, None),
    }
    for name, answer in stubs.items():
        monkeypatch.setattr(fc, name, lambda *arguments, answer=answer: answer)
    return fc.measure_fc(Job("n", "c", 0, 0, SETTINGS, 3, str(folder), [], None, None), 0.0, "fresh")


@pytest.mark.parametrize(
    ("capability", "allowed", "expected"),
    [((7, 5), True, False), ((8, 0), True, True), ((9, 0), False, False), (None, True, True), (None, None, None)],
)
def test_fc_on_a_gpu_older_than_tf32_does_not_use_tf32(
    monkeypatch: pytest.MonkeyPatch,
    tmp_path: Path,
    capability: tuple[int, int] | None,
    allowed: bool | None,
    expected: bool | None,
) -> None:
    result = fc_result(monkeypatch, tmp_path, compute_capability=capability, tf32=allowed)
    assert result.resolved is not None
    assert result.resolved.tf32 is expected


def test_process_that_leaves_the_gpu_to_its_workers_does_not_query_it(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """PyTorch initialises CUDA for an answer, which takes memory of the worker's GPU."""
    result = fc_result(monkeypatch, tmp_path, process=1, compute_capability=(7, 5))
    assert result.resolved is not None
    assert result.resolved.tf32 is True


@pytest.mark.parametrize(("files", "expected"), [((), "empty"), (("index",), "filled")])
def test_a_record_of_fc_has_the_state_of_the_cuda_cache_as_its_process_began(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, files: tuple[str, ...], expected: str
) -> None:
    cache = tmp_path / "cuda-cache"
    cache.mkdir()
    for name in files:
        (cache / name).touch()
    monkeypatch.setenv(inherited_environment.CUDA_CACHE, str(cache))
    resolved = fc_result(monkeypatch, tmp_path).resolved
    assert resolved is not None
    assert resolved.cuda_cache == expected

"""The statuses of models and FC modes on a machine with one GPU and on one without, for each backend's device list."""

from __future__ import annotations

import importlib.util
import sys
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from types import ModuleType, SimpleNamespace
from typing import Any
from unittest.mock import MagicMock

import pytest

from keras_matrix.records.backends import TRAINING_BACKENDS
from keras_matrix.records.schema import DeviceProof
from keras_matrix.runner.cell import backends, entry, fc
from keras_matrix.runner.cell.checks.devices import prove
from keras_matrix.runner.cell.job import Job
from keras_matrix.runner.cli.main import main
from keras_matrix.runner.executors import Outcome
from keras_matrix.runner.measure.seams import Seams
from tests.fakes.executor import FakeExecutor
from tests.sessions import newest_records

ROOT = Path(__file__).parents[3]
MATRIX = """\
version: 1
defaults: {epochs: 3, repeats: 1, device: gpu}
backends: [tensorflow, jax, torch]
cells:
  - workload: gru
  - workload: bert
    phase: predict
  - workload: fc
    mode: fc_data
    workers: [1, 2]
"""


class Assembled(Exception):
    """The cell found a device for each worker."""


def fake_tensorflow(gpus: int) -> dict[str, Any]:
    listed = {"GPU": ["gpu"] * gpus, "CPU": ["cpu"]}
    return {"tensorflow": SimpleNamespace(config=SimpleNamespace(list_physical_devices=listed.__getitem__))}


def fake_jax(gpus: int) -> dict[str, Any]:
    # Without a GPU `jax.devices()` lists the CPU; with GPUs it lists them alone.
    listed = [SimpleNamespace(platform="gpu")] * gpus or [SimpleNamespace(platform="cpu")]
    sharding = SimpleNamespace(Mesh=None, NamedSharding=None, PartitionSpec=None)
    jax = SimpleNamespace(devices=lambda: listed, jit=lambda function, **options: function)
    return {"jax": jax, "jax.numpy": SimpleNamespace(), "jax.sharding": sharding}


def fake_torch(gpus: int) -> dict[str, Any]:
    cuda = SimpleNamespace(device_count=lambda: gpus)
    bases = {"nn": SimpleNamespace(Module=object), "autograd": SimpleNamespace(Function=object)}
    unused = {f"torch.{name}": MagicMock() for name in ("distributed.device_mesh", "distributed.tensor", "utils")}
    unused["torch.utils._python_dispatch"] = SimpleNamespace(TorchDispatchMode=object)
    return {"torch": SimpleNamespace(cuda=cuda, **bases), "torch.distributed": ModuleType(""), **unused}


Fake = Callable[[int], dict[str, Any]]
FAKES: dict[str, Fake] = {"tensorflow": fake_tensorflow, "jax": fake_jax, "torch": fake_torch}


def load_workers(monkeypatch: pytest.MonkeyPatch, backend: str, gpus: int) -> None:
    """Import what places the workers of a backend, which finds a fake of that backend with so many GPUs."""
    for name, module in FAKES[backend](gpus).items():
        monkeypatch.setitem(sys.modules, name, module)
    for name in ("jax.numpy", "jax.sharding", "torch.distributed"):
        package, _, attribute = name.partition(".")
        if package == backend:
            setattr(sys.modules[package], attribute, sys.modules[name])
    name = f"keras_matrix.models.fc.native.{backend}"
    spec = importlib.util.spec_from_file_location(name, ROOT / f"models/fc/native/{backend}.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    monkeypatch.setitem(sys.modules, name, module)
    spec.loader.exec_module(module)


@pytest.fixture
def measured(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Callable[[int], tuple[int, list[Any]]]:
    """Return a function that measures the matrix on so many GPUs, and returns exit code and records."""

    def adapter(gpus: int) -> Any:
        proof = DeviceProof("gpu" if gpus else "cpu", "fake:0", 1)
        return SimpleNamespace(configure=lambda *arguments: None, proof=lambda: proof)

    def assemble(*arguments: Any) -> Any:
        raise Assembled

    def measure(gpus: int) -> tuple[int, list[Any]]:
        executor = FakeExecutor()

        def behave(job: Job) -> Outcome:
            try:
                if job.settings.workload == "fc":
                    fc.measure_fc(job, 0.0, "fresh")
                prove(adapter(gpus), job.settings)
            except Assembled:
                pass
            except Exception as error:  # noqa: BLE001 - as in a cell, whatever is raised becomes the result
                entry._report(job, error)
                return Outcome(exit_code=1, wall_time_s=1.0)
            return executor.succeed(job)

        executor.behaviours = dict.fromkeys(("gru", "bert", "fc"), behave)
        monkeypatch.setattr(fc, "assemble", assemble)
        monkeypatch.setattr(backends, "load", lambda backend: adapter(gpus))
        for backend in TRAINING_BACKENDS:
            load_workers(monkeypatch, backend, gpus)
        code = main(["--results", str(tmp_path / "results")], Seams(executor=executor))
        return code, newest_records(tmp_path)

    (tmp_path / "matrix.yaml").write_text(MATRIX)
    monkeypatch.chdir(tmp_path)
    return measure


def test_on_one_gpu_two_workers_are_unsupported_on_every_backend_and_the_exit_code_is_0(
    measured: Callable[[int], tuple[int, list[Any]]],
) -> None:
    code, records = measured(1)
    refused = {r.settings.backend: r for r in records if r.settings.params.get("workers") == 2}
    others = [r for r in records if r.settings.params.get("workers") != 2]
    assert code == 0
    assert {str(r.status) for r in others} == {"ok"}
    assert {backend: (str(r.status), r.reason) for backend, r in refused.items()} == {
        backend: (
            "unsupported",
            f"workers: must be at most the number of GPUs that {backend} finds in this cell (1), got 2; name more in "
            "CUDA_VISIBLE_DEVICES, or set device: cpu to use more workers than devices",
        )
        for backend in TRAINING_BACKENDS
    }


def test_without_a_gpu_every_cell_is_a_device_mismatch_and_the_exit_code_is_1(
    measured: Callable[[int], tuple[int, list[Any]]],
) -> None:
    code, records = measured(0)
    assert code == 1
    assert Counter((str(r.status), r.settings.backend) for r in records) == {
        ("device_mismatch", backend): 4 for backend in TRAINING_BACKENDS
    }
    reasons = {r.settings.backend: r.reason for r in records if r.settings.params.get("workers") == 2}
    assert reasons == {
        backend: f"device: gpu was requested, but {backend} finds no such device; check the device, and install the "
        f"build of {backend} for it"
        for backend in TRAINING_BACKENDS
    }

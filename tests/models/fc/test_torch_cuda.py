"""PyTorch's workers on GPUs by their calls, on a fake of PyTorch that records which stream waits for what."""

from __future__ import annotations

import importlib
import importlib.util
import os
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from types import ModuleType, SimpleNamespace
from typing import Any
from unittest.mock import MagicMock

import pytest

from keras_matrix.models.fc.meeting import Meeting
from keras_matrix.models.fc.worker_group import WorkerSpec
from keras_matrix.records.fc.spec import FcProblem

ROOT = Path(__file__).parents[3]
OWN_MODULES = ("torch_worker", "torch")
TASK = FcProblem(mode="fc_data_manual", workers=2)


class FakeCuda:
    """Streams, of which one is current, and a log of all that they are asked for."""

    def __init__(self) -> None:
        self.log: list[str] = []
        self.current = FakeStream(self, "main")

    def Stream(self) -> FakeStream:
        return FakeStream(self, "side")

    def Event(self) -> Any:
        event = SimpleNamespace(name="")

        def record(stream: FakeStream) -> None:
            event.name = f"end of {self.log[-1]}"

        event.record = record
        return event

    def current_stream(self) -> FakeStream:
        return self.current

    @contextmanager
    def stream(self, stream: FakeStream) -> Iterator[None]:
        before, self.current = self.current, stream
        yield
        self.current = before

    def set_device(self, rank: int) -> None:
        self.log.append(f"set_device {rank}")

    def run(self, name: str) -> FakeTensor:
        self.log.append(f"{self.current.name}: {name}")
        return FakeTensor(self, name)


class FakeStream:
    def __init__(self, cuda: FakeCuda, name: str) -> None:
        self.cuda, self.name = cuda, name

    def wait_stream(self, other: FakeStream) -> None:
        self.cuda.log.append(f"{self.name} waits for {other.name}")

    def wait_event(self, event: Any) -> None:
        self.cuda.log.append(f"{self.name} waits for {event.name}")


class FakeTensor:
    def __init__(self, cuda: FakeCuda, name: str) -> None:
        self.cuda, self.name = cuda, name

    def record_stream(self, stream: FakeStream) -> None:
        self.cuda.log.append(f"{self.name} is kept for {stream.name}")


@pytest.fixture
def torch(monkeypatch: pytest.MonkeyPatch) -> Any:
    """A fake of PyTorch, with which the modules of its workers are loaded."""
    importlib.import_module("keras_matrix.models.fc.programs")  # and Keras, before PyTorch is a fake
    distributed: Any = ModuleType("torch.distributed")
    distributed.FileStore = lambda *arguments: "store"
    distributed.group = SimpleNamespace(WORLD=SimpleNamespace(set_timeout=lambda limit: None))
    fake = SimpleNamespace(
        cuda=FakeCuda(),
        nn=SimpleNamespace(Module=object),
        autograd=SimpleNamespace(Function=object),
        Tensor=FakeTensor,
        distributed=distributed,
        device=lambda *names: names,
    )
    monkeypatch.setitem(sys.modules, "torch", fake)
    monkeypatch.setitem(sys.modules, "torch.distributed", distributed)
    for name in ("distributed.device_mesh", "distributed.tensor", "utils"):  # of the layers, which no test here uses
        monkeypatch.setitem(sys.modules, f"torch.{name}", MagicMock())
    dispatch = SimpleNamespace(TorchDispatchMode=object)
    monkeypatch.setitem(sys.modules, "torch.utils._python_dispatch", dispatch)
    for name in ("process_group", *(f"fc/native/{name}" for name in OWN_MODULES)):
        path = ROOT / f"models/{name}.py"
        spec = importlib.util.spec_from_file_location(f"keras_matrix.models.{name.replace('/', '.')}", path)
        assert spec is not None
        assert spec.loader is not None
        module = importlib.util.module_from_spec(spec)
        monkeypatch.setitem(sys.modules, spec.name, module)
        spec.loader.exec_module(module)
    return fake


def worker_of(device: str) -> Any:
    return sys.modules["keras_matrix.models.fc.native.torch"]._worker(WorkerSpec(TASK, seed=0, device=device), 0)


def test_on_a_gpu_a_gradient_is_communicated_on_a_second_stream_while_the_next_is_made(torch: Any) -> None:
    worker, cuda, begun = worker_of("gpu"), torch.cuda, []
    for number in (2, 1):
        cuda.run(f"product {number}")
        begun.append(worker.meanwhile(partial(cuda.run, f"sum {number}")))
    assert [finish().name for finish in begun] == ["sum 2", "sum 1"]
    assert cuda.log == [
        "main: product 2",
        "side waits for main",
        "side: sum 2",
        "main: product 1",
        "side waits for main",
        "side: sum 1",
        "main waits for end of side: sum 2",
        "sum 2 is kept for main",
        "main waits for end of side: sum 1",
        "sum 1 is kept for main",
    ]


def test_communicated_array_is_referenced_until_the_computation_waits(torch: Any) -> None:
    class Gradient:
        alive = True

        def __del__(self) -> None:
            Gradient.alive = False

    gradient = Gradient()
    finish = worker_of("gpu").meanwhile(lambda kept=gradient: torch.cuda.run("sum"))
    del gradient
    assert Gradient.alive
    finish()
    del finish
    assert not Gradient.alive


def test_collectives_are_not_waited_for_any_more_after_they_were_timed(torch: Any) -> None:
    """Otherwise no sum would overlap with computation in the steps that are traced afterwards."""
    module, worker = sys.modules["keras_matrix.models.fc.native.torch"], worker_of("gpu")
    unwatched = dict(vars(worker))
    watch = module.CollectiveTimer(worker, SimpleNamespace(type="cpu"))
    assert vars(worker).keys() - unwatched.keys() == {*module.COLLECTIVES, "meanwhile"}
    watch.end()
    assert vars(worker) == unwatched


def test_one_worker_alone_uses_no_second_stream(torch: Any) -> None:
    worker = sys.modules["keras_matrix.models.fc.native.torch_worker"].CudaWorker(1)
    assert worker.meanwhile(lambda: torch.cuda.run("sum"))().name == "sum"
    assert torch.cuda.log == ["main: sum"]


@pytest.mark.parametrize(
    ("device", "asked", "log"),
    [
        ("gpu", {"backend": "nccl", "device_id": ("cuda", 1)}, ["set_device 1"]),
        ("cpu", {"backend": "gloo"}, []),
    ],
)
def test_a_worker_joins_by_nccl_on_the_gpu_of_its_rank_and_by_gloo_on_a_cpu(
    torch: Any, monkeypatch: pytest.MonkeyPatch, device: str, asked: dict[str, Any], log: list[str]
) -> None:
    module: Any = sys.modules["keras_matrix.models.fc.native.torch"]
    called: dict[str, Any] = {}
    torch.distributed.init_process_group = called.update
    monkeypatch.setattr(sys.modules["keras_matrix.models.process_group"], "take_share", lambda rank, size: 1)
    torch.set_num_threads = lambda number: None
    monkeypatch.setattr(module, "TorchRank", lambda order, rank, number: (rank, number))
    monkeypatch.setattr(os, "environ", {})
    meeting = Meeting(WorkerSpec(TASK, seed=0, device=device), 1, 60.0, "meeting", lambda message: [message])
    assert module.join(meeting) == (1, 1)
    of_nccl = {name: called[name] for name in ("backend", "device_id") if name in called}
    assert (of_nccl, called["rank"], called["world_size"], torch.cuda.log) == (asked, 1, 2, log)
    assert os.environ.get("NCCL_SOCKET_IFNAME") == ("=lo" if device == "gpu" else None)

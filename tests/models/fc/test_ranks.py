"""The parts of a worker process that need no process."""

from __future__ import annotations

import gc
import pickle
import sys
from dataclasses import replace
from functools import partial
from types import SimpleNamespace

import pytest

from keras_matrix.models.fc import ranks
from keras_matrix.models.fc.native.assembly import assemble
from keras_matrix.models.fc.worker_group import WorkerSpec
from keras_matrix.records.backends import BACKENDS
from keras_matrix.records.fc.communication import Communication, Method
from keras_matrix.records.fc.spec import FcProblem
from keras_matrix.records.fc.traffic import Traffic


def test_connected_worker_excludes_imported_objects_from_garbage_collection(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    frozen_before, made = gc.get_freeze_count(), [[number] for number in range(2000)]
    met: list[int] = []

    def join(order: WorkerSpec, rank: int, meeting: str, timeout_s: float) -> str:
        met.append(gc.get_freeze_count())
        return "worker"

    monkeypatch.setitem(sys.modules, "keras_matrix.models.fc.native.torch", SimpleNamespace(join=join))
    assert ranks._arrive(ranks.WorkerStart(WorkerSpec(FcProblem(), seed=1), 0, "meeting", 1.0, copied=True)) == "worker"
    assert met == [frozen_before]
    assert gc.get_freeze_count() - frozen_before > len(made)


def configured(found: list[str]) -> None:
    found.append("configured")


@pytest.mark.parametrize(("copied", "steps"), [(True, ["joined"]), (False, ["configured", "joined"])])
def test_a_new_interpreter_configures_its_backend_before_it_joins_and_a_copy_does_not(
    monkeypatch: pytest.MonkeyPatch, copied: bool, steps: list[str]
) -> None:
    found: list[str] = []
    join = SimpleNamespace(join=lambda *arguments: found.append("joined"))
    monkeypatch.setitem(sys.modules, "keras_matrix.models.fc.native.torch", join)
    order = WorkerSpec(FcProblem(), seed=1, configure=partial(configured, found))
    ranks._arrive(ranks.WorkerStart(order, 0, "meeting", 1.0, copied))
    assert found == steps


@pytest.mark.parametrize("precision", ["float64", "float32"])
def test_a_new_interpreter_computes_in_float64_if_the_task_does(
    monkeypatch: pytest.MonkeyPatch, precision: str
) -> None:
    found: list[str] = []
    monkeypatch.setattr(ranks, "keep_float64", lambda: found.append("float64"))
    ranks._configure(WorkerSpec(FcProblem(precision=precision), seed=1))
    assert found == ["float64"][: precision == "float64"]


def test_workers_on_a_gpu_are_new_interpreters_and_on_a_cpu_copies() -> None:
    assert {device: ranks.start_method(device) for device in ("cpu", "gpu")} == {"cpu": "fork", "gpu": "spawn"}


def test_arguments_of_a_worker_process_can_be_pickled() -> None:
    order = WorkerSpec(
        FcProblem(mode="fc_data", workers=2), 1, "gpu", namespaces=("a", "b"), configure=partial(print, "x")
    )
    start = ranks.WorkerStart(order, 1, "meeting", 60.0, copied=False)
    found = pickle.loads(pickle.dumps(start))
    assert replace(found, order=replace(found.order, configure=None)) == replace(
        start, order=replace(order, configure=None)
    )


@pytest.mark.parametrize("backend", BACKENDS)
def test_worker_process_joins_by_the_module_of_its_backend(monkeypatch: pytest.MonkeyPatch, backend: str) -> None:
    join = SimpleNamespace(join=lambda *arguments: (backend, *arguments))
    monkeypatch.setitem(sys.modules, f"keras_matrix.models.fc.native.{backend}", join)
    order = WorkerSpec(FcProblem(workers=2), seed=1)
    start = ranks.WorkerStart(order, 1, "meeting", 2.0, copied=True, backend=backend)
    assert ranks._arrive(start) == (backend, order, 1, "meeting", 2.0)


@pytest.mark.parametrize("backend", BACKENDS)
def test_workers_with_networks_are_processes_on_every_backend(monkeypatch: pytest.MonkeyPatch, backend: str) -> None:
    monkeypatch.setattr(ranks, "Ranks", lambda order, backend: (order, backend))
    order = WorkerSpec(FcProblem(mode="fc_data", workers=2), seed=1, namespaces=("a", "b"))
    assert assemble(backend, order) == (order, backend)


@pytest.mark.parametrize(
    ("backend", "method"), [("torch", Method.TIMED), ("jax", Method.PROFILED), ("tensorflow", Method.PROFILED)]
)
def test_time_of_collectives_is_the_mean_of_the_worker_processes(backend: str, method: Method) -> None:
    answers = {"traffic": [Traffic(8, calls=1)] * 2, "watched": [[(4.0, 1.0), (6.0, 2.0)], [(6.0, 3.0), (8.0, 4.0)]]}
    workers = object.__new__(ranks.Ranks)
    workers.backend, workers._partition = backend, "program"
    workers._ask = lambda name, *arguments: answers[name]  # type: ignore[method-assign]
    assert workers.communication(1, 2) == Communication(method, [5.0, 7.0], [3.0, 4.0])
    answers["watched"] = [[], []]
    assert workers.communication(1, 2) is None

"""The parts of a worker process that need no process."""

from __future__ import annotations

import pickle
import sys
from dataclasses import replace
from functools import partial
from multiprocessing import Pipe
from pathlib import Path
from types import SimpleNamespace

import pytest

from keras_matrix.models import process
from keras_matrix.models.fc import meeting as meeting_module
from keras_matrix.models.fc import meeting as network
from keras_matrix.models.fc import ranks, worker
from keras_matrix.models.fc.meeting import Meeting, NotMet, located
from keras_matrix.models.fc.native import assemble
from keras_matrix.models.fc.worker import WorkerStart
from keras_matrix.models.fc.worker_group import WorkerSpec
from keras_matrix.records.backends import TRAINING_BACKENDS
from keras_matrix.records.fc.communication import Communication, TimingMethod, Traffic
from keras_matrix.records.fc.network import Rendezvous, Site
from keras_matrix.records.fc.spec import FcProblem, WorkerPlacement
from tests.unit_tier import frozen_count


def test_connected_worker_excludes_imported_objects_from_garbage_collection(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    frozen_before, made = frozen_count(), [[number] for number in range(2000)]
    met: list[int] = []

    def join(meeting: Meeting) -> str:
        met.append(frozen_count())
        return "worker"

    monkeypatch.setitem(sys.modules, "keras_matrix.models.fc.native.torch", SimpleNamespace(join=join))
    start = WorkerStart(WorkerSpec(FcProblem(), seed=1), 0, "meeting", 1.0, copied=True)
    assert worker._arrive(start, Pipe()[0]) == "worker"
    assert met == [frozen_before]
    assert frozen_count() - frozen_before > len(made)


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
    worker._arrive(WorkerStart(order, 0, "meeting", 1.0, copied), Pipe()[0])
    assert found == steps


@pytest.mark.parametrize("precision", ["float64", "float32"])
def test_a_new_interpreter_computes_in_float64_if_the_task_does(
    monkeypatch: pytest.MonkeyPatch, precision: str
) -> None:
    found: list[str] = []
    monkeypatch.setattr(worker, "keep_float64", lambda: found.append("float64"))
    worker._configure(WorkerSpec(FcProblem(precision=precision), seed=1))
    assert found == ["float64"][: precision == "float64"]


def test_workers_on_a_gpu_are_new_interpreters_and_on_a_cpu_copies() -> None:
    assert {device: process.start_method(device) for device in ("cpu", "gpu")} == {"cpu": "fork", "gpu": "spawn"}


def test_arguments_of_a_worker_process_can_be_pickled() -> None:
    order = WorkerSpec(
        FcProblem(mode="fc_data", workers=2), 1, "gpu", namespaces=("a", "b"), configure=partial(print, "x")
    )
    start = WorkerStart(order, 1, "meeting", 60.0, copied=False)
    found = pickle.loads(pickle.dumps(start))
    assert replace(found, order=replace(found.order, configure=None)) == replace(
        start, order=replace(order, configure=None)
    )


@pytest.mark.parametrize("backend", TRAINING_BACKENDS)
def test_worker_process_joins_by_the_module_of_its_backend(monkeypatch: pytest.MonkeyPatch, backend: str) -> None:
    join = SimpleNamespace(join=lambda meeting: (backend, meeting))
    monkeypatch.setitem(sys.modules, f"keras_matrix.models.fc.native.{backend}", join)
    order = WorkerSpec(FcProblem(workers=2), seed=1)
    start = WorkerStart(order, 1, "meeting", 2.0, copied=True, backend=backend)
    found, meeting = worker._arrive(start, Pipe()[0])
    assert (found, meeting.order, meeting.rank, meeting.file, meeting.timeout_s) == (backend, order, 1, "meeting", 2.0)


def test_a_worker_gets_the_messages_of_all_or_says_that_they_did_not_come() -> None:
    start = WorkerStart(WorkerSpec(FcProblem(workers=3), seed=1), 1, None, 0.01, copied=True)
    ours, theirs = Pipe()
    with pytest.raises(NotMet, match=r"^the 3 workers did not all connect within 0.01 s$"):
        worker._exchanged(start, theirs, "second")
    assert ours.recv() == (worker.MEET, "second")
    ours.send(["first", "second", "third"])
    assert worker._exchanged(start, theirs, "second") == ["first", "second", "third"]


MACHINES = Rendezvous([Site("one", "1", "192.0.2.1"), Site("two", "2", "192.0.2.2", 4000)], key="00", index=1)


def test_place_of_a_worker_on_one_of_several_machines() -> None:
    order = WorkerSpec(FcProblem(mode="fc_data", workers=6), seed=1, rendezvous=MACHINES)
    meeting = Meeting(order, 4, 1.0, None, lambda message: [message])
    assert order.workers_here == 3
    assert meeting.here == (1, 3)
    assert meeting.address() == "192.0.2.2"
    assert located(WorkerPlacement(4, "cpu", [], [], []), order, 4).machine == "2"
    assert located(WorkerPlacement(2, "cpu", [], [], []), order, 2).machine == "1"


def test_a_host_whose_name_has_another_address_is_renamed_or_named(monkeypatch: pytest.MonkeyPatch) -> None:
    order = WorkerSpec(FcProblem(mode="fc_data", workers=2), seed=1, rendezvous=MACHINES)
    renamed: list[tuple[str, ...]] = []
    monkeypatch.setattr(network, "name_host", lambda *arguments: renamed.append(arguments))
    for addresses in ({}, {"host": "127.0.1.1"}, {"host": "192.0.2.2"}):
        monkeypatch.setattr(meeting_module.socket, "gethostname", lambda: "host")
        monkeypatch.setattr(meeting_module, "_named", addresses.get)
        Meeting(order, 1, 1.0, None, lambda message: [message]).name_host()
    advice = "let it mean 192.0.2.2 in /etc/hosts of the node, or start it as root with CAP_SYS_ADMIN"
    assert renamed == [("192.0.2.2", f"{advice}: the name host has another address")] * 2


@pytest.mark.parametrize("backend", TRAINING_BACKENDS)
def test_workers_with_networks_are_processes_on_every_backend(monkeypatch: pytest.MonkeyPatch, backend: str) -> None:
    monkeypatch.setattr(ranks, "Ranks", lambda order, backend: (order, backend))
    order = WorkerSpec(FcProblem(mode="fc_data", workers=2), seed=1)
    for apart in (replace(order, namespaces=("a", "b")), replace(order, rendezvous=MACHINES)):
        assert assemble(backend, apart) == (apart, backend)


@pytest.mark.parametrize(
    ("backend", "method"),
    [("torch", TimingMethod.TIMED), ("jax", TimingMethod.PROFILED), ("tensorflow", TimingMethod.PROFILED)],
)
def test_time_of_collectives_is_the_mean_of_the_worker_processes(backend: str, method: TimingMethod) -> None:
    answers = {"traffic": [Traffic(8, calls=1)] * 2, "watched": [[(4.0, 1.0), (6.0, 2.0)], [(6.0, 3.0), (8.0, 4.0)]]}
    workers = object.__new__(ranks.Ranks)
    workers.backend, workers._partition, workers._step_s = backend, "program", 0.5
    workers._ask = lambda name, *arguments, limit_s=None: answers[name]  # type: ignore[method-assign]
    assert workers.communication(1, 2) == Communication(method, [5.0, 7.0], [3.0, 4.0])
    answers["watched"] = [[], []]
    assert workers.communication(1, 2) is None


def test_workers_that_do_not_end_the_timing_of_collectives_are_given_up(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """TensorFlow's profiler now and then leaves a worker waiting for ever, when the figures are complete."""
    monkeypatch.setattr(ranks, "WATCHED_LEAST_S", 0.01)
    workers = object.__new__(ranks.Ranks)
    (ours, theirs), (other, _) = Pipe(), Pipe()
    workers._pipes, workers._processes, workers._folder = [ours, other], [], str(tmp_path / "ranks")
    workers._size, workers._step_s, workers._partition, workers.backend = 2, 0.0, "program", "tensorflow"
    workers.traffic = lambda: Traffic(8, calls=1)  # type: ignore[method-assign]
    theirs.send((worker.ANSWER, [(1.0, 0.5)]))
    with pytest.raises(ranks.WorkerDied, match=r"^rank 1 of 2 did not answer within 0 s before its work was done"):
        workers.communication(4, 5)
    assert theirs.recv() == ("watched", (4, 5))

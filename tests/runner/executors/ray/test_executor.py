"""A cell on a node, as the runner sees it: interrupted calls are repeated by number, a loss is one outcome."""

from __future__ import annotations

import errno
import hashlib
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import pytest

from keras_matrix.records.identity import cell_id
from keras_matrix.runner.cell.job import Job
from keras_matrix.runner.executors import Outcome
from keras_matrix.runner.executors.ray import agent as agents
from keras_matrix.runner.executors.ray import executor as executors
from keras_matrix.runner.executors.ray.agent import Agent, FinishedCell
from keras_matrix.runner.executors.ray.cluster import Lost, Unavailable
from keras_matrix.runner.executors.ray.executor import Archives, CellOnNode, ExecutorOnMachine, MachinesOnRay
from keras_matrix.runner.executors.ray.machines import offers, packed
from tests.conftest import MACHINE, make_settings
from tests.runner.executors.ray.test_machines import SMALL, node

OFFER = offers([node("1", SMALL, "jax")])[0]


@dataclass
class Method:
    """A remote method: each call is stored, and its number is the reference to its answer."""

    calls: list[tuple[Any, ...]]

    def remote(self, *arguments: Any) -> tuple[Any, ...]:
        self.calls.append(arguments)
        return arguments


@dataclass
class PretendedAgent:
    """An agent whose calls are stored."""

    calls: list[tuple[Any, ...]] = field(default_factory=list)

    def __getattr__(self, name: str) -> Method:
        return Method(self.calls)


@dataclass
class PretendedCluster:
    """A cluster that answers calls as `says`."""

    says: Callable[[tuple[Any, ...]], Any]
    handle: PretendedAgent = field(default_factory=PretendedAgent)
    ended: int = 0

    def agent(self, *arguments: Any) -> PretendedAgent:
        return self.handle

    def answer(self, ref: Any, limit_s: float | None = None, others: Sequence[Any] = ()) -> Any:
        return self.says(ref)

    def end(self, handle: Any) -> None:
        self.ended += 1


@pytest.fixture
def job(tmp_path: Path) -> Job:
    settings = make_settings(backend="jax")
    folder = tmp_path / "scratch"
    folder.mkdir()
    return Job("nonce", cell_id(settings), 0, 0, settings, 4, str(folder), [], None, None)


def machine(says: Callable[[tuple[Any, ...]], Any]) -> tuple[MachinesOnRay, PretendedCluster]:
    cluster = PretendedCluster(says)
    place = MachinesOnRay(cluster, [OFFER], Archives(), "mark", "fork")  # type: ignore[arg-type]
    assert place.acquire(lambda: False)
    cluster.handle.calls.clear()
    return place, cluster


def test_an_interrupted_call_is_repeated_with_its_number(job: Job, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(executors.time, "sleep", lambda seconds: None)
    answers = iter([Unavailable("reset"), Unavailable("reset"), True])

    def says(ref: tuple[Any, ...]) -> Any:
        found = next(answers) if "turn" in ref else True
        if isinstance(found, Exception):
            raise found
        return found

    place, cluster = machine(says)
    cell = CellOnNode(place, [cluster.handle], job, 60.0)
    assert cell.turn()
    assert cluster.handle.calls == [("nonce", 0, "turn")] * 3
    assert place.lost() is None


def test_an_agent_that_stays_unavailable_is_lost(job: Job, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(executors.time, "sleep", lambda seconds: None)
    monkeypatch.setattr(executors, "UNAVAILABLE_S", -1.0)

    def says(ref: tuple[Any, ...]) -> Any:
        if "turn" in ref:
            raise Unavailable("reset")
        return True

    place, cluster = machine(says)
    cell = CellOnNode(place, [cluster.handle], job, 60.0)
    assert not cell.turn()
    assert cell.finish().infrastructure == "node_lost: node-1: does not answer: reset"
    assert place.lost() == "node_lost: node-1: does not answer: reset"


@pytest.mark.parametrize("memory", [False, True])
def test_a_lost_node_is_infrastructure_but_a_cell_that_needs_too_much_memory_is_a_result(
    job: Job, memory: bool
) -> None:
    def says(ref: tuple[Any, ...]) -> Any:
        if "turn" in ref:
            raise Lost("the node died", memory=memory)
        return True

    place, cluster = machine(says)
    cell = CellOnNode(place, [cluster.handle], job, 60.0)
    assert not cell.turn()
    outcome = cell.finish()
    if memory:
        assert (outcome.infrastructure, outcome.signal, outcome.oom_kills) == (None, 9, 1)
        assert outcome.machine == SMALL
    else:
        assert outcome.infrastructure == "node_lost: node-1: the node died"
    assert place.lost() == "node_lost: node-1: the node died"


def test_files_of_the_cell_arrive_and_a_failure_names_the_node(job: Job, tmp_path: Path) -> None:
    there = tmp_path / "there"
    there.mkdir()
    (there / "result.json").write_text("{}")
    ended = [
        FinishedCell(Outcome(exit_code=0, machine=MACHINE), packed(there)),
        FinishedCell(Outcome(infrastructure="scratch: /tmp/x: full"), packed(there)),
    ]
    place, cluster = machine(lambda ref: ended.pop(0) if "finish" in ref else True)
    assert CellOnNode(place, [cluster.handle], job, 60.0).finish() == Outcome(exit_code=0, machine=MACHINE)
    assert (Path(job.folder) / "result.json").read_text() == "{}"
    failed = CellOnNode(place, [cluster.handle], job, 60.0).finish()
    assert failed.infrastructure == "scratch: /tmp/x: full (node node-1)"


def test_an_agent_that_never_answers_is_lost(job: Job) -> None:
    def says(ref: tuple[Any, ...]) -> Any:
        if "turn" in ref:
            raise TimeoutError
        return True

    place, cluster = machine(says)
    cell = CellOnNode(place, [cluster.handle], job, 60.0)
    assert not cell.turn()
    assert cell.finish().infrastructure == "node_lost: node-1: does not answer within 60 s"


def test_modules_are_sent_once_and_only_if_the_node_lacks_them(job: Job, tmp_path: Path) -> None:
    root = tmp_path / "mine"
    root.mkdir()
    (root / "mine.py").write_text("x = 1")
    own = replace(job, settings=make_settings(backend="jax", workload="mine:small"), import_roots=[str(root)])
    lacking = [[str(root)], []]
    place, cluster = machine(lambda ref: lacking.pop(0) if len(ref) == 1 and isinstance(ref[0], dict) else True)
    for _ in range(2):
        ExecutorOnMachine(place).start(own, 60.0)
    sent = [call for call in cluster.handle.calls if isinstance(call[-1], bytes)]
    assert len(sent) == 1


def test_a_start_at_a_lost_node_is_infrastructure(job: Job) -> None:
    def says(ref: tuple[Any, ...]) -> Any:
        if job in ref:
            raise Lost("the node died")
        return True

    place, _ = machine(says)
    running = ExecutorOnMachine(place).start(job, 60.0)
    assert not running.turn()
    assert running.finish().infrastructure == "node_lost: node-1: the node died"


def test_an_interrupted_start_is_repeated(job: Job, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(executors.time, "sleep", lambda seconds: None)
    interrupted = [Unavailable("reset")]

    def says(ref: tuple[Any, ...]) -> Any:
        if job in ref and interrupted:
            raise interrupted.pop()
        return True

    place, cluster = machine(says)
    assert isinstance(ExecutorOnMachine(place).start(job, 60.0), CellOnNode)
    assert [call[0] for call in cluster.handle.calls] == [job, job]


def test_a_machine_without_the_backend_any_more_is_lost(job: Job) -> None:
    place, _ = machine(lambda ref: True)
    other = replace(job, settings=make_settings(backend="torch"))
    outcome = ExecutorOnMachine(place).start(other, 60.0).finish()
    assert outcome.infrastructure == "node_lost: node-1: no node has torch any more"


def test_waiting_for_the_slot_of_another_session_can_be_given_up() -> None:
    def says(ref: tuple[Any, ...]) -> Any:
        raise TimeoutError

    cluster = PretendedCluster(says)
    place = MachinesOnRay(cluster, [OFFER], Archives(), "mark", "fork")  # type: ignore[arg-type]
    asked = iter([False, False, True])
    assert not place.acquire(lambda: next(asked))
    place.release()
    assert cluster.ended == 1


def test_the_arms_of_a_comparison_begin_a_block_together(job: Job) -> None:
    place, cluster = machine(lambda ref: True)
    base, new = ExecutorOnMachine(place), ExecutorOnMachine(place)
    base.begin_block([job.settings])
    new.begin_block([job.settings])
    base.await_block()
    new.await_block()
    assert cluster.handle.calls == [([job.settings, job.settings],)]


def test_a_released_machine_ends_its_agents(job: Job) -> None:
    place, cluster = machine(lambda ref: True)
    place.release()
    assert cluster.ended == 1


class Counting:
    """A running cell that counts its turns."""

    def __init__(self) -> None:
        self.turns = 0

    def turn(self, waiting: object = ()) -> bool:
        self.turns += 1
        return self.turns < 3

    def root(self) -> None:
        return None


def test_the_agent_answers_a_number_once(agent: Agent, job: Job, monkeypatch: pytest.MonkeyPatch) -> None:
    running = Counting()
    monkeypatch.setattr(agent, "_started", lambda job, timeout_s: (running, ()))
    agent.start(job, 60.0, {})
    agent.start(job, 60.0, {})  # a repeated start is none
    assert [agent.call("nonce", number, "turn") for number in (0, 0, 1, 1, 2)] == [True, True, True, True, False]
    assert running.turns == 3


def test_a_full_disk_of_a_node_is_infrastructure_with_advice(
    agent: Agent, job: Job, monkeypatch: pytest.MonkeyPatch
) -> None:
    def full(*arguments: object) -> Job:
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr(agent, "_here", full)
    agent.start(job, 60.0, {})
    outcome = agent.call("nonce", 0, "finish").outcome
    assert outcome.infrastructure.startswith("scratch: ")
    assert outcome.infrastructure.endswith(
        "No space left on device; free space there, or start the node with another TMPDIR"
    )


def test_folders_of_a_job_are_those_of_the_node(agent: Agent, job: Job, tmp_path: Path) -> None:
    roots = tmp_path / "mine"
    roots.mkdir()
    (roots / "mine.py").write_text("x = 1")
    wanted = replace(job, import_roots=[str(roots)], compile_cache_dir="/run/cache/jax", outputs_dir="/run/outputs/x")
    digests = {str(roots): "digest"}
    assert agent.missing_modules(digests) == [str(roots)]
    agent.receive_modules("digest", packed(roots))
    assert agent.missing_modules(digests) == []
    here = agent._here(wanted, digests)
    (root,) = here.import_roots
    assert (Path(root) / "mine.py").read_text() == "x = 1"
    assert here.host_roots == [str(roots)]
    node_folder = str(tmp_path / "keras-matrix-node-")
    for path in (here.folder, here.compile_cache_dir, here.outputs_dir):
        assert path is not None
        assert path.startswith(node_folder)
    assert here.autotune_dir is None
    assert here.dataset_dir is not None
    assert here.dataset_dir.endswith("datasets")


def test_modules_that_could_not_be_written_fail_as_infrastructure_and_are_asked_for_again(
    agent: Agent, job: Job, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Mutation: an archive is unpacked in place, where a part of it counts as all."""
    roots = tmp_path / "mine"
    roots.mkdir()
    for name in ("first.py", "second.py"):
        (roots / name).write_text("x = 1")
    archive, digests = packed(roots), {str(roots): "digest"}
    agent.receive_modules("digest", archive[: len(archive) // 2])
    agent.start(job, 60.0, digests)
    outcome = agent.call("nonce", 0, "finish").outcome
    assert f"the modules of {roots} could not be written; free space there" in outcome.infrastructure
    assert agent.missing_modules(digests) == [str(roots)]
    agent.receive_modules("digest", archive)
    assert agent.missing_modules(digests) == []


def test_labels_name_the_machine(agent: Agent) -> None:
    assert agent._machine.machine_type == "n1-standard-8"
    assert agent._machine.host_id == hashlib.sha256(b"one").hexdigest()[:16]


def test_a_new_agent_of_a_session_removes_what_a_killed_one_left(agent: Agent, job: Job) -> None:
    left = Path(agent._here(job, {}).folder)
    assert left.is_dir()
    Agent("mark", "fork", {})
    assert not left.exists()


def test_arms_with_the_same_cell_have_folders_of_their_own(agent: Agent, job: Job) -> None:
    base = agent._here(replace(job, compile_cache_dir="/run-base/cache"), {})
    new = agent._here(replace(job, nonce="other", compile_cache_dir="/run-new/cache"), {})
    assert Path(base.folder).is_dir()
    assert base.folder != new.folder
    assert base.compile_cache_dir != new.compile_cache_dir


def test_caches_stay_for_the_next_time_that_the_session_measures_here(agent: Agent, job: Job) -> None:
    here = agent._here(replace(job, compile_cache_dir="/run/cache"), {})
    agent.close()
    assert Path(str(here.compile_cache_dir)).is_dir()
    assert not Path(here.folder).exists()


def test_files_that_are_too_large_are_left_and_the_result_arrives(
    agent: Agent, job: Job, monkeypatch: pytest.MonkeyPatch
) -> None:
    class Done(Counting):
        def finish(self) -> Outcome:
            return Outcome(exit_code=0)

    monkeypatch.setattr(agent, "_started", lambda job, timeout_s: (Done(), ()))
    monkeypatch.setattr(agents.machines, "MOST_FILES_BYTES", 1000)
    agent.start(job, 60.0, {})
    folder = Path(agent._live["nonce"].job.folder)
    (folder / "result.json").write_text("{}")
    (folder / "log").write_bytes(bytes(2000))
    ended = agent.call("nonce", 0, "finish")
    assert ended.outcome.warnings[0].startswith("files_left: ")
    agents.machines.unpacked(ended.folder, folder.parent / "arrived")
    assert [path.name for path in (folder.parent / "arrived").iterdir()] == ["result.json"]

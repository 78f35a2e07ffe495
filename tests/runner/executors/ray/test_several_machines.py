"""Cells whose workers are on several machines: which machines, where they meet, and whose end is the cell's."""

from __future__ import annotations

import signal
import threading
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from keras_matrix.records.codec import dumps
from keras_matrix.records.fc.network import Site
from keras_matrix.records.identity import cell_id
from keras_matrix.records.schema import DeviceProof, Machine
from keras_matrix.records.traces.request import Trace
from keras_matrix.runner.cell.job import Job, read_job, result_of, write_job
from keras_matrix.runner.executors import Outcome
from keras_matrix.runner.executors.ray import agent as agents
from keras_matrix.runner.executors.ray.agent import Agent, FinishedCell
from keras_matrix.runner.executors.ray.cluster import Lost
from keras_matrix.runner.executors.ray.executor import Archives, ExecutorOnMachine, MachinesOnRay
from keras_matrix.runner.executors.ray.machines import GIB, Offer, fitting, groups, identity_of, need_of, offers, packed
from keras_matrix.runner.executors.supervise.visible_gpus import gpus_of
from keras_matrix.runner.executors.supervise.watch import Watch
from keras_matrix.runner.machine.gpus.nvml import PresentGpus
from keras_matrix.runner.matrix.entry import PlacementKeys
from tests.conftest import make_settings
from tests.runner.executors.ray.test_executor import PretendedAgent, PretendedCluster
from tests.runner.executors.ray.test_machines import LARGE, SMALL, cell, node

TWO = make_settings(backend="jax", workload="fc", params={"mode": "fc_data", "workers": 2}, nodes=2)


def small(name: str, **changes: Any) -> Machine:
    return replace(SMALL, host_id=name, **changes)


def cluster_of(*machines: Machine) -> list[Offer]:
    return offers([replace(node(one.host_id, one, "jax"), address=f"address of {one.host_id}") for one in machines])


def workers(count: int, nodes: int) -> Any:
    return cell(backend="jax", workload="fc", params={"mode": "fc_data", "workers": count}, nodes=nodes)


def test_groups_are_of_equal_machines_that_fit_and_share_none() -> None:
    more = small("f", memory_bytes=64 * GIB)
    machines = cluster_of(small("e"), small("a"), LARGE, small("d"), small("b"), small("c"), more)
    found = groups(need_of([workers(2, 2)]), machines)
    assert [identity_of(group) for group in found] == ["a+b", "c+d"]


def test_a_little_less_memory_is_equal() -> None:
    machines = cluster_of(small("a"), small("b", memory_bytes=8 * GIB - 1_000_000))
    assert fitting(need_of([workers(2, 2)]), machines).places == {"a+b"}


def test_too_few_equal_machines_are_the_reason() -> None:
    found = fitting(need_of([workers(4, 2)]), cluster_of(SMALL, LARGE))
    assert found.places == frozenset()
    there = "2 of the cluster's fit, equal or not; the cluster has node-large, node-small"
    assert found.reason == f"nodes: 2: needs 2 equal machines; {there}"


def test_blocks_across_nodes_are_on_equal_machines_those_of_which_there_are_most() -> None:
    across = cell(PlacementKeys(across_nodes=True), backend="jax")
    machines = cluster_of(LARGE, small("b"), small("a"))
    assert fitting(need_of([across]), machines).places == {"a", "b"}
    assert fitting(need_of([cell(backend="jax")]), machines).places == {"a", "b", "large"}


def test_gpus_are_divided_among_the_machines() -> None:
    def need(nodes: int) -> int:
        settings = {"backend": "torch", "device": "gpu", "workload": "fc", "nodes": nodes}
        return need_of([cell(**settings, params={"mode": "fc_data", "workers": 4})]).gpus

    assert [need(nodes) for nodes in (1, 2, 4)] == [4, 2, 1]


class Agents(PretendedCluster):
    """A cluster with an agent for each node, by its id."""

    def __init__(self, says: Any) -> None:
        super().__init__(says)
        self.agents: dict[str, PretendedAgent] = {}

    def agent(self, found: Any, *arguments: Any) -> PretendedAgent:
        return self.agents.setdefault(found.node_id, PretendedAgent())


@pytest.fixture
def job(tmp_path: Path) -> Job:
    folder = tmp_path / "scratch"
    folder.mkdir()
    return Job("nonce", cell_id(TWO), 0, 0, TWO, 4, str(folder), [], None, None)


def pair(says: Any) -> tuple[MachinesOnRay, Agents]:
    cluster = Agents(says)
    found = cluster_of(small("a"), small("b"))
    place = MachinesOnRay(cluster, found, Archives(), "mark", "fork")  # type: ignore[arg-type]
    assert place.acquire(lambda: False)
    for agent in cluster.agents.values():
        agent.calls.clear()
    return place, cluster


def test_the_slots_are_taken_in_the_order_of_the_machines() -> None:
    place, cluster = pair(lambda ref: True)
    assert [*cluster.agents] == ["a", "b"]
    assert (place.identity, place.name) == ("a+b", "node-a and node-b")


def test_each_machine_gets_the_job_with_where_they_meet(job: Job) -> None:
    place, cluster = pair(lambda ref: 4567 if ref == ("address of b",) else True)
    ExecutorOnMachine(place).start(job, 60.0)
    (first,) = (call[0] for call in cluster.agents["a"].calls)
    (second,) = (call[0] for call in cluster.agents["b"].calls if isinstance(call[0], Job))
    sites = [Site("node-a", "a", "address of a"), Site("node-b", "b", "address of b", 4567)]
    assert first.rendezvous.sites == second.rendezvous.sites == sites
    assert (first.rendezvous.index, second.rendezvous.index) == (0, 1)
    assert first.rendezvous.key == second.rendezvous.key
    assert len(bytes.fromhex(first.rendezvous.key)) == 32
    assert replace(first, rendezvous=None) == job


def test_where_they_meet_is_in_the_file_of_the_job(job: Job) -> None:
    place, _ = pair(lambda ref: 4567 if ref == ("address of b",) else True)
    nodes = [offer.nodes[0] for offer in place.offers]
    found = ExecutorOnMachine(place)._divided(job, nodes)[1]
    write_job(found)
    assert read_job(found.path) == found


def ended(folder: Path, text: str, **outcome: Any) -> FinishedCell:
    folder.mkdir()
    (folder / "result.json").write_text(text)
    return FinishedCell(Outcome(**outcome), packed(folder))


def result(job: Job, **fields: Any) -> str:
    return dumps(replace(result_of(job), **fields))


FAR = "rank 1 of 2, on another machine, ended before its work was done; the other workers were ended"
DIED = {"exception": "keras_matrix.models.fc.ranks.WorkerDied", "message": FAR}
APART = {"exception": "keras_matrix.models.fc.ranks.NotConnected", "message": "two cannot be reached"}
OWN = {"exception": "ValueError", "message": "no"}
MEASURED = {"device": DeviceProof("cpu", "cpu", 2)}
TRACING = {"trace": Trace([1], 2)}


@pytest.mark.parametrize(
    ("first", "outcome", "second", "changes", "expected"),
    [
        (MEASURED, {"exit_code": 0}, {"exit_code": 0}, {}, ("first", {"exit_code": 0})),
        (MEASURED, {"exit_code": 0}, {"exit_code": None, "signal": 9}, {}, ("first", {"exit_code": 0})),
        (OWN, {"exit_code": 1}, {"exit_code": 0}, {}, ("first", {"exit_code": 1})),
        (DIED, {"exit_code": 1}, {"exit_code": 1}, {}, ("second", {"exit_code": 1})),
        # Killed for memory there: as if here. Other processes of that machine may also have been killed.
        (DIED, {"exit_code": 1}, {"exit_code": 0, "oom_kills": 1}, {}, ("first", {"signal": 9, "oom_kills": 1})),
        (OWN, {"exit_code": 1}, {"exit_code": 0, "oom_kills": 1}, {}, ("first", {"exit_code": 1, "oom_kills": 0})),
        (APART, {"exit_code": 1}, {"exit_code": 0}, {}, ("first", {"infrastructure": "rendezvous: two cannot be"})),
        (DIED, {"exit_code": 1}, {"infrastructure": "scratch: full"}, {}, ("second", {"infrastructure": "scratch: "})),
        # The figures were complete before the trace failed.
        (MEASURED, {"exit_code": 1}, {"infrastructure": "scratch: full"}, TRACING, ("first", {"exit_code": 1})),
    ],
)
def test_a_cell_ends_as_its_measuring_process_unless_another_one_says_more(
    job: Job,
    tmp_path: Path,
    first: dict[str, Any],
    outcome: dict[str, Any],
    second: dict[str, Any],
    changes: dict[str, Any],
    expected: tuple[str, dict[str, Any]],
) -> None:
    own, far = replace(job, **changes), result(job, message="second")
    ends = {
        "finish": ended(tmp_path / "1", result(job, **first), **outcome),
        "provided": ended(tmp_path / "2", far, **second),
    }

    def says(ref: tuple[Any, ...]) -> Any:
        if "finish" in ref:
            return ends["finish"]
        return ends["provided"] if ref == ("nonce",) else 1

    place, _ = pair(says)
    found = ExecutorOnMachine(place).start(own, 60.0).finish()
    whose, fields = expected
    assert ((Path(job.folder) / "result.json").read_text() == far) == (whose == "second")
    for name, value in fields.items():
        actual = getattr(found, name)
        assert actual.startswith(value) if isinstance(value, str) else actual == value
    if found.infrastructure is not None:
        assert found.infrastructure.endswith("(node node-a and node-b)")


def test_a_lost_machine_fails_the_cell_of_all(job: Job) -> None:
    def says(ref: tuple[Any, ...]) -> Any:
        if "turn" in ref:
            raise Lost("node-b died")
        return 1

    place, _ = pair(says)
    running = ExecutorOnMachine(place).start(job, 60.0)
    assert not running.turn()
    assert running.finish().infrastructure == "node_lost: node-a and node-b: node-b died"


def test_nodes_that_have_left_make_the_place_lost() -> None:
    place, _ = pair(lambda ref: True)
    place.release()
    place.update({"a": place.offers[0]})
    assert place.lost() == "node_lost: node-a and node-b: its nodes have left the cluster"


class Endless(Watch):
    """A cell's process that provides workers until it is ended."""

    def __init__(self) -> None:
        self.over = threading.Event()

    def kill(self) -> None:
        self.over.set()

    def finish(self) -> Outcome:
        self.over.wait(30)
        return Outcome(signal=signal.SIGKILL)


def test_workers_that_do_not_end_are_ended_and_did_nothing_wrong(
    monkeypatch: pytest.MonkeyPatch, agent: Agent, job: Job
) -> None:
    monkeypatch.setattr(agents, "ENDING_S", 0.01)
    running = Endless()
    monkeypatch.setattr(agent, "_started", lambda job, timeout_s: (running, ()))
    agent.provide(job, {})
    agent.provide(job, {})  # a repeated call starts nothing
    for _ in range(2):  # the call may be repeated, too
        outcome = agent.provided("nonce").outcome
        assert (outcome.exit_code, outcome.signal) == (0, None)
    assert running.over.is_set()


def test_groups_stay_when_machines_join(monkeypatch: pytest.MonkeyPatch) -> None:
    need, before = need_of([workers(2, 2)]), cluster_of(small("b"), small("c"), small("d"))
    known = [identity_of(group) for group in groups(need, before)]
    assert known == ["b+c"]
    later = [*before, *cluster_of(small("a"))]
    assert [identity_of(group) for group in groups(need, later, known)] == ["b+c", "a+d"]
    assert [identity_of(group) for group in groups(need, later[1:], known)] == ["a+c"]


def test_an_address_that_is_not_the_nodes_own_is_refused(job: Job) -> None:
    place, _ = pair(lambda ref: None if ref == ("address of b",) else True)
    outcome = ExecutorOnMachine(place).start(job, 60.0).finish()
    assert outcome.infrastructure == (
        "address: node-b cannot listen at address of b; start it with its own --node-ip-address"
    )


def test_gpus_are_made_visible_by_the_machine() -> None:
    settings = make_settings(
        backend="torch", device="gpu", workload="fc", params={"mode": "fc_data", "workers": 4}, nodes=2
    )
    present = PresentGpus(("first", "second"), ("H100", "H100"))
    assert len(gpus_of(settings, {}, present)) == 2

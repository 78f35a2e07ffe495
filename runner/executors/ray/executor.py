"""The runner's side of cells on a cluster: a machine as a place, its executor, and a cell that runs there.

Workers of a cell may be on several machines, of which the first one measures. A process that only provides workers ends
well whenever it is let go, however the cell ends. So the end of the cell is that of the measuring process, unless
another one says more about why it failed.

A module of its own: it is the seam `Executor`, and `registration` its row in the registry.
"""

from __future__ import annotations

import contextlib
import hashlib
import itertools
import secrets
import tarfile
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

from keras_matrix.records.codec import CodecError, decode
from keras_matrix.records.fc.network import Rendezvous, Site
from keras_matrix.records.files import read_json
from keras_matrix.records.host.device_lists import GpuChoice
from keras_matrix.records.schema import CellResult
from keras_matrix.records.settings import Settings
from keras_matrix.records.store import Run
from keras_matrix.runner.cell.job import RESULT_LIMIT_BYTES, Job
from keras_matrix.runner.errors import ExecutorError
from keras_matrix.runner.executors import Executor, Outcome, Running, WaitingCell
from keras_matrix.runner.executors.ray import machines
from keras_matrix.runner.executors.ray.agent import FinishedCell
from keras_matrix.runner.executors.ray.cluster import UNAVAILABLE_S, Cluster, Lost, Unavailable
from keras_matrix.runner.executors.ray.machines import NodeFacts, Offer, identity_of
from keras_matrix.runner.executors.supervise.watch import Never

ACQUIRE_POLL_S = 1.0
# Within this time an agent answers a call that waits for no cell; the import of a backend is a part of the first one.
ANSWER_S = 180.0
KILLED = 9
NOT_CONNECTED, WORKER_DIED, FAR = ".NotConnected", ".WorkerDied", "on another machine"


class Archives:
    """The archives of the user's folders of modules, made once per session; `results` is left out of them."""

    def __init__(self, results: Path | None = None) -> None:
        self._results = results
        self._made: dict[str, tuple[str, bytes]] = {}

    def of(self, job: Job) -> dict[str, tuple[str, bytes]]:
        """Return digest and archive of each folder that a job's process searches.

        Raises `TooLarge` and OSError.
        """
        has_own_modules = ":" in job.settings.workload or job.task is not None
        return {root: self._archive(root) for root in dict.fromkeys(job.import_roots) if has_own_modules}

    def _archive(self, root: str) -> tuple[str, bytes]:
        if root not in self._made:
            archive = machines.modules(Path(root), self._results)
            self._made[root] = (hashlib.sha256(archive).hexdigest()[:16], archive)
        return self._made[root]


class MachinesOnRay:
    """A machine of the cluster as a place, or several for cells whose workers are on as many.

    One agent on each of their nodes; together they hold the measuring slots.
    """

    gpus: GpuChoice | None = None

    def __init__(self, cluster: Cluster, offers: Sequence[Offer], archives: Archives, mark: str, start: str) -> None:
        """Take the machines, in the order of their identities; the first one measures."""
        self.identity, self.name = identity_of(offers), " and ".join(offer.name for offer in offers)
        self.offers, self.archives = tuple(offers), archives
        self.cluster = cluster
        self._mark, self._start = mark, start
        self._agents: dict[str, Any] = {}
        self._lost: str | None = None
        self.wanted: list[Settings] = []

    def acquire(self, give_up: Callable[[], bool]) -> bool:
        """Start the agents, one after the other in the order of their machines and nodes.

        All that wait for slots do so in this order, so that none waits for another one that waits for it.
        """
        for node in self.nodes:
            agent = self.cluster.agent(node, f"{self._mark}@{node.node_id}", self._start)
            self._agents[node.node_id] = agent
            while not give_up():
                try:
                    self.asked(agent.ready.remote, limit_s=ACQUIRE_POLL_S)
                    break
                except TimeoutError:
                    continue
            else:
                return False
        return True

    @property
    def parts(self) -> list[str]:
        """The identities of the machines."""
        return [offer.identity for offer in self.offers]

    @property
    def nodes(self) -> list[NodeFacts]:
        """The nodes of all machines."""
        return [node for offer in self.offers for node in offer.nodes]

    def update(self, offer_by_identity: Mapping[str, Offer]) -> None:
        """Take the machines' present nodes, by the machine's identity, unless a session is measuring there."""
        if self._agents:
            return
        current = [offer_by_identity[offer.identity] for offer in self.offers if offer.identity in offer_by_identity]
        if len(current) < len(self.offers):
            self.note_lost("its nodes have left the cluster")
        else:
            self.offers = tuple(current)

    def executor(self, run: Run) -> Executor:
        """Return the executor of this machine, the same for all runs of a session."""
        return ExecutorOnMachine(self)

    def lost(self) -> str | None:
        """Return how an agent or a node ended."""
        return self._lost

    def release(self) -> None:
        """End the agents, which frees the slot."""
        agents, self._agents = self._agents, {}
        for agent in agents.values():
            with contextlib.suppress(Exception):  # it is ended in any case; one that is lost answers so at once
                self.cluster.answer(agent.close.remote(), limit_s=10)
            self.cluster.end(agent)

    def agent(self, node: NodeFacts) -> Any:
        """Return the agent of a node."""
        return self._agents[node.node_id]

    def asked(self, call: Callable[[], Any], limit_s: float | None = None, others: Sequence[Any] = ()) -> Any:
        """Return the answer of a call that may be repeated; it is, while the agent is unavailable.

        It is given up if one of `others`, which are agents, is lost. Raises `Lost`, which is remembered, `Stopped`, and
        TimeoutError after a limit.
        """
        interrupted_s = None
        while True:
            try:
                return self.cluster.answer(call(), limit_s, others)
            except Unavailable as error:
                interrupted_s = interrupted_s or time.monotonic()
                if time.monotonic() - interrupted_s > UNAVAILABLE_S:
                    raise Lost(self.note_lost(f"does not answer: {error}")) from error
                time.sleep(1.0)
            except Lost as error:
                raise Lost(self.note_lost(str(error)), memory=error.memory) from error

    def note_lost(self, text: str) -> str:
        """Remember that the machine is lost, and return the reason."""
        self._lost = self._lost or f"node_lost: {self.name}: {text}"
        return self._lost


class ExecutorOnMachine:
    """Runs cells on a machine of a cluster, or on several that train together."""

    name = "ray"

    def __init__(self, place: MachinesOnRay) -> None:
        self._place = place

    def missing(self, backend: str, device: str = "cpu") -> str | None:
        """Return None: only cells that fit this machine are given to it."""
        return None

    def begin_block(self, settings: Sequence[Settings]) -> None:
        """Collect the cells of all arms, which share the agents."""
        self._place.wanted += settings

    def await_block(self) -> None:
        """Let each node replace its servers, all of them before anything is measured.

        The loss of a node shows when a cell starts.
        """
        needs, self._place.wanted = self._place.wanted, []
        if not needs:
            return
        node_needs = [(node, need) for need in needs for offer in self._place.offers if (node := _node(offer, need))]
        refs = [
            self._place.agent(node).begin_block.remote(
                [need for chosen_node, need in node_needs if chosen_node is node]
            )
            for node in self._place.nodes
        ]
        for ref in refs:
            with contextlib.suppress(Lost, Unavailable, TimeoutError):
                self._place.cluster.answer(ref, ANSWER_S)

    def start(self, job: Job, timeout_s: float) -> Running:
        """Start the job on the node that has its backend; an external command on one that has its GPUs."""
        begun_s = time.perf_counter()
        try:
            agents = self._started(job, timeout_s)
        except TimeoutError:
            outcome = Outcome(infrastructure=self._place.note_lost(f"does not answer within {ANSWER_S:.0f} s"))
        except machines.TooLarge as error:
            outcome = Outcome(refused=str(error))
        except OSError as error:
            outcome = Outcome(infrastructure=f"modules: cannot be read: {error}")
        except ExecutorError as error:
            outcome = Outcome(infrastructure=str(error))
        else:
            return CellOnNode(self._place, agents, job, timeout_s + ANSWER_S)
        return Never(replace(outcome, wall_time_s=time.perf_counter() - begun_s))

    def _started(self, job: Job, timeout_s: float) -> list[Any]:
        """Start the job at every machine, after its modules have arrived; return its agents, the first one measures."""
        place, nodes = self._place, [self._node_for(job, offer) for offer in self._place.offers]
        agents = [place.agent(node) for node in nodes]
        jobs = [job] if len(agents) == 1 else self._divided(job, nodes)
        digests = self._send_modules(job, agents)
        for agent, node_job in zip(agents[1:], jobs[1:], strict=True):
            place.asked(partial(agent.provide.remote, node_job, digests), ANSWER_S)
        place.asked(lambda: agents[0].start.remote(jobs[0], timeout_s, digests), ANSWER_S)
        return agents

    def _send_modules(self, job: Job, agents: Sequence[Any]) -> dict[str, str]:
        """Send the modules that agents lack; return the digests of all by their folder."""
        place, archives = self._place, self._place.archives.of(job)
        digests = {root: digest for root, (digest, _) in archives.items()}
        for agent in agents if digests else []:
            for root in place.asked(partial(agent.missing_modules.remote, digests), ANSWER_S):
                place.asked(partial(agent.receive_modules.remote, *archives[root]), ANSWER_S)
        return digests

    def _divided(self, job: Job, nodes: Sequence[NodeFacts]) -> list[Job]:
        """Return the job of each machine, with where they meet."""
        place = self._place
        free_ports = [partial(place.agent(node).free_port.remote, node.address) for node in nodes[1:]]
        ports = [0, *(place.asked(call, ANSWER_S) for call in free_ports)]
        if None in ports:
            silent_node = nodes[ports.index(None)]
            raise ExecutorError(
                f"address: {silent_node.name} cannot listen at {silent_node.address}; start it with its own "
                "--node-ip-address"
            )
        sites = [
            Site(node.name, node.machine.host_id, node.address, port) for node, port in zip(nodes, ports, strict=True)
        ]
        key = secrets.token_hex(32)
        return [replace(job, rendezvous=Rendezvous(sites, key, index)) for index in range(len(sites))]

    def close(self) -> None:
        """Do nothing: the place ends its agents."""

    def _node_for(self, job: Job, offer: Offer) -> NodeFacts:
        """Return the node of a machine for a job. Raises `ExecutorError` if it has left."""
        if job.task is not None:
            gpu_count = job.task.gpus or 0
            return next((node for node in offer.nodes if len(node.machine.gpus) >= gpu_count), offer.nodes[0])
        node = _node(offer, job.settings)
        if node is None:
            raise ExecutorError(self._place.note_lost(f"no node has {job.settings.backend} any more"))
        return node


def _node(offer: Offer, settings: Settings) -> NodeFacts | None:
    return offer.node_for(settings.backend, settings.device)


class CellOnNode:
    """A cell's process on a node, with those that provide workers on other machines.

    If a node is lost, the outcome says so.
    """

    def __init__(self, place: MachinesOnRay, agents: Sequence[Any], job: Job, limit_s: float) -> None:
        """Take the time within which the first agent answers, which measures and observes the cell's own limit."""
        self._place, self._job, self._limit_s = place, job, limit_s
        self._agent, self._others = agents[0], list(agents[1:])
        self._numbers = itertools.count()
        self._gone: Outcome | None = None
        self._begun_s = time.perf_counter()

    def calibrated(self) -> float | None:
        """Return the process's step time in seconds."""
        time_s: float | None = self._call("calibrated")
        return time_s

    def resume(self, steps: int) -> None:
        """Set the steps per epoch."""
        self._call("resume", steps)

    def turn(self, waiting: Sequence[WaitingCell] = ()) -> bool:
        """Let the process run until it rests; its node knows which other cells wait there."""
        return bool(self._call("turn"))

    def root(self) -> None:
        """Return None: the process is not on this machine."""

    def resident_bytes(self) -> int:
        """Return the peak memory of the process tree."""
        return int(self._call("resident_bytes") or 0)

    def finish(self) -> Outcome:
        """Let the process run to its end, copy its files here, and return the outcome."""
        finished_cell: FinishedCell | None = self._call("finish")
        provided_cells = self._provided() if finished_cell is not None else []
        if self._gone is not None or finished_cell is None:
            return self._gone or Outcome(infrastructure="node_lost: the process was not observed")
        try:
            copied(finished_cell, self._job)
            outcome = (
                combined(finished_cell.outcome, provided_cells, self._job) if provided_cells else finished_cell.outcome
            )
        except (OSError, tarfile.TarError) as error:
            return Outcome(infrastructure=f"copy: the files of {self._place.name} cannot be written here: {error}")
        self._forget()
        if outcome.infrastructure is not None:
            return replace(outcome, infrastructure=f"{outcome.infrastructure} (node {self._place.name})")
        return outcome

    def abandon(self) -> None:
        """End the process and discard its outcome."""
        self._call("abandon")
        self._provided()
        if self._gone is None:
            self._forget()

    def kill(self) -> None:
        """Do nothing: the agents of a session end with it (`PlacesOnRay.stop`)."""

    def _forget(self) -> None:
        for agent in (self._agent, *self._others):
            agent.forget.remote(self._job.nonce)

    def _provided(self) -> list[FinishedCell]:
        """Return how the processes that provided workers have ended, those that were not lost."""
        provided_cells = []
        for other in self._others if self._gone is None else []:
            try:
                provided_cells.append(self._place.asked(partial(other.provided.remote, self._job.nonce), ANSWER_S))
            except TimeoutError:
                self._lose(Lost(self._place.note_lost(f"does not answer within {ANSWER_S:.0f} s")))
            except Lost as error:
                self._lose(error)
        return provided_cells

    def _call(self, method: str, *arguments: Any) -> Any:
        """Return the answer of the agent; None once it is lost. An interrupted call is repeated with its number."""
        if self._gone is not None:
            return None
        call = partial(self._agent.call.remote, self._job.nonce, next(self._numbers), method, *arguments)
        try:
            return self._place.asked(call, self._limit_s, self._others)
        except TimeoutError:
            self._lose(Lost(self._place.note_lost(f"does not answer within {self._limit_s:.0f} s")))
        except Lost as error:
            self._lose(error)
        return None

    def _lose(self, error: Lost) -> None:
        wall_s = time.perf_counter() - self._begun_s
        if error.memory:  # a cell that needs too much memory needs it everywhere
            self._gone = Outcome(signal=KILLED, oom_kills=1, wall_time_s=wall_s, machine=self._place.offers[0].machine)
        else:
            self._gone = Outcome(infrastructure=str(error), wall_time_s=wall_s)


def copied(finished_cell: FinishedCell, job: Job) -> None:
    """Write the files of a process to the job's folders here. Raises OSError and `tarfile.TarError`."""
    machines.unpacked(finished_cell.folder, Path(job.folder))
    if finished_cell.outputs is not None and job.outputs_dir is not None:
        machines.unpacked(finished_cell.outputs, Path(job.outputs_dir))


def combined(measured_outcome: Outcome, provided_cells: Sequence[FinishedCell], job: Job) -> Outcome:
    """Return the outcome of a cell whose measuring process has left its files here; others' files replace them.

    Raises OSError and `tarfile.TarError` if these cannot be written.
    """
    result = _result(job)
    if _is_well(measured_outcome) or (job.goes_on and result is not None and result.device is not None):
        return measured_outcome
    failed_cell = next((provided_cell for provided_cell in provided_cells if not _is_well(provided_cell.outcome)), None)
    if failed_cell is not None:
        copied(failed_cell, job)
        return failed_cell.outcome
    name, message = (result.exception or "", result.message or "") if result else ("", "")
    if name.endswith(NOT_CONNECTED):
        return replace(measured_outcome, infrastructure=f"rendezvous: {message}")
    kills = sum(provided_cell.outcome.oom_kills or 0 for provided_cell in provided_cells)
    if kills and name.endswith(WORKER_DIED) and FAR in message:
        return replace(measured_outcome, exit_code=None, signal=KILLED, oom_kills=kills)
    return measured_outcome


def _is_well(outcome: Outcome) -> bool:
    return outcome.exit_code == 0 and outcome.infrastructure is None


def _result(job: Job) -> CellResult | None:
    """Return what the measuring process has written, None without a valid result."""
    try:
        return decode(CellResult, read_json(job.result_path, RESULT_LIMIT_BYTES), "result")
    except (OSError, CodecError):
        return None

"""The runner's side of cells on a cluster: a machine as a place, its executor, and a cell that runs there."""

from __future__ import annotations

import contextlib
import hashlib
import itertools
import tarfile
import time
from collections.abc import Callable, Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

from keras_matrix.records.settings import Settings
from keras_matrix.records.store import Run
from keras_matrix.runner.cell.job import Job
from keras_matrix.runner.errors import ExecutorError
from keras_matrix.runner.executors import Executor, Outcome, Running, WaitingCell
from keras_matrix.runner.executors.ray import folders
from keras_matrix.runner.executors.ray.agent import Ended
from keras_matrix.runner.executors.ray.cluster import UNAVAILABLE_S, Cluster, Lost, Unavailable
from keras_matrix.runner.executors.ray.machines import NodeFacts, Offer
from keras_matrix.runner.executors.supervise.watch import Never

KILLED = 9
ACQUIRE_POLL_S = 1.0
# Within this time an agent answers a call that waits for no cell; the import of a backend is a part of the first one.
ANSWER_S = 180.0


class Archives:
    """The archives of the user's folders of modules, made once per session; `results` is left out of them."""

    def __init__(self, results: Path | None = None) -> None:
        self._results = results
        self._made: dict[str, tuple[str, bytes]] = {}

    def of(self, job: Job) -> dict[str, tuple[str, bytes]]:
        """Return digest and archive of each folder that a job's process searches.

        Raises `TooLarge` and OSError.
        """
        own = ":" in job.settings.workload or job.task is not None
        return {root: self._archive(root) for root in dict.fromkeys(job.import_roots) if own}

    def _archive(self, root: str) -> tuple[str, bytes]:
        if root not in self._made:
            archive = folders.modules(Path(root), self._results)
            self._made[root] = (hashlib.sha256(archive).hexdigest()[:16], archive)
        return self._made[root]


class MachineOnRay:
    """A machine of the cluster as a place: one agent on each of its nodes, which together hold its measuring slot."""

    def __init__(self, cluster: Cluster, offer: Offer, archives: Archives, mark: str, start: str) -> None:
        self.identity, self.name = offer.identity, offer.name
        self.offer, self.archives = offer, archives
        self.cluster = cluster
        self._mark, self._start = mark, start
        self._agents: dict[str, Any] = {}
        self._lost: str | None = None
        self.wanted: list[Settings] = []

    def acquire(self, give_up: Callable[[], bool]) -> bool:
        """Start the agents, one after the other in the order of their nodes, so that two sessions do not block."""
        for node in self.offer.nodes:
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

    def update(self, offer: Offer | None) -> None:
        """Take the machine's present nodes, unless a session is measuring there; None if it has no living node."""
        if self._agents:
            return
        if offer is None:
            self.note_lost("its nodes have left the cluster")
        else:
            self.offer = offer

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
            if self._lost is None:
                with contextlib.suppress(Exception):  # it is ended in any case
                    self.cluster.answer(agent.close.remote(), limit_s=10)
            self.cluster.end(agent)

    def agent(self, node: NodeFacts) -> Any:
        """Return the agent of a node."""
        return self._agents[node.node_id]

    def asked(self, call: Callable[[], Any], limit_s: float | None = None) -> Any:
        """Return the answer of a call that may be repeated; it is, while the agent is unavailable.

        Raises `Lost`, which is remembered, `Stopped`, and TimeoutError after a limit.
        """
        begun_s = time.monotonic()
        while True:
            try:
                return self.cluster.answer(call(), limit_s)
            except Unavailable as error:
                if time.monotonic() - begun_s > UNAVAILABLE_S:
                    raise Lost(self.note_lost(f"does not answer: {error}")) from error
                time.sleep(1.0)
            except Lost as error:
                raise Lost(self.note_lost(str(error)), memory=error.memory) from error

    def note_lost(self, text: str) -> str:
        """Remember that the machine is lost, and return the reason."""
        self._lost = self._lost or f"node_lost: {self.name}: {text}"
        return self._lost


class ExecutorOnMachine:
    """Runs cells on one machine of a cluster."""

    name = "ray"

    def __init__(self, place: MachineOnRay) -> None:
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
        wanted, self._place.wanted = self._place.wanted, []
        if not wanted:
            return
        nodes = self._place.offer.nodes
        refs = [
            self._place.agent(node).begin_block.remote([s for s in wanted if self._node(s) is node]) for node in nodes
        ]
        for ref in refs:
            with contextlib.suppress(Lost, Unavailable, TimeoutError):
                self._place.cluster.answer(ref, ANSWER_S)

    def start(self, job: Job, timeout_s: float) -> Running:
        """Start the job on the node that has its backend; an external command on one that has its GPUs."""
        begun_s = time.perf_counter()
        try:
            agent = self._started(job, timeout_s)
        except TimeoutError:
            outcome = Outcome(infrastructure=self._place.note_lost(f"does not answer within {ANSWER_S:.0f} s"))
        except folders.TooLarge as error:
            outcome = Outcome(refused=str(error))
        except OSError as error:
            outcome = Outcome(infrastructure=f"modules: cannot be read: {error}")
        except ExecutorError as error:
            outcome = Outcome(infrastructure=str(error))
        else:
            return CellOnNode(self._place, agent, job, timeout_s + ANSWER_S)
        return Never(replace(outcome, wall_time_s=time.perf_counter() - begun_s))

    def _started(self, job: Job, timeout_s: float) -> Any:
        """Start the job, after its modules have arrived, and return its agent."""
        place, archives = self._place, self._place.archives.of(job)
        digests, agent = {root: digest for root, (digest, _) in archives.items()}, place.agent(self._node_for(job))
        lacking = place.asked(lambda: agent.missing_modules.remote(digests), ANSWER_S) if digests else []
        for root in lacking:
            place.asked(partial(agent.receive_modules.remote, *archives[root]), ANSWER_S)
        place.asked(lambda: agent.start.remote(job, timeout_s, digests), ANSWER_S)
        return agent

    def close(self) -> None:
        """Do nothing: the place ends its agents."""

    def _node_for(self, job: Job) -> NodeFacts:
        """Return the node for a job. Raises `ExecutorError` if it has left."""
        nodes = self._place.offer.nodes
        if job.task is not None:
            gpus = job.task.gpus or 0
            return next((node for node in nodes if len(node.machine.gpus) >= gpus), nodes[0])
        node = self._node(job.settings)
        if node is None:
            raise ExecutorError(self._place.note_lost(f"no node has {job.settings.backend} any more"))
        return node

    def _node(self, settings: Settings) -> NodeFacts | None:
        return self._place.offer.node_for(settings.backend, settings.device)


class CellOnNode:
    """A cell's process on a node. If the node is lost, the outcome says so."""

    def __init__(self, place: MachineOnRay, agent: Any, job: Job, limit_s: float) -> None:
        """Take the time within which the agent answers any call: the cell's own limit is observed there."""
        self._place, self._agent, self._job, self._limit_s = place, agent, job, limit_s
        self._numbers = itertools.count()
        self._gone: Outcome | None = None
        self._begun_s = time.perf_counter()

    def calibrated(self) -> float | None:
        """Return the process's step time in seconds."""
        found: float | None = self._call("calibrated")
        return found

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
        ended: Ended | None = self._call("finish")
        if ended is None:
            return self._gone or Outcome(infrastructure="node_lost: the process was not observed")
        try:
            folders.unpacked(ended.folder, Path(self._job.folder))
            if ended.outputs is not None and self._job.outputs_dir is not None:
                folders.unpacked(ended.outputs, Path(self._job.outputs_dir))
        except (OSError, tarfile.TarError) as error:
            return Outcome(infrastructure=f"copy: the files of {self._place.name} cannot be written here: {error}")
        self._agent.forget.remote(self._job.nonce)
        if ended.outcome.infrastructure is not None:
            named = f"{ended.outcome.infrastructure} (node {self._place.name})"
            return replace(ended.outcome, infrastructure=named)
        return ended.outcome

    def abandon(self) -> None:
        """End the process and discard its outcome."""
        self._call("abandon")
        if self._gone is None:
            self._agent.forget.remote(self._job.nonce)

    def _call(self, method: str, *arguments: Any) -> Any:
        """Return the answer of the agent; None once it is lost. An interrupted call is repeated with its number."""
        if self._gone is not None:
            return None
        call = partial(self._agent.call.remote, self._job.nonce, next(self._numbers), method, *arguments)
        try:
            return self._place.asked(call, self._limit_s)
        except TimeoutError:
            self._lose(Lost(self._place.note_lost(f"does not answer within {self._limit_s:.0f} s")))
        except Lost as error:
            self._lose(error)
        return None

    def _lose(self, error: Lost) -> None:
        wall_s = time.perf_counter() - self._begun_s
        if error.memory:  # a cell that needs too much memory needs it everywhere
            self._gone = Outcome(signal=KILLED, oom_kills=1, wall_time_s=wall_s, machine=self._place.offer.machine)
        else:
            self._gone = Outcome(infrastructure=str(error), wall_time_s=wall_s)

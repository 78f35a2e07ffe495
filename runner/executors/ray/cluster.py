"""The connection to a Ray cluster: its nodes, and calls that say whether their node was lost. Imports Ray when used.

Ray's own retries are off: a call that may have started a measurement must not be repeated behind the runner's back.
"""

from __future__ import annotations

import contextlib
import os
import socket
import threading
import time
from collections.abc import Mapping, Sequence
from dataclasses import replace
from importlib.metadata import version
from pathlib import Path
from typing import Any

from keras_matrix.records.host.inherited_environment import without_user
from keras_matrix.runner.errors import ExecutorError
from keras_matrix.runner.executors.places import SessionEnded
from keras_matrix.runner.executors.ray.agent import Agent, facts
from keras_matrix.runner.executors.ray.machines import NodeFacts

SLOT = "measuring_slot"
PACKAGE = "keras-matrix"
# A node that does not answer for so long is lost. Ray itself declares it dead after about half a minute.
UNAVAILABLE_S = 90.0
FACTS_S = 120.0
POLL_S = 0.5
# So often an agent whose cell works for one on another machine is asked whether it exists.
ALIVE_S = 5.0
CONNECT_S = 5.0
# The server that Ray forks for a client now and then does not start, as the parent has threads.
CONNECT_ATTEMPTS = 3
SERVER_FAILED = "Starting Ray client server failed"
CLIENT = ("127.0.0.1", 10001)
START_ADVICE = "start one with `ray start --head`, or name the address of its head"
GUIDE = "docs/cluster.md"


class Lost(ExecutorError):
    """An agent or its node does not exist any more; the text says how it ended. `memory` if Ray ended it for memory."""

    def __init__(self, text: str, *, memory: bool = False) -> None:
        super().__init__(text)
        self.memory = memory


class Cluster:
    """A connected cluster."""

    def __init__(self, address: str) -> None:
        """Connect to an address, "" for the cluster of this machine. Raises `ExecutorError` that says what to do."""
        self._ray = _connected(address)
        self._stopping = threading.Event()
        self._facts: dict[str, NodeFacts] = {}
        self._unusable: dict[str, str] = {}

    def begin(self) -> None:
        """Let calls wait again, after `stop`."""
        self._stopping = threading.Event()

    def facts(self, *, strict: bool = True) -> list[NodeFacts]:
        """Return what the living nodes with a measuring slot report.

        Raises `ExecutorError` for another version of this program; if not `strict`, such a node is not used.
        """
        nodes = {str(node["NodeID"]): node for node in self._ray.nodes()}
        alive_nodes = {
            node_id: node for node_id, node in nodes.items() if node["Alive"] and node["Resources"].get(SLOT, 0) >= 1
        }
        answer_refs = {
            node_id: self._ask(node)
            for node_id, node in alive_nodes.items()
            if node_id not in self._facts | self._unusable
        }
        for node_id, ref in answer_refs.items():
            try:
                self._facts[node_id] = self._answer(alive_nodes[node_id], ref)
            except Lost:
                continue  # it is asked again
            except ExecutorError as error:
                if strict:
                    raise
                self._unusable[node_id] = str(error)
        return [node_facts for node_id, node_facts in self._facts.items() if node_id in alive_nodes]

    def agent(self, node: NodeFacts, mark: str, start: str) -> Any:
        """Return a new agent on a node, which starts once the machine's measuring slot is free."""
        return self._on(node.node_id, Agent, resources={SLOT: 1}, max_restarts=0, max_task_retries=0).remote(
            mark, start, node.labels
        )

    def end(self, agent: Any) -> None:
        """End an agent, and with it all processes of its cells."""
        with contextlib.suppress(Exception):  # the cluster may be gone as well
            self._ray.kill(agent)

    def answer(self, ref: Any, limit_s: float | None = None, others: Sequence[Any] = ()) -> Any:
        """Return the answer of a call, while `others`, which are agents, exist.

        Raises `Lost` or `SessionEnded`, and TimeoutError after a limit.
        """
        errors = self._ray.exceptions
        begun_s, alive_agents = time.monotonic(), [(other, other.ready.remote(), 0.0) for other in others]
        while True:
            if self._stopping.is_set():
                raise SessionEnded
            try:
                if self._ray.wait([ref], timeout=POLL_S)[0]:
                    return self._ray.get(ref)
                alive_agents = [self._checked(*alive_agent) for alive_agent in alive_agents]
            except errors.RayError as error:  # of the agent, its node, or the start of either
                if self._stopping.is_set():
                    raise SessionEnded from error
                if isinstance(error, errors.ActorUnavailableError):
                    raise Unavailable(_line(error)) from error
                out_of_memory = isinstance(error, errors.OutOfMemoryError) or "memory monitor" in str(error).lower()
                raise Lost(_line(error), memory=out_of_memory) from error
            if limit_s is not None and time.monotonic() - begun_s > limit_s:
                raise TimeoutError

    def _checked(self, agent: Any, ref: Any, asked_s: float) -> tuple[Any, Any, float]:
        """Return an agent with the call that shows that it exists, a new one every few seconds. Raises Ray's error."""
        now_s = time.monotonic()
        if not self._ray.wait([ref], timeout=0)[0]:
            return agent, ref, asked_s or now_s
        self._ray.get(ref)
        return (agent, agent.ready.remote(), now_s) if now_s - asked_s > ALIVE_S else (agent, ref, asked_s)

    def stop(self) -> None:
        """Let calls that wait raise `SessionEnded`."""
        self._stopping.set()

    def dashboard(self) -> str | None:
        """Return the address of Ray's dashboard, None if it has none."""
        with contextlib.suppress(Exception):
            url = self._ray._private.worker.get_dashboard_url()
            return f"http://{url}" if url else None
        return None

    def _ask(self, node: Mapping[str, Any]) -> Any:
        labels = {key: str(value) for key, value in (node.get("Labels") or {}).items()}
        return self._on(str(node["NodeID"]), facts, max_retries=0).remote(str(node["NodeID"]), labels)

    def _answer(self, node: Mapping[str, Any], ref: Any) -> NodeFacts:
        node_text = f"node {node['NodeManagerHostname']} ({node['NodeManagerAddress']})"
        try:
            node_facts: NodeFacts = self.answer(ref, FACTS_S)
        except TimeoutError:
            raise ExecutorError(
                f"cluster: {node_text}: does not answer within {FACTS_S:.0f} s; see `ray status`"
            ) from None
        except Lost as error:
            if "ModuleNotFoundError" in str(error) or "AttributeError" in str(error):
                raise ExecutorError(
                    f"cluster: {node_text}: has no {PACKAGE} of this version: {error}; install {PACKAGE} "
                    f"{version(PACKAGE)} in the environment of its `ray start`"
                ) from error
            raise
        own_version = version(PACKAGE)
        if node_facts.program != own_version:
            raise ExecutorError(
                f"cluster: {node_text}: has {PACKAGE} {node_facts.program}, here is {own_version}; install the same on "
                "all nodes"
            )
        return replace(node_facts, address=str(node["NodeManagerAddress"]))

    def _on(self, node_id: str, remote_function: Any, **options: Any) -> Any:
        """Return a remote function or class that runs on one node and uses none of its CPUs."""
        from ray.util.scheduling_strategies import NodeAffinitySchedulingStrategy

        strategy = NodeAffinitySchedulingStrategy(node_id, soft=False)
        return self._ray.remote(remote_function).options(num_cpus=0, scheduling_strategy=strategy, **options)


class Unavailable(Exception):
    """An agent does not answer at the moment."""


def usual_address() -> str:
    """Return the cluster of this machine: by the port for clients, which compose.yaml opens too, or else Ray's."""
    with contextlib.suppress(OSError):
        socket.create_connection(CLIENT, CONNECT_S).close()
        return f"ray://{CLIENT[0]}:{CLIENT[1]}"
    return "auto"


def _connected(address: str) -> Any:
    os.environ.setdefault("RAY_AUTH_MODE", "token")
    try:
        import ray
    except ImportError as error:
        raise ExecutorError(f"--executor ray: needs Ray: pip install '{PACKAGE}[ray]' ({error})") from error
    import logging

    _check_token()
    address = address or usual_address()
    _check_reachable(address)
    for attempt in range(CONNECT_ATTEMPTS):
        try:
            ray.init(address=address, log_to_driver=False, logging_level=logging.CRITICAL, configure_logging=True)
            break
        except Exception as error:
            if SERVER_FAILED in str(error) and attempt + 1 < CONNECT_ATTEMPTS:
                continue
            reason = without_user(f"no Ray cluster at {address}: {_line(error)}; {_advice(str(error))}")
            raise ExecutorError(f"--address: {reason}") from error
    return ray


def _check_token() -> None:
    """Raise `ExecutorError` if there is no token: without one, whoever reaches a port may run any program there."""
    if os.environ["RAY_AUTH_MODE"] != "token":
        raise ExecutorError(
            f"RAY_AUTH_MODE: must be token, got {os.environ['RAY_AUTH_MODE']!r}: an open port of Ray runs any program "
            f"that reaches it ({GUIDE})"
        )
    path = Path(os.environ.get("RAY_AUTH_TOKEN_PATH") or Path.home() / ".ray" / "auth_token")
    if not os.environ.get("RAY_AUTH_TOKEN") and not path.is_file():
        raise ExecutorError(
            f"RAY_AUTH_TOKEN: no token of the cluster in this variable or in {path}; set RAY_AUTH_TOKEN_PATH to the "
            f"file with the token of `ray start` ({GUIDE})"
        )


def _check_reachable(address: str) -> None:
    """Raise `ExecutorError` if nothing listens at an address: Ray itself would try for minutes."""
    host, _, port = address.removeprefix("ray://").rpartition(":")
    if not (host and port.isdecimal()):
        return
    try:
        socket.create_connection((host.strip("[]"), int(port)), CONNECT_S).close()
    except OSError as error:
        raise ExecutorError(
            f"--address: no Ray cluster at {without_user(address)}: {error.strerror or error}; {START_ADVICE}"
        ) from error


def _advice(text: str) -> str:
    if "version mismatch" in text.lower():
        return "install the same versions of Ray and Python here and on the nodes"
    if "connection timeout" in text.lower():  # what a client sees of a cluster with another token
        return f"use the token with which the cluster was started; if there is none, {START_ADVICE}"
    if "failed to connect" in text.lower() or "unauthenticated" in text.lower() or "token" in text.lower():
        return "use the token with which the cluster was started, and the same version of Ray"
    return START_ADVICE


def _line(error: BaseException) -> str:
    """Return an error of Ray in one line: its last line that is not empty, which names the cause."""
    lines = [line.strip() for line in str(error).splitlines() if line.strip()]
    cause = next((line for line in reversed(lines) if ": " in line), lines[-1] if lines else type(error).__name__)
    return cause[:300]

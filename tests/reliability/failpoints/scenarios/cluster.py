"""The Ray driver, with agents in its own process: calls that are not received or not answered, and nodes that are lost.

Everything but Ray itself is the product's: the driver, the agents, and the processes of their cells.
"""

from __future__ import annotations

import contextlib
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any
from unittest import mock

from keras_matrix.runner.cli.main import main
from keras_matrix.runner.executors.ray import agent as agents
from keras_matrix.runner.executors.ray.cluster import Lost, Unavailable
from keras_matrix.runner.executors.ray.machines import NodeFacts
from keras_matrix.runner.executors.ray.registration import PlacesOnRay
from keras_matrix.runner.measure.seams import Seams
from tests.reliability.failpoints import seam
from tests.reliability.failpoints.kinds import Kind
from tests.reliability.failpoints.scenario import FILES, Scenario
from tests.reliability.failpoints.scenarios.tasks import incomplete, prepare
from tests.runner.executors.ray.test_machines import SMALL, node

Reference = tuple[Any, Exception | None]


@dataclass
class Method:
    """A method of an agent, called at once; what it returns or raises is what its reference stands for."""

    handle: Handle
    name: str

    def remote(self, *arguments: Any) -> Reference:
        """Call it, unless the connection or the node is lost before or after."""
        handle = self.handle
        kind = None if handle.lost or not seam.current else seam.current[-1].reach("call", self.name)
        if kind is Kind.LOST:
            handle.lost = True
        if handle.lost:
            return None, Lost("the node died")
        if kind is Kind.RESET:
            return None, Unavailable("connection reset")
        try:
            found = getattr(handle.agent, self.name)(*arguments)
        except Exception as error:  # noqa: BLE001 - Ray raises an error of the agent where its answer is asked for
            return None, Lost(str(error))
        return found, Unavailable("no answer") if kind is Kind.UNANSWERED else None


@dataclass
class Handle:
    """An agent on a node."""

    agent: agents.Agent
    lost: bool = False

    def __getattr__(self, name: str) -> Method:
        return Method(self, name)


@dataclass
class OneNode:
    """A cluster with one node."""

    nodes: list[NodeFacts] = field(default_factory=lambda: [node("1", SMALL, "jax")])

    def begin(self) -> None:
        """Do nothing."""

    def stop(self) -> None:
        """Do nothing."""

    def dashboard(self) -> None:
        """Return None: there is none."""

    def facts(self, *, strict: bool = True) -> list[NodeFacts]:
        """Return the node."""
        return self.nodes

    def agent(self, found: NodeFacts, mark: str, start: str) -> Handle:
        """Start an agent."""
        return Handle(agents.Agent(mark, start, {}))

    def end(self, agent: Handle) -> None:
        """End an agent: its processes end as they do with its own process."""
        with contextlib.suppress(OSError):
            agent.agent.close()

    def answer(
        self, ref: tuple[Any, Exception | None], limit_s: float | None = None, others: Sequence[Any] = ()
    ) -> Any:
        """Return the answer of a call."""
        found, error = ref
        if error is not None:
            raise error
        return found


def measure(folder: Path) -> int:
    """Run the commands on the cluster."""
    with mock.patch.object(agents, "restored"), mock.patch.object(agents.tree_memory, "end_leftovers"):
        places = PlacesOnRay(OneNode(), folder / "results", "fork")  # type: ignore[arg-type]
        return main(["--matrix", "matrix.yaml", "--results", str(folder / "results")], Seams(places=places))


SCENARIOS = (
    Scenario(
        "ray",
        measure,
        prepare,
        differences=incomplete,
        kinds=(*FILES, Kind.EAGAIN, Kind.RESET, Kind.UNANSWERED, Kind.LOST),
    ),
)

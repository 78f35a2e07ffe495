"""Hand-made trace graphs, whose step times follow by mental arithmetic. Times are in nanoseconds."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import replace
from typing import Any

from keras_matrix.analysis.whatif.graph import Collective, Graph, Header, LinkCalibration, Node, NodeKind, checked

MAIN, LINK = "main", "link"


def header(**changes: Any) -> Header:
    """Return a header of one rank with unlimited cores."""
    made = Header("hand-made", "torch", "cpu", 1, step_times_s=(1e-7,), coverage=1.0, exclusive=True)
    return replace(made, **changes)


class Nodes:
    """Collects nodes; every method returns the number of the node that it adds."""

    def __init__(self) -> None:
        """Begin without nodes."""
        self.nodes: list[Node] = []

    def add(self, durations: int | Sequence[int], rank: int = 0, lane: str = MAIN, **fields: Any) -> int:
        """Add a computation that keeps no core busy unless `cores` says so."""
        values = (durations,) if isinstance(durations, int) else tuple(durations)
        number = len(self.nodes)
        gaps = fields.pop("gaps", 0)
        gap = (gaps,) * len(values) if isinstance(gaps, int) else tuple(gaps)
        fields = {"kind": NodeKind.COMPUTE, "name": f"node {number}", "cores": 0.0, "starts_ns": (), **fields}
        self.nodes.append(Node(number=number, rank=rank, lane=lane, durations_ns=values, gaps_ns=gap, **fields))
        return number

    def collective(self, ordinal: int, durations: Sequence[int], depends: Sequence[int], **fields: Any) -> list[int]:
        """Add a node for each rank, with a duration and a dependency each."""
        ranks = tuple(range(len(durations)))
        sizes = {name: fields.pop(name) for name in ("bytes", "tensors", "tensor_layers") if name in fields}
        one = Collective("default", ordinal, fields.pop("operation", "all_reduce"), ranks, **{"bytes": 0, **sizes})
        fields = {"lane": LINK, "kind": NodeKind.COMMUNICATION, "collective": one, **fields}
        return [self.add(durations[rank], rank, depends=(depends[rank],), **fields) for rank in ranks]

    def graph(self, **header_fields: Any) -> Graph:
        """Return the checked graph."""
        ranks = 1 + max(node.rank for node in self.nodes)
        return checked(Graph(header(**{"world_size": ranks, **header_fields}), tuple(self.nodes)))


def chain(durations: Iterable[int], **fields: Any) -> Graph:
    """Return a graph of one lane."""
    nodes = Nodes()
    for duration in durations:
        nodes.add(duration, **fields)
    return nodes.graph()


def link(alpha_s: float, beta_s_per_byte: float, ranks: int = 2, **fields: Any) -> LinkCalibration:
    """Return a calibration."""
    return LinkCalibration(alpha_s, beta_s_per_byte, ranks, "hand-made", **fields)


def data_parallel(ranks: int = 2, layers: int = 4, link_rate: float | None = None, **header_fields: Any) -> Graph:
    """Return a step as of torch's DistributedDataParallel with a bucket for every layer.

    Forward 100 a layer, backward 200, the gradient of 1000 bytes; an update of 50 waits for all buckets. A bucket's
    all-reduce takes 300: alpha 100 and 200 for its bytes.
    """
    nodes = Nodes()
    names = [f"layer_{at}" for at in range(layers)]
    backward: dict[tuple[int, str], int] = {}
    for rank in range(ranks):
        for name in names:
            nodes.add(100, rank, phase="forward", layer=name, name=f"{name} forward")
        for name in reversed(names):
            backward[rank, name] = nodes.add(
                200, rank, phase="backward", layer=name, gradient_of=name, name=f"{name} backward"
            )
    collectives: list[list[int]] = []
    for ordinal, name in enumerate(reversed(names)):
        fields: dict[str, Any] = {"bytes": 1000, "tensors": (1000,), "tensor_layers": (name,), "name": "all_reduce"}
        depends = [backward[rank, name] for rank in range(ranks)]
        collectives.append(nodes.collective(ordinal, [300] * ranks, depends, phase="communication", **fields))
    for rank in range(ranks):
        waits = tuple(one[rank] for one in collectives)
        nodes.add(50, rank, depends=waits, phase="update", name="update")
    given = {"link": link(100e-9, 0.2e-9, ranks, rate_bits_per_s=link_rate), **header_fields}
    return nodes.graph(**given)


def fc_cell(**settings: Any) -> Graph:
    """Return `data_parallel` as the trace of a cell of the workload `fc`: two workers, 8 samples, 200 Mbit/s."""
    found = {"workload": "fc", "mode": "fc_data", "workers": 2, "batch_size": 8, "network": "200mbit", **settings}
    return data_parallel(link_rate=2e8, settings=found)

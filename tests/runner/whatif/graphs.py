"""Small trace graphs for tests of the host side."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from typing import Any

from keras_matrix.analysis.whatif.collectives import time_s
from keras_matrix.analysis.whatif.graph import Collective, Graph, Header, LinkCalibration, Node, NodeKind, checked
from keras_matrix.analysis.whatif.replay import replay

MS = 1_000_000
STEPS = 3


def two_workers(forward_ns: int = 2 * MS) -> Graph:
    """Two workers, each with a forward pass, two gradients of 1 and 2 MB that are summed apart, and an update."""
    nodes: list[Node] = []
    for rank in (0, 1):
        nodes += _worker(rank, len(nodes), forward_ns)
    step_s = sum(node.durations_ns[0] for node in nodes if node.rank == 0) / 1e9
    header = Header("fake.json", "torch", "cpu", 2, (step_s,) * STEPS, 0.99, cores=2)
    return checked(Graph(header, tuple(nodes)))


def _worker(rank: int, first: int, forward_ns: int) -> Iterator[Node]:
    def node(offset: int, duration_ns: int, name: str, phase: str, **more: object) -> Node:
        values = (duration_ns, duration_ns + offset, duration_ns)
        fields = {"lane": "main", "kind": NodeKind.COMPUTE, "layer": "dense", **more}
        return Node(
            number=first + offset,
            rank=rank,
            name=name,
            durations_ns=values,
            gaps_ns=(0,) * STEPS,
            starts_ns=(offset * MS,) * STEPS,
            phase=phase,
            **fields,  # type: ignore[arg-type]
        )

    def summed(ordinal: int, size: int) -> Collective:
        return Collective("0,1", ordinal, "all_reduce", (0, 1), size, (size,), (f"dense_{ordinal}",))

    communication = {"lane": "gloo", "kind": NodeKind.COMMUNICATION, "cores": 0.0}
    yield node(0, forward_ns, "mm", "forward", shape=(128, 1024), flops=2e6, dtype="float32")
    yield node(1, 3 * MS, "mm backward", "backward", gradient_of="dense_1")
    yield node(2, 3 * MS, "mm backward", "backward", gradient_of="dense_0")
    one, two = summed(0, 1_000_000), summed(1, 2_000_000)
    yield node(3, 4 * MS, "all_reduce", "communication", depends=(first + 1,), collective=one, **communication)
    yield node(4, 8 * MS, "all_reduce", "communication", depends=(first + 2,), collective=two, **communication)
    yield node(5, MS, "add_", "update", depends=(first + 4,))


def data_parallel(link: LinkCalibration, groups: tuple[int, ...] = (1, 1, 1, 1)) -> Graph:
    """Two workers of four layers with gradients of 1 MB each, summed in these groups over a link.

    Each layer takes 2 ms forward, 3 ms backward, the last layer's gradient is complete first, then 1 ms of update.
    """
    nodes: list[Node] = []
    for rank in (0, 1):
        nodes += _layers(rank, len(nodes), link, groups)
    graph = Graph(Header("fake", "torch", "cpu", 2, (1.0,) * STEPS, 0.97, cores=2, link=link), tuple(nodes))
    step_s = replay(checked(graph)).step_time_s
    return graph.with_nodes(nodes, step_times_s=(step_s,) * STEPS)


def _layers(rank: int, first: int, link: LinkCalibration, groups: tuple[int, ...]) -> Iterator[Node]:
    layers, size = [f"layer_{number}" for number in range(4)], 1_000_000
    plain = {"rank": rank, "gaps_ns": (0,) * STEPS, "starts_ns": ()}
    number = first
    for layer in layers:
        yield _work(number, 2, layer, "forward", plain)
        number += 1
    ready = {}
    for layer in reversed(layers):
        yield replace(_work(number, 3, layer, "backward", plain), gradient_of=layer)
        ready[layer] = number
        number += 1
    names = list(ready)
    for ordinal, count in enumerate(groups):
        own, names = names[:count], names[count:]
        one = Collective("0,1", ordinal, "all_reduce", (0, 1), count * size, (size,) * count, tuple(own))
        time_ns = round(time_s(link, "all_reduce", 2, one.bytes) * 1e9)
        node = _work(number, time_ns / MS, None, "communication", plain)
        depends = tuple(ready[layer] for layer in own)
        yield replace(node, lane="gloo", kind=NodeKind.COMMUNICATION, cores=0.0, depends=depends, collective=one)
        number += 1
    yield replace(_work(number, 1, None, "update", plain), depends=(number - 1,))


def _work(number: int, time_ms: float, layer: str | None, phase: str, plain: dict[str, Any]) -> Node:
    return Node(
        number=number,
        lane="main",
        kind=NodeKind.COMPUTE,
        name=phase,
        durations_ns=(round(time_ms * MS),) * STEPS,
        phase=phase,
        layer=layer,
        cores=0.5,
        **plain,
    )

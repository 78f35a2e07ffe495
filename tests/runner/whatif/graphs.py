"""Small trace graphs for tests of the host side."""

from __future__ import annotations

from collections.abc import Iterator

from keras_matrix.analysis.whatif.graph import Collective, Graph, Header, Node, NodeKind, checked

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

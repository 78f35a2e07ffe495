"""A graph is moved from the traced process to the mean one: only what keeps a core busy becomes longer or shorter."""

from __future__ import annotations

from dataclasses import replace

import pytest

from keras_matrix.analysis.whatif.corrections import as_mean_process
from keras_matrix.analysis.whatif.graph import Graph
from keras_matrix.analysis.whatif.replay import step_time_s
from tests.analysis.whatif.hand_made import Nodes

MS = 1_000_000


def stack(device: str = "cpu") -> Graph:
    """8 ms of computation after a sleep of 2 ms."""
    nodes = Nodes()
    nodes.add((2 * MS,) * 3, cores=0.0)
    nodes.add((8 * MS,) * 3, cores=1.0)
    graph = nodes.graph()
    return replace(graph, header=replace(graph.header, device=device))


@pytest.mark.parametrize("times_ms", [(10.0, 11.0, 12.0), (9.0, 10.0, 9.5, 8.5)])
def test_the_replay_takes_the_mean_step_time_and_sleeps_are_unchanged(times_ms: tuple[float, ...]) -> None:
    mean_ms = sum(times_ms) / len(times_ms)
    found = as_mean_process(stack(), [time / 1e3 for time in times_ms])
    assert step_time_s(found) == pytest.approx(mean_ms / 1e3, rel=0.0015)
    assert [node.durations_ns[0] / MS for node in found.nodes] == pytest.approx([2.0, mean_ms - 2], rel=0.003)
    percent = (mean_ms - 2) / 8 - 1
    share, text = found.header.caveats[-1].removeprefix("computation was made ").split(" longer", 1)
    assert float(share.rstrip("%")) / 100 == pytest.approx(percent, abs=0.002)
    assert text == f", for the mean of {len(times_ms)} processes of the cell"


@pytest.mark.parametrize(
    ("times_ms", "device"),
    [
        ((), "cpu"),
        ((11.0,), "cpu"),
        ((11.0, 12.0), "gpu"),
        ((10.0, 10.0), "cpu"),
        ((14.0, 16.0), "cpu"),
        ((5.0, 7.0), "cpu"),
    ],
    ids=["unknown", "one process", "on a GPU", "the traced one is the mean", "far slower", "far faster"],
)
def test_the_graph_is_unchanged(times_ms: tuple[float, ...], device: str) -> None:
    found = as_mean_process(stack(device), [time / 1e3 for time in times_ms])
    assert found.nodes == stack(device).nodes
    assert found.header.caveats == ()

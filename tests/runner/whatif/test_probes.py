"""The ratio of a probed block of layers, from the step times of processes with and without the change."""

from __future__ import annotations

import pytest

from keras_matrix.analysis.whatif.graph import Graph, NodeKind
from keras_matrix.runner.whatif.probes import LayerProbe, ratios, share_of
from tests.analysis.whatif.hand_made import Nodes
from tests.conftest import make_settings

BASE = {0: 1.00, 1: 1.01, 2: 0.99, 3: 1.00, 4: 1.00}


def step(sleep: int = 0) -> Graph:
    """Input 40 and a gap of 60, a layer of 300 forward and 100 backward, a sum of 500, an update of 100."""
    nodes = Nodes()
    nodes.add(40, kind=NodeKind.INPUT, cores=1.0, gaps=60)
    nodes.add(300, phase="forward", layer="layer_0", cores=1.0)
    if sleep:
        nodes.add(sleep, phase="forward", layer="layer_0", name="sleep")
    ready = nodes.add(100, phase="backward", layer="layer_0", cores=1.0)
    nodes.collective(0, [500], [ready])
    nodes.add(100, phase="update", cores=1.0)
    return nodes.graph()


def probed(change: dict[int, float]) -> dict[str, float]:
    """A block of 400 in a step of 600."""
    probe = LayerProbe("amp", "0", make_settings())
    return ratios(step(), [probe], BASE, {probe.name: change})["amp"]


def test_a_block_has_its_share_of_all_but_communication() -> None:
    assert share_of(step(), "0") == pytest.approx(400 / 600)


def test_a_sleep_of_a_layer_cannot_become_faster() -> None:
    assert share_of(step(sleep=400), "0") == pytest.approx(400 / 1000)


def test_the_gain_of_a_step_is_that_of_the_block() -> None:
    """A tenth of 600 is 60 of 400."""
    assert probed({number: time * 0.9 for number, time in BASE.items()}) == {"0": pytest.approx(1 - 60 / 400)}


@pytest.mark.parametrize(
    "change", [{0: 0.9, 1: 1.1, 2: 0.95, 3: 1.02, 4: 0.98}, {number: 1.1 * time for number, time in BASE.items()}, {}]
)
def test_a_difference_that_is_not_separate_from_zero_is_no_gain(change: dict[int, float]) -> None:
    assert probed(change) == {}

"""The layers of a graph, and what-ifs of chosen layers: fused blocks, precision, recomputation."""

from __future__ import annotations

from dataclasses import replace

import pytest

from keras_matrix.analysis.whatif.graph import Graph, Node
from keras_matrix.analysis.whatif.replay import step_time_s
from keras_matrix.analysis.whatif.what_ifs import layers
from keras_matrix.analysis.whatif.what_ifs.layers import OP_FUSION, PRECISION, RECOMPUTATION, LayerRatio
from keras_matrix.analysis.whatif.what_ifs.what_if import WhatIf
from tests.analysis.whatif.hand_made import Nodes, fc_cell


def stack(layers: int = 4, device: str = "cpu", cores: float = 1.0, **header: object) -> Graph:
    """One rank: forward 100 and a gap of 10 a layer, backward 200 and a gap of 20, update 50, a sleep of 7 a layer."""
    nodes = Nodes()
    names = [f"layer_{at}" for at in range(layers)]
    for name in names:
        fields = {"layer": name, "phase": "forward", "dtype": "float32"}
        nodes.add(100, cores=cores, gaps=10, bytes=4000, **fields)
        nodes.add(7, name="sleep", **fields)
    for name in reversed(names):
        nodes.add(200, cores=cores, gaps=20, layer=name, phase="backward", dtype="float32", bytes=4000)
    nodes.add(50, cores=cores, phase="update")
    settings = {"workload": "fc", "batch_size": 8, "forward_sleep_ms": 7e-6}
    return nodes.graph(**{"device": device, "settings": settings, "cores": 4, **header})


TOTAL_NS = 4 * (110 + 7 + 220) + 50


def changed_ns(what_if: WhatIf, text: str, graph: Graph | None = None) -> float:
    return step_time_s(what_if.apply(graph or stack(), what_if.parse(text))) * 1e9


def test_layers_are_in_the_order_of_the_forward_pass() -> None:
    assert layers.layers_of(stack()) == ("layer_0", "layer_1", "layer_2", "layer_3")
    nodes = Nodes()
    for name, phase in (("b", "backward"), ("a", "forward"), ("b", "forward")):
        nodes.add(10, layer=name, phase=phase)
    assert layers.layers_of(nodes.graph()) == ("a", "b")


def test_numbered_layers_are_in_the_order_of_their_numbers() -> None:
    assert layers.layers_of(stack(layers=12))[-2:] == ("layer_10", "layer_11")


@pytest.mark.parametrize(
    ("text", "numbers"), [("all", [0, 1, 2, 3]), ("1-2", [1, 2]), ("layer_3,0", [3, 0]), ("0-1,1", [0, 1])]
)
def test_layers_are_named_or_numbered(text: str, numbers: list[int]) -> None:
    assert layers.named(stack(), text, "x") == tuple(f"layer_{at}" for at in numbers)


def test_layers_are_written_as_ranges() -> None:
    assert layers.as_text(stack(), ("layer_3", "layer_0", "layer_1")) == "0-1,3"


def test_a_fused_block_has_its_ratio_of_work_and_gaps_and_sleeps_as_long() -> None:
    block_ns = 2 * (110 + 220)
    assert changed_ns(OP_FUSION, "0-1:0.5") == pytest.approx(TOTAL_NS - block_ns / 2)
    assert changed_ns(OP_FUSION, "0-1:0.5,3:2") == pytest.approx(TOTAL_NS - block_ns / 2 + block_ns / 2)


def test_one_ratio_holds_for_all_parts_before_it() -> None:
    assert OP_FUSION.parse("0-1,2-3:0.5") == (LayerRatio("0-1", 0.5), LayerRatio("2-3", 0.5))
    assert OP_FUSION.parse("0:0.9,1,2:0.5") == (LayerRatio("0", 0.9), LayerRatio("1", 0.5), LayerRatio("2", 0.5))


def test_the_settings_of_fused_blocks_are_in_the_order_of_the_layers() -> None:
    found = OP_FUSION.settings(stack(), OP_FUSION.parse("2-3:0.8,layer_0+layer_1:0.9"))
    assert found.settings == {"fuse": "0-1,2-3"}
    apart = OP_FUSION.settings(stack(), OP_FUSION.parse("layer_0+layer_2:0.8"))
    assert apart.reason == "the layers of a block must follow one another"


def test_precision_changes_work_but_neither_gaps_nor_the_update() -> None:
    assert changed_ns(PRECISION, "all:0.5") == pytest.approx(TOTAL_NS - 4 * (50 + 100))
    assert changed_ns(PRECISION, "0:0.5") == pytest.approx(TOTAL_NS - (50 + 100))


def test_work_of_a_gpu_keeps_no_core_busy_and_changes_all_the_same() -> None:
    gpu = stack(device="gpu", cores=0.0)
    assert changed_ns(PRECISION, "0:0.5", gpu) == pytest.approx(TOTAL_NS - (50 + 3.5 + 100), abs=1)


def test_a_cost_model_predicts_the_ratio_of_each_operation() -> None:
    """One model by the bytes, of which bfloat16 has half, and one that sees no difference."""

    def by_bytes(node: Node) -> float | None:
        return node.bytes and float(node.bytes)

    def constant(node: Node) -> float | None:
        return node.bytes and 1.0

    changed, same = (PRECISION.apply(stack(), PRECISION.parse("0"), predict) for predict in (by_bytes, constant))
    assert [node.durations_ns for node in changed.nodes if node.layer == "layer_0"] == [(50,), (7,), (100,)]
    assert same.nodes == stack().nodes


def test_precision_changes_numerics_and_nothing_else_does() -> None:
    assert (PRECISION.changes_numerics, OP_FUSION.changes_numerics) == (True, False)


def test_the_settings_of_precision_are_layers_of_fc_or_all_layers_of_a_model() -> None:
    some, every = PRECISION.parse("0-2:0.7"), PRECISION.parse("all:0.7")
    assert PRECISION.settings(stack(), some).settings == {"amp": "0-2"}
    other = replace(stack(), header=replace(stack().header, settings={"workload": "mnist_mlp"}))
    assert PRECISION.settings(other, every).settings == {"precision": "mixed_bfloat16"}
    assert "choose all of them" in PRECISION.settings(other, some).reason
    unknown = replace(stack(), header=replace(stack().header, settings={}))
    assert PRECISION.settings(unknown, every).settings is None


def test_recomputation_adds_the_forward_pass_to_the_backward_pass() -> None:
    assert changed_ns(RECOMPUTATION, "all") == pytest.approx(TOTAL_NS + 4 * (110 + 7))
    assert changed_ns(RECOMPUTATION, "0-1") == pytest.approx(TOTAL_NS + 2 * (110 + 7))


def test_a_segment_runs_again_before_its_last_layers_backward_pass() -> None:
    changed = RECOMPUTATION.apply(stack(), RECOMPUTATION.parse("0-1"))
    names = [f"{node.layer}" for node in changed.nodes if node.phase == "backward" and node.name != "sleep"]
    assert names == ["layer_3", "layer_2", "layer_0", "layer_1", "layer_1", "layer_0"]


def test_a_segment_that_runs_again_waits_for_what_its_backward_pass_waits_for() -> None:
    """The backward pass has a thread of its own, which starts when the forward pass of 100 has ended."""
    nodes = Nodes()
    forward = nodes.add(100, layer="a", phase="forward")
    backward = nodes.add(200, layer="a", phase="backward", lane="autograd", depends=(forward,))
    nodes.add(50, phase="update", depends=(backward,))
    assert changed_ns(RECOMPUTATION, "a", nodes.graph()) == pytest.approx(100 + 100 + 200 + 50)


def test_recomputation_delays_the_gradients_of_each_rank() -> None:
    """Segments of two: the forward pass of layers 2 and 3 again at 400, so that the first sum starts at 800."""
    graph = fc_cell(forward_sleep_ms=1e-4)
    assert changed_ns(RECOMPUTATION, "all", graph) == pytest.approx(800 + 4 * 300 + 50)


def test_the_last_layer_of_a_segment_does_not_run_again_if_nothing_needs_its_output() -> None:
    """As above, but layer 3 is a product alone, whose gradients need its input: the first sum starts at 700."""
    assert changed_ns(RECOMPUTATION, "all", fc_cell()) == pytest.approx(700 + 4 * 300 + 50)
    alone = fc_cell()
    assert changed_ns(RECOMPUTATION, "3", alone) == pytest.approx(step_time_s(alone) * 1e9)


def test_a_layer_whose_type_is_unknown_runs_again() -> None:
    graph = fc_cell(workload="mine:model")
    assert changed_ns(RECOMPUTATION, "all", graph) == pytest.approx(800 + 4 * 300 + 50)


def test_the_settings_of_recomputation_are_its_own_segments() -> None:
    assert RECOMPUTATION.settings(stack(), RECOMPUTATION.parse("all")).settings == {"recompute": True}
    assert RECOMPUTATION.settings(stack(), RECOMPUTATION.parse("0-1,2-3")).settings == {"recompute": True}
    assert RECOMPUTATION.settings(stack(), RECOMPUTATION.parse("0-1")).settings is None

"""Other batch sizes, accumulated gradients, no overlap and no input stalls, against times computed by hand."""

from __future__ import annotations

from dataclasses import replace

import pytest

from keras_matrix.analysis.whatif.engine import simulate
from keras_matrix.analysis.whatif.graph import Graph, Node, NodeKind
from keras_matrix.analysis.whatif.replay import step_time_s
from keras_matrix.analysis.whatif.what_ifs.gradients import NO_INPUT_STALLS, NO_OVERLAP
from keras_matrix.analysis.whatif.what_ifs.workers import BATCH_SIZE, GRADIENT_ACCUMULATION
from tests.analysis.whatif.hand_made import Nodes, chain, data_parallel, fc_cell


def step_ns(graph: Graph) -> float:
    return step_time_s(graph) * 1e9


def step(**settings: object) -> Graph:
    """Input 40, forward 100, a sleep of 7, backward 200, update 50."""
    nodes = Nodes()
    nodes.add(40, kind=NodeKind.INPUT, phase="input", cores=1.0, gaps=5)
    nodes.add(100, phase="forward", cores=1.0, flops=1000.0, bytes=80)
    nodes.add(7, phase="forward", name="sleep")
    nodes.add(200, phase="backward", cores=1.0, gradient_of="dense")
    nodes.add(50, phase="update", cores=1.0)
    return nodes.graph(settings={"workload": "fc", "batch_size": 8, "feed": "pipeline", **settings})


def test_work_grows_with_the_batch_but_neither_update_nor_sleep() -> None:
    changed = BATCH_SIZE.apply(step(), 16)
    assert [node.durations_ns[0] for node in changed.nodes] == [80, 200, 7, 400, 50]
    assert (changed.nodes[1].flops, changed.nodes[1].bytes) == (2000.0, 160)


def test_communication_does_not_grow_with_the_batch() -> None:
    graph = fc_cell()
    changed = BATCH_SIZE.apply(graph, 16)
    assert [node.durations_ns for node in changed.nodes if node.collective] == [(300,)] * 8


def test_a_cost_model_replaces_the_proportion() -> None:
    def predict(node: Node) -> float | None:
        return None if node.flops is None else 1000 + node.flops

    changed = BATCH_SIZE.apply(step(), 16, predict)
    assert [node.durations_ns[0] for node in changed.nodes] == [80, 150, 7, 400, 50]


def test_accumulation_of_one_part_changes_nothing() -> None:
    assert GRADIENT_ACCUMULATION.apply(step(), 1).nodes == step().nodes


def test_the_setting_of_a_batch_is_its_size() -> None:
    assert BATCH_SIZE.settings(step(), 16).settings == {"batch_size": 16}


def test_accumulated_parts_divide_the_work_and_repeat_what_has_a_fixed_time() -> None:
    changed = GRADIENT_ACCUMULATION.apply(step(), 4)
    assert step_ns(changed) == pytest.approx(45 + 100 + 4 * 7 + 200 + 50)
    assert [node.name for node in changed.nodes].count("sleep") == 4


def test_only_the_last_part_sums_gradients() -> None:
    """Two parts of 600 of compute; the last one's gradients are at 300 + 600 + ...: forward 200, backward 400 each."""
    graph = _with_cores(data_parallel())
    changed = GRADIENT_ACCUMULATION.apply(graph, 2)
    assert len([node for node in changed.nodes if node.collective]) == len([n for n in graph.nodes if n.collective])
    assert step_ns(changed) == pytest.approx(600 + 200 + 100 + 4 * 300 + 50)


def _with_cores(graph: Graph) -> Graph:
    nodes = [replace(node, cores=1.0) if node.collective is None else node for node in graph.nodes]
    return graph.with_nodes(nodes)


def test_parts_follow_one_another_and_the_step_before() -> None:
    nodes = Nodes()
    nodes.add(100, phase="forward", cores=1.0, depends_before=(2,))
    nodes.add(200, phase="backward", cores=1.0, lane="autograd", depends=(0,))
    nodes.add(50, phase="update", cores=1.0, lane="optimizer", depends=(1,))
    changed = GRADIENT_ACCUMULATION.apply(nodes.graph(), 4)
    assert step_ns(changed) == pytest.approx(100 + 200 + 50)
    assert [node.depends_before for node in changed.nodes] == [(8,), (), (), (), (), (), (8,), (), ()]


def test_parts_of_a_gpu_follow_one_another_on_its_streams_while_the_host_runs_ahead() -> None:
    nodes = Nodes()
    launch = nodes.add(5, kind=NodeKind.HOST, phase="forward")
    nodes.add(100, phase="forward", lane="stream", depends=(launch,))
    launch = nodes.add(5, kind=NodeKind.HOST, phase="backward", lane="autograd", depends=(launch,))
    nodes.add(200, phase="backward", lane="stream", depends=(launch,))
    changed = GRADIENT_ACCUMULATION.apply(nodes.graph(device="gpu"), 2)
    assert simulate(changed, steps=1).step_time_ns == pytest.approx(5 + 50 + 100 + 50 + 100)


def test_what_waits_for_sums_is_not_repeated() -> None:
    """A copy out of a bucket belongs to the backward pass and waits for the sum."""
    nodes = Nodes()
    ready = [nodes.add(100, rank, phase="backward", cores=1.0) for rank in range(2)]
    sums = nodes.collective(0, [300, 300], ready)
    for rank in range(2):
        nodes.add(10, rank, phase="backward", name="copy", cores=1.0, depends=(sums[rank],))
        nodes.add(1, rank, phase="backward", name="after", cores=1.0)
    changed = GRADIENT_ACCUMULATION.apply(nodes.graph(), 2)
    assert [node.name for node in changed.nodes].count("copy") == 2


def test_the_settings_of_accumulation_divide_the_batch() -> None:
    assert GRADIENT_ACCUMULATION.settings(fc_cell(), 4).settings == {"gradient_accumulation": 4}
    assert "a batch of 8 has no 8 equal parts on 2 workers" in GRADIENT_ACCUMULATION.settings(fc_cell(), 8).reason


def test_without_overlap_sums_follow_the_backward_pass_one_by_one() -> None:
    assert step_ns(NO_OVERLAP.apply(data_parallel(), None)) == pytest.approx(1200 + 4 * 300 + 50)
    two_threads = data_parallel(parallel_lanes={"link": 2})
    assert step_ns(NO_OVERLAP.apply(two_threads, None)) == pytest.approx(1200 + 4 * 300 + 50)
    assert NO_OVERLAP.settings(fc_cell(), None).settings == {"overlap": "off"}


def test_without_overlap_fc_sums_each_gradient_by_itself_and_others_keep_their_buckets() -> None:
    nodes = Nodes()
    ready = [nodes.add(100, rank, gradient_of="dense") for rank in range(2)]
    fields = {"bytes": 2000, "tensors": (1000, 1000), "tensor_layers": ("dense", "dense")}
    nodes.collective(0, [300, 300], ready, **fields)
    graph = nodes.graph()
    of_fc = replace(graph, header=replace(graph.header, settings={"workload": "fc"}))
    counts = [len([n for n in NO_OVERLAP.apply(one, None).nodes if n.collective]) for one in (graph, of_fc)]
    assert counts == [2, 4]


def test_without_input_stalls_the_input_takes_no_time() -> None:
    assert step_ns(NO_INPUT_STALLS.apply(step(), None)) == pytest.approx(step_ns(step()) - 45)
    assert NO_INPUT_STALLS.settings(step(), None).settings == {"feed": "device_resident"}
    assert NO_INPUT_STALLS.settings(chain([10]), None).settings is None


def test_no_overlap_resets_the_buckets_of_the_traced_cell() -> None:
    """A cell without overlap may have no buckets."""
    assert NO_OVERLAP.settings(fc_cell(), None).settings == {"overlap": "off"}
    bucketed = NO_OVERLAP.settings(fc_cell(bucket_cap_mb=2.0, buckets=""), None)
    assert bucketed.settings == {"overlap": "off", "bucket_cap_mb": 0.0}

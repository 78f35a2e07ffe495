"""Other buckets of gradients, against step times computed by hand."""

from __future__ import annotations

from dataclasses import replace

import pytest

from keras_matrix.analysis.whatif.graph import Graph
from keras_matrix.analysis.whatif.replay import step_time_s
from keras_matrix.analysis.whatif.what_ifs.gradients import LINK_LANE, TENSOR_FUSION, Fusion, parse, sums_of
from tests.analysis.whatif.hand_made import LINK, MAIN, Nodes, data_parallel, fc_cell, link


def step_ns(graph: Graph) -> float:
    return step_time_s(graph) * 1e9


def buckets(graph: Graph) -> list[tuple[int, ...]]:
    return [node.collective.tensors for node in graph.nodes if node.collective is not None and node.rank == 0]


def test_the_gradients_are_those_of_the_backward_pass_in_its_order() -> None:
    sums = sums_of(data_parallel())
    assert [one.layer for one in sums.gradients] == ["layer_3", "layer_2", "layer_1", "layer_0"]
    assert [one.ready[0] for one in sums.gradients] == [(4,), (5,), (6,), (7,)]
    assert (sums.groups, sums.is_exact) == (((0,), (1,), (2,), (3,)), True)


def test_the_traced_buckets_are_predicted_as_they_were_measured() -> None:
    assert step_ns(TENSOR_FUSION.apply(data_parallel(), Fusion())) == pytest.approx(1850)


@pytest.mark.parametrize(
    ("counts", "expected"),
    [
        # Gradients at 600, 800, 1000, 1200; a sum of k gradients takes 100 + 200 k; the update 50.
        ((1, 1, 1, 1), 600 + 4 * 300 + 50),
        ((2, 2), 800 + 2 * 500 + 50),
        ((4,), 1200 + 900 + 50),
        ((1, 3), 1200 + 700 + 50),
        ((3, 1), 1000 + 700 + 300 + 50),
    ],
)
def test_a_bucket_starts_with_its_last_gradient(counts: tuple[int, ...], expected: int) -> None:
    changed = TENSOR_FUSION.apply(data_parallel(), Fusion(counts=counts))
    assert step_ns(changed) == pytest.approx(expected)
    assert [len(one) for one in buckets(changed)] == list(counts)


def test_splitting_a_bucket_restores_the_overlap() -> None:
    """The traced step has one bucket of all gradients: 1200 + 900 + 50."""
    one = TENSOR_FUSION.apply(data_parallel(), Fusion(counts=(4,)))
    again = TENSOR_FUSION.apply(one, Fusion())
    assert (step_ns(one), step_ns(again)) == (pytest.approx(2150), pytest.approx(1850))


def test_the_measured_times_correct_those_of_the_calibration() -> None:
    """The link is 20 % slower than its calibration: 360 instead of 300 for each sum, for other sums, too."""
    slower = _with_durations(data_parallel(), 360)
    assert step_ns(TENSOR_FUSION.apply(slower, Fusion())) == pytest.approx(600 + 4 * 360 + 50)
    assert step_ns(TENSOR_FUSION.apply(slower, Fusion(counts=(4,)))) == pytest.approx(1200 + 1080 + 50)


def test_a_calibration_of_another_link_is_not_corrected() -> None:
    slower = _with_durations(data_parallel(), 3000)
    assert step_ns(TENSOR_FUSION.apply(slower, Fusion(counts=(4,)))) == pytest.approx(1200 + 900 + 50)


def test_each_traced_step_has_its_own_correction() -> None:
    graph = _with_durations(data_parallel(), 300, 330, 360)
    changed = TENSOR_FUSION.apply(graph, Fusion(counts=(4,)))
    assert {node.durations_ns for node in changed.nodes if node.collective is not None} == {(900, 990, 1080)}


def _with_durations(graph: Graph, *durations: int) -> Graph:
    return graph.with_nodes(
        replace(node, durations_ns=durations, gaps_ns=(0,) * len(durations)) if node.collective is not None else node
        for node in graph.nodes
    )


def test_a_graph_without_calibration_uses_its_own_collectives() -> None:
    changed = TENSOR_FUSION.apply(data_parallel(link=None), Fusion(counts=(4,)))
    assert step_ns(changed) == pytest.approx(1200 + 1200 + 50)


def test_what_waited_for_one_bucket_waits_for_all_that_have_its_gradients() -> None:
    """A copy of each traced bucket; after fusing the last two, both of their copies wait for the same sum."""
    nodes = Nodes()
    ready = [[nodes.add(100, rank, gradient_of=f"layer_{at}") for rank in range(2)] for at in range(3)]
    sums = []
    for ordinal in range(3):
        fields = {"bytes": 1000, "tensors": (1000,), "tensor_layers": (f"layer_{ordinal}",)}
        sums.append(nodes.collective(ordinal, [300, 300], ready[ordinal], **fields))
    copies = [nodes.add(1, rank, depends=(sums[at][rank],), name=f"copy {at}") for at in range(3) for rank in range(2)]
    changed = TENSOR_FUSION.apply(nodes.graph(link=link(100e-9, 0.2e-9)), Fusion(counts=(1, 2)))
    waits = {
        node.name: [len(one.tensors) for number in node.depends if (one := changed.nodes[number].collective)]
        for node in changed.nodes
        if node.name.startswith("copy") and node.rank == 0
    }
    assert len(copies) == 6
    assert waits == {"copy 0": [1], "copy 1": [2], "copy 2": [2]}


def test_sums_of_several_threads_use_one_lane_that_runs_as_many_at_a_time() -> None:
    nodes = Nodes()
    ready = [[nodes.add(100, rank, gradient_of=f"layer_{at}") for rank in range(2)] for at in range(2)]
    for ordinal in range(2):
        fields = {"bytes": 1000, "tensors": (1000,), "tensor_layers": (f"layer_{ordinal}",)}
        nodes.collective(ordinal, [300, 300], ready[ordinal], lane=f"thread {ordinal}", **fields)
    changed = TENSOR_FUSION.apply(nodes.graph(), Fusion())
    assert changed.header.parallel_lanes == {LINK_LANE: 2}
    traced = data_parallel(parallel_lanes={LINK: 2})
    assert TENSOR_FUSION.apply(traced, Fusion()).header.parallel_lanes == {LINK: 2}


def test_gradients_without_a_known_end_are_complete_with_their_traced_bucket() -> None:
    nodes = Nodes()
    ready = [nodes.add(1000, rank) for rank in range(2)]
    nodes.collective(0, [900, 900], ready, bytes=4000, tensors=(1000,) * 4)
    graph = nodes.graph(link=link(100e-9, 0.2e-9))
    changed = TENSOR_FUSION.apply(graph, Fusion())
    assert step_ns(changed) == pytest.approx(4 * 300)
    assert [node.depends for node in changed.nodes if node.collective is not None and node.rank == 0] == [(0,)] * 4
    assert "the trace does not say when each gradient was complete" in changed.header.caveats[0]


def test_a_sum_of_one_gradient_says_when_that_was_complete() -> None:
    nodes = Nodes()
    for ordinal in range(2):
        ready = [nodes.add(100, rank) for rank in range(2)]
        nodes.collective(ordinal, [300, 300], ready, bytes=1000)
    sums = sums_of(nodes.graph())
    assert [one.ready[1] for one in sums.gradients] == [(1,), (5,)]
    assert sums.is_exact


def test_a_layer_that_completes_several_gradients_at_once_does_so_with_one_node() -> None:
    nodes = Nodes()
    ready = [nodes.add(100, rank, gradient_of="dense") for rank in range(2)]
    nodes.collective(0, [300, 300], ready, bytes=1000, tensors=(990, 10), tensor_layers=("dense", "dense"))
    sums = sums_of(nodes.graph())
    assert [one.ready[0] for one in sums.gradients] == [(0,), (0,)]
    assert sums.is_exact


def test_other_collectives_keep_their_place() -> None:
    """The sum of the loss has no gradients and is not one of the buckets."""
    nodes = Nodes()
    ready = [nodes.add(100, rank, gradient_of="dense") for rank in range(2)]
    nodes.collective(0, [50, 50], ready, bytes=4)
    nodes.collective(1, [300, 300], ready, bytes=1000, tensors=(500, 500), tensor_layers=("dense", "dense"))
    changed = TENSOR_FUSION.apply(nodes.graph(link=link(100e-9, 0.2e-9)), Fusion())
    assert buckets(changed) == [(), (500,), (500,)]


@pytest.mark.parametrize(
    ("text", "fusion"),
    [
        ("8", Fusion(cap_mb=8.0)),
        ("0.05mb", Fusion(cap_mb=0.05)),
        ("3,5,2", Fusion(counts=(3, 5, 2))),
        ("12,", Fusion(counts=(12,))),
        ("4000000b", Fusion(bytes_per_pack=4_000_000)),
        ("each", Fusion()),
    ],
)
def test_a_fusion_is_read_as_a_capacity_numbers_or_bytes(text: str, fusion: Fusion) -> None:
    assert parse(text) == fusion


def test_the_settings_of_buckets_are_the_backends_own() -> None:
    torch = fc_cell()
    tensorflow, jax, other = (
        replace(torch, header=replace(torch.header, backend=name)) for name in ("tensorflow", "jax", "numpy")
    )
    cap, counts = Fusion(cap_mb=8.0), Fusion(counts=(3, 1))
    assert TENSOR_FUSION.settings(torch, cap).settings == {"bucket_cap_mb": 8.0, "buckets": ""}
    assert TENSOR_FUSION.settings(torch, counts).settings == {"buckets": "3,1", "bucket_cap_mb": 0.0}
    assert TENSOR_FUSION.settings(jax, Fusion()).settings == {"buckets": "1,1,1,1"}
    assert TENSOR_FUSION.settings(tensorflow, cap).settings == {"bytes_per_pack": 8 << 20}
    assert TENSOR_FUSION.settings(tensorflow, Fusion(bytes_per_pack=5)).settings == {"bytes_per_pack": 5}
    assert "packs have one size" in TENSOR_FUSION.settings(tensorflow, counts).reason
    assert "no setting of numpy" in TENSOR_FUSION.settings(other, counts).reason


def test_a_capacity_on_tensorflow_is_that_of_a_pack() -> None:
    """A pack of more than 1000 bytes takes a second gradient, a bucket of 1000 bytes is full with one."""
    graph = data_parallel()
    tensorflow = replace(graph, header=replace(graph.header, backend="tensorflow"))
    cap = Fusion(cap_mb=1000 / (1 << 20))
    assert [len(one) for one in buckets(TENSOR_FUSION.apply(tensorflow, cap))] == [2, 2]
    assert [len(one) for one in buckets(TENSOR_FUSION.apply(graph, cap))] == [1, 1, 1, 1]


def on_the_lane_of_the_operations() -> Graph:
    """Two devices of JAX, which run one thing at a time: the product, the sum and the update of each of two layers."""
    nodes = Nodes()
    for ordinal, layer in enumerate("ba"):
        products = [nodes.add(100, rank, gradient_of=layer, name=f"product {layer}") for rank in range(2)]
        sums = nodes.collective(
            ordinal, [40, 40], products, bytes=10, tensors=(10,), tensor_layers=(layer,), lane=MAIN, name=f"sum {layer}"
        )
        for rank in range(2):
            nodes.add(7, rank, depends=(sums[rank],), name=f"update {layer}")
    return nodes.graph(link=link(20e-9, 2e-9))


def test_one_sum_on_the_lane_of_the_operations_follows_all_gradients_and_updates_follow_it() -> None:
    graph = on_the_lane_of_the_operations()
    changed = TENSOR_FUSION.apply(graph, Fusion(counts=(2,)))
    names = [node.name for node in changed.nodes if node.rank == 0]
    assert names == ["product b", "product a", "sum b", "update b", "update a"]
    assert (step_ns(graph), step_ns(changed)) == pytest.approx((200 + 2 * 40 + 14, 200 + 60 + 14))


def test_sums_on_the_lane_of_the_operations_may_stay_as_they_are() -> None:
    graph = on_the_lane_of_the_operations()
    changed = TENSOR_FUSION.apply(graph, Fusion())
    assert [node.name for node in changed.nodes if node.rank == 0][:3] == ["product b", "sum b", "update b"]
    assert step_ns(changed) == pytest.approx(step_ns(graph))


def test_buckets_of_a_cell_without_overlap_need_overlap() -> None:
    realised = TENSOR_FUSION.settings(fc_cell(overlap="off"), parse("2,2"))
    assert realised.settings == {"buckets": "2,2", "bucket_cap_mb": 0.0, "overlap": "on"}

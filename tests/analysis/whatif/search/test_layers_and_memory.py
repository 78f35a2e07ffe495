"""Searches of fused blocks, of layers in bfloat16, and of settings that need less memory; several in sequence."""

from __future__ import annotations

from dataclasses import replace

import pytest

from keras_matrix.analysis.whatif import search
from keras_matrix.analysis.whatif.graph import Graph
from keras_matrix.analysis.whatif.search import Families, SearchInputs, WorkerMemory
from keras_matrix.analysis.whatif.what_ifs.what_if import WhatIfError
from tests.analysis.whatif.hand_made import Nodes, data_parallel, fc_cell, link

USE = WorkerMemory(1400, {f"layer_{at}": 100 for at in range(4)})


def with_cores(graph: Graph) -> Graph:
    return graph.with_nodes(replace(node, cores=0.0 if node.collective else 0.5) for node in graph.nodes)


def compute_bound(**settings: object) -> Graph:
    """Sums of 30: the backward pass is on the critical path to its end."""
    graph = fc_cell(**settings)
    nodes = [replace(node, durations_ns=(30,)) if node.collective else node for node in graph.nodes]
    return with_cores(graph.with_nodes(nodes, link=link(10e-9, 0.02e-9)))


def test_blocks_are_chosen_as_long_as_each_makes_the_step_faster() -> None:
    found = search.search_layers(compute_bound(), "op_fusion", {"0-1": 0.5, "2-3": 0.9, "1-2": 0.8})
    assert found.best is not None
    assert found.best.what_ifs == ("op_fusion=0-1:0.5,2-3:0.9",)
    assert found.best.settings == {"fuse": "0-1,2-3"}
    assert found.best.step_time_s == pytest.approx(found.baseline_s - 300e-9 - 60e-9)


def test_a_block_that_is_slower_compiled_is_not_chosen() -> None:
    found = search.search_layers(compute_bound(), "op_fusion", {"0": 1.2, "1": 1.3, "2-3": 0.9})
    assert found.best is not None
    assert found.best.what_ifs == ("op_fusion=2-3:0.9",)
    assert [trial.what_ifs[0] for trial in found.trials][-2:] == ["op_fusion=2-3:0.9,0:1.2", "op_fusion=2-3:0.9,1:1.3"]


def test_a_gain_counts_only_where_no_collective_follows_later() -> None:
    """Sums follow one another from the end of layer 3's backward pass: of layer 0 only the forward pass counts."""
    graph = with_cores(data_parallel())
    found = search.search_layers(graph, "amp", {"0": 0.5, "3": 0.5})
    assert [(trial.what_ifs[0], round(trial.step_time_s * 1e9)) for trial in found.trials] == [
        ("precision=0:0.5", 1800),
        ("precision=3:0.5", 1700),
        ("precision=3:0.5,0:0.5", 1650),
    ]
    assert found.best is not None
    assert found.best.step_time_s == pytest.approx(1850e-9 - 50e-9 - 150e-9)
    assert found.best.changes_numerics


def test_layers_off_the_critical_path_are_not_tried() -> None:
    nodes = Nodes()
    nodes.add(1000, layer="slow", phase="forward", cores=1.0)
    nodes.add(10, lane="other", layer="fast", phase="forward", cores=1.0)
    graph = nodes.graph()
    found = search.search_layers(graph, "amp", {"fast": 0.5, "slow": 0.5})
    assert [trial.what_ifs for trial in found.trials] == [("precision=slow:0.5",)]
    assert "is on the critical path" in search.search_layers(graph, "amp", {"fast": 0.5}).skipped
    assert search.search_layers(graph, "amp", {}).skipped == "no gain has been probed"


def test_memory_is_not_searched_within_the_budget() -> None:
    found = search.search_memory(compute_bound(), USE, 1400)
    assert found.skipped == "the peak of 1.37 KiB is within the budget of 1.37 KiB"


def test_recomputation_retains_an_input_a_segment_and_all_of_one_segment() -> None:
    """Fixed are 1000; two segments of two: two inputs, and one more within a segment."""
    segments = [("layer_0", "layer_1"), ("layer_2", "layer_3")]
    assert USE.predicted_bytes(segments) == 1000 + 200 + 100
    assert USE.predicted_bytes(part_count=4) == 1000 + 100
    assert USE.predicted_bytes(segments, 2) == 1000 + 150
    assert USE.predicted_bytes([("layer_0",)]) == 1400


def test_the_fastest_setting_that_fits_is_chosen() -> None:
    """Parts of a batch divide the work, recomputation adds the forward pass to it."""
    found = search.search_memory(compute_bound(), USE, 1300)
    assert found.best is not None
    assert found.best.what_ifs == ("gradient_accumulation=2",)
    assert found.best.settings == {"gradient_accumulation": 2}
    assert {trial.what_ifs for trial in found.trials} == {
        ("recomputation=all",),
        ("gradient_accumulation=2",),
        ("gradient_accumulation=4",),
        ("recomputation=all", "gradient_accumulation=2"),
        ("recomputation=all", "gradient_accumulation=4"),
    }


def test_only_settings_that_fit_are_tried() -> None:
    found = search.search_memory(compute_bound(batch_size=2), USE, 1300)
    assert [trial.what_ifs for trial in found.trials] == [("recomputation=all",)]


def test_a_budget_that_nothing_fits_is_reported() -> None:
    found = search.search_memory(compute_bound(), USE, 1000)
    assert found.skipped == "no setting fits: the least predicted peak is 1.05 KiB, above 1,000 B"


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("all", Families(("memory", "op_fusion", "amp", "tensor_fusion"))),
        ("^memory", Families(("op_fusion", "amp", "tensor_fusion"))),
        ("all,^memory,^amp", Families(("op_fusion", "tensor_fusion"))),
        ("tensor_fusion,xla", Families(("op_fusion", "tensor_fusion"))),
        ("xla,tensor_fusion,from_opfs2tsfs", Families(("op_fusion", "tensor_fusion"), from_fusion=True)),
    ],
)
def test_families_are_chosen_and_left_out_by_name(text: str, expected: Families) -> None:
    assert search.parse(text) == expected


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("tensorfusion", "'tensorfusion' is not known; did you mean tensor_fusion?"),
        ("tensor_fusion,from_opfs2tsfs", "from_opfs2tsfs derives buckets from fused blocks; search op_fusion and"),
        ("all,^tensor_fusion,from_opfs2tsfs", "from_opfs2tsfs derives buckets from fused blocks"),
        ("zzz", "'zzz' is not known; known are memory, op_fusion, amp, tensor_fusion, all, from_opfs2tsfs"),
        ("amp,^amp", "must leave a family, got 'amp,^amp'"),
        ("", "'' is not known"),
    ],
)
def test_other_families_are_refused(text: str, message: str) -> None:
    with pytest.raises(WhatIfError) as caught:
        search.parse(text)
    assert message in str(caught.value)


def test_each_family_begins_with_the_best_setting_of_those_before() -> None:
    graph = with_cores(fc_cell())
    inputs = SearchInputs({"2-3": 0.5}, {"0-1": 0.5}, USE, 1300)
    found = search.search(graph, search.parse("all"), inputs)
    assert [one.family for one in found.trajectories] == ["memory", "op_fusion", "amp", "tensor_fusion"]
    best = found.strategies[0]
    assert best.what_ifs == ("recomputation=all", "op_fusion=2-3:0.5", "precision=0-1:0.5", "tensor_fusion=1,3")
    assert best.settings == {"recompute": True, "fuse": "2-3", "amp": "0-1", "buckets": "1,3", "bucket_cap_mb": 0.0}
    assert best.changes_numerics
    assert best.step_time_s < found.trajectories[0].baseline_s
    befores = [one.before for one in found.trajectories]
    assert befores == [best.what_ifs[:count] for count in range(4)]


def test_a_family_without_its_inputs_is_skipped_with_the_reason() -> None:
    found = search.search(compute_bound(), search.parse("memory,op_fusion"), SearchInputs())
    assert [one.skipped for one in found.trajectories] == [
        "the peak memory of the trace, or its budget, is not known",
        "no gain has been probed",
    ]
    assert found.strategies == ()


def test_a_family_that_does_not_fit_the_graph_is_skipped_and_the_others_are_searched() -> None:
    ratios = SearchInputs(fusion_ratios={"no_such_layer": 0.5}, amp_ratios={"2-3": 0.5})
    found = search.search(compute_bound(), search.parse("op_fusion,amp"), ratios)
    fusion, amp = found.trajectories
    assert "no_such_layer" in fusion.skipped
    assert [one.what_ifs for one in found.strategies] == [("precision=2-3:0.5",)]
    assert amp.best is not None


def test_buckets_follow_fused_blocks_if_that_is_chosen() -> None:
    graph = with_cores(fc_cell())
    inputs = SearchInputs({"1-3": 0.9})
    with_blocks, without = (
        search.search(graph, Families(("op_fusion", "tensor_fusion"), derived), inputs) for derived in (True, False)
    )
    derived = ("tensor_fusion=3,1",)
    assert derived in {trial.what_ifs for trial in with_blocks.trajectories[1].trials}
    assert without.trajectories[1].trials[2].what_ifs != derived

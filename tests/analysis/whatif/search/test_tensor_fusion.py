"""Searches of buckets, against optima found by trying all partitions."""

from __future__ import annotations

from dataclasses import replace
from itertools import combinations, pairwise

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from keras_matrix.analysis.whatif.graph import Graph
from keras_matrix.analysis.whatif.replay import replay, step_time_s
from keras_matrix.analysis.whatif.search import Partition, earliest, neighbours, search_fusion
from keras_matrix.analysis.whatif.trajectory import EQUALLY_FAST
from keras_matrix.analysis.whatif.what_ifs import registry
from keras_matrix.records.codec import canonical
from tests.analysis.whatif.hand_made import Nodes, chain, data_parallel, fc_cell, link


def partitions(count: int) -> list[Partition]:
    found = []
    for buckets in range(1, count + 1):
        for cuts in combinations(range(1, count), buckets - 1):
            ends = (0, *cuts, count)
            found.append(tuple(b - a for a, b in pairwise(ends)))
    return found


def ends_at(partition: Partition, ready: list[float], sizes: list[int]) -> float:
    """A sum takes 10 and its bytes."""
    end, begin = 0.0, 0
    for size in partition:
        end = max(end, *ready[: begin + size]) + 10 + sum(sizes[begin : begin + size])
        begin += size
    return end


@settings(deadline=None, max_examples=60, database=None)
@given(st.lists(st.tuples(st.integers(0, 100), st.integers(1, 60)), min_size=1, max_size=7))
def test_each_number_of_buckets_has_its_earliest_partition(gradients: list[tuple[int, int]]) -> None:
    ready, sizes = [float(one) for one, _ in gradients], [size for _, size in gradients]
    found = earliest(ready, lambda begin, end: 10 + sum(sizes[begin:end]), 10)
    for buckets, partition in enumerate(found, 1):
        every = [one for one in partitions(len(sizes)) if len(one) == buckets]
        assert len(partition) == buckets
        assert ends_at(partition, ready, sizes) == min(ends_at(one, ready, sizes) for one in every)


def test_neighbours_move_merge_and_cut() -> None:
    assert set(neighbours((1, 3))) == {(2, 2), (4,), (1, 1, 2)}
    assert neighbours((1,)) == []


def test_the_search_finds_the_best_of_all_partitions() -> None:
    """A latency of 250 for each sum, in a step of six layers: neither one bucket nor six are best."""
    graph = data_parallel(layers=6, link=link(250e-9, 0.05e-9))
    graph = registry.apply(graph, [registry.read("tensor_fusion=each")])
    times = {
        one: step_time_s(registry.apply(graph, [registry.read(f"tensor_fusion={','.join(map(str, one))},")]))
        for one in partitions(6)
    }
    found = search_fusion(graph)
    assert found.best is not None
    assert found.best.step_time_s == pytest.approx(min(times.values()))
    assert found.baseline_s == pytest.approx(step_time_s(graph))
    assert 1 < len(found.best.what_ifs[0].split(",")) < 6


def test_among_equally_fast_settings_the_one_with_fewer_collectives_is_best() -> None:
    """Without latency many partitions end 50 after the backward pass; every one of them has the last gradient alone."""
    graph = data_parallel(link=link(0.0, 0.05e-9))
    found = search_fusion(registry.apply(graph, [registry.read("tensor_fusion=4,")]))
    assert found.best is not None
    assert found.best.what_ifs == ("tensor_fusion=3,1",)


def test_a_search_reports_every_trial_and_replays_the_best_and_those_of_its_trajectory() -> None:
    found = search_fusion(registry.apply(fc_cell(), [registry.read("tensor_fusion=4,")]))
    assert (found.family, found.skipped) == ("tensor_fusion", "")
    assert len({trial.what_ifs for trial in found.trials}) == len(found.trials) > 5
    lowest = [trial.step_time_s for trial in found.trials if trial.is_better]
    assert lowest == sorted(lowest, reverse=True)
    replayed = {one.what_ifs for one in found.strategies}
    assert len(replayed) == len(found.strategies) >= 3
    assert {trial.what_ifs for _, trial in found.better} <= replayed
    assert [found.trials[number - 1] for number, _ in found.better] == [trial for _, trial in found.better]
    best = found.strategies[0]
    assert best.settings == {"buckets": best.what_ifs[0].partition("=")[2], "bucket_cap_mb": 0.0}


def test_each_gradient_alone_is_named_so() -> None:
    found = search_fusion(registry.apply(fc_cell(), [registry.read("tensor_fusion=4,")]))
    assert ("tensor_fusion=each",) in {trial.what_ifs for trial in found.trials}
    assert not any(trial.what_ifs == ("tensor_fusion=1,1,1,1",) for trial in found.trials)


def varying() -> Graph:
    """Three traced steps, in which the backward pass and the sums vary against each other."""
    graph = fc_cell()
    factors = {"backward": (0.5, 1.0, 1.5), "communication": (1.5, 1.0, 0.5)}
    nodes = [
        replace(
            node,
            durations_ns=tuple(round(node.durations_ns[0] * by) for by in factors.get(node.phase or "", (1.0,) * 3)),
            gaps_ns=(0,) * 3,
        )
        for node in graph.nodes
    ]
    varied = graph.with_nodes(nodes, step_times_s=(1e-6,) * 3)
    return registry.apply(varied, [registry.read("tensor_fusion=4,")])


def test_strategies_are_ordered_by_the_replay_of_each_step_and_trials_by_that_of_the_mean() -> None:
    graph = varying()
    found = search_fusion(graph)
    assert found.screened_s == step_time_s(graph)
    assert found.baseline_s == replay(graph).step_time_s
    screened = {trial.what_ifs: trial.step_time_s for trial in found.trials}
    assert any(screened[one.what_ifs] != pytest.approx(one.step_time_s) for one in found.strategies)
    for one in found.strategies:
        changed = registry.apply(graph, [registry.read(text) for text in one.what_ifs])
        assert one.step_time_s == replay(changed).step_time_s
        assert one.step_time_s < found.baseline_s
    fastest = min(one.step_time_s for one in found.strategies)
    assert found.strategies[0].step_time_s <= fastest * (1 + EQUALLY_FAST)


def test_a_trajectory_is_stored_as_json() -> None:
    assert '"family":"tensor_fusion"' in canonical(search_fusion(data_parallel()))


def test_the_traced_setting_is_kept_if_nothing_is_faster() -> None:
    """A link without latency: each gradient alone is optimal."""
    found = search_fusion(data_parallel(link=link(0.0, 0.3e-9)))
    assert (found.best, found.strategies) == (None, ())
    assert len(found.trials) > 3


def test_a_step_whose_communication_is_hidden_is_not_searched() -> None:
    nodes = Nodes()
    ready = [nodes.add(100, rank, gradient_of="dense") for rank in range(2)]
    sums = nodes.collective(0, [50, 50], ready, bytes=1000, tensors=(1000,), tensor_layers=("dense",))
    for rank in range(2):
        nodes.add(500, rank)
        nodes.add(10, rank, depends=(sums[rank],))
    found = search_fusion(nodes.graph())
    assert (found.skipped, found.trials) == ("no communication is on the critical path", ())


def test_a_step_without_collectives_is_not_searched() -> None:
    assert search_fusion(chain([10])).skipped == "no communication is on the critical path"


def test_tensorflow_is_searched_by_the_bytes_of_its_packs() -> None:
    graph = fc_cell()
    tensorflow = replace(graph, header=replace(graph.header, backend="tensorflow"))
    found = search_fusion(registry.apply(tensorflow, [registry.read("tensor_fusion=0b")]))
    assert [trial.what_ifs for trial in found.trials] == [
        ("tensor_fusion=0b",),
        ("tensor_fusion=2999b",),
        ("tensor_fusion=1999b",),
        ("tensor_fusion=999b",),
    ]
    assert found.best is not None
    assert found.best.settings == {"bytes_per_pack": 1999}  # as fast as each gradient alone


def test_buckets_are_also_derived_from_fused_blocks() -> None:
    found = search_fusion(data_parallel(), fused=[("layer_0", "layer_1", "layer_2")])
    assert ("tensor_fusion=1,3",) in {trial.what_ifs for trial in found.trials}


def test_a_search_replays_no_more_than_it_may() -> None:
    assert len(search_fusion(big(30), most_replays=7).trials) == 7


def big(layers: int) -> Graph:
    return data_parallel(layers=layers, link=link(2000e-9, 0.05e-9))

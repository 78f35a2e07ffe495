"""What-ifs as texts, together, and with the settings that realise them."""

from __future__ import annotations

import pytest

from keras_matrix.analysis.whatif.replay import exclusive, step_time_s
from keras_matrix.analysis.whatif.what_ifs import registry
from tests.analysis.whatif.hand_made import Nodes, data_parallel, fc_cell


def test_every_what_if_has_its_own_name_and_every_alias_an_aim() -> None:
    assert all(name == one.name for name, one in registry.WHAT_IFS.items())
    assert set(registry.ALIASES.values()) <= set(registry.WHAT_IFS)


def test_what_ifs_are_applied_one_after_the_other() -> None:
    """Four workers send 1.5 times the bytes in three times the steps: 600; at half the rate 300 + 600."""
    graph = data_parallel(link_rate=2e8)
    choices = [registry.read(text) for text in ("workers=4", "bandwidth=100mbit")]
    times = [step_time_s(registry.apply(graph, choices[:count])) for count in range(3)]
    assert times == pytest.approx([1850e-9, 600e-9 + 4 * 600e-9 + 50e-9, 600e-9 + 4 * 900e-9 + 50e-9])


def test_settings_of_several_what_ifs_are_those_of_one_cell() -> None:
    choices = [registry.read(text) for text in ("workers=4", "bandwidth=100mbit", "tensor_fusion=3,1")]
    found = registry.realised(fc_cell(), choices)
    assert found.settings == {
        "workers": 4,
        "batch_size": 16,
        "network": "100mbit",
        "buckets": "3,1",
        "bucket_cap_mb": 0.0,
    }


def test_one_what_if_that_no_setting_realises_makes_all_of_them_predicted_only() -> None:
    choices = [registry.read(text) for text in ("workers=4", "latency=2ms")]
    found = registry.realised(fc_cell(), choices)
    assert found.settings is None
    assert found.reason == "latency=2ms: predicted only: unverified, since no setting here adds latency to a link"


@pytest.mark.parametrize(
    ("texts", "excluded"),
    [
        (("tensor_fusion=3,1", "no_overlap"), ["tensor_fusion=3,1"]),
        (("no_overlap", "tensor_fusion=3,1"), ["no_overlap"]),
        (("workers=1", "tensor_fusion=3,1", "bandwidth=1mbit"), ["tensor_fusion=3,1", "bandwidth=1mbit"]),
        (("no_overlap", "latency=2ms", "workers=1"), ["no_overlap", "latency=2ms"]),
        (("workers=4", "tensor_fusion=3,1", "bandwidth=1mbit", "latency=2ms", "batch_size=16"), []),
    ],
)
def test_what_ifs_that_another_one_excludes_change_nothing(texts: tuple[str, ...], excluded: list[str]) -> None:
    graph, choices = fc_cell(), [registry.read(text) for text in texts]
    assert [one.text for one, _ in registry.without_effect(graph, choices)] == excluded
    left = [one for one in choices if one.text not in excluded]
    assert registry.apply(graph, choices) == registry.apply(graph, left)
    assert registry.realised(graph, choices).settings == registry.realised(graph, left).settings


def test_buckets_of_another_program_remain_without_overlap() -> None:
    graph = data_parallel()
    choices = [registry.read(text) for text in ("tensor_fusion=3,1", "no_overlap")]
    assert registry.without_effect(graph, choices) == []
    assert step_time_s(registry.apply(graph, choices)) < step_time_s(registry.apply(graph, choices[1:]))


def test_a_trace_from_elsewhere_has_no_settings() -> None:
    found = registry.realised(data_parallel(), [registry.read("workers=4")])
    assert (found.settings, found.reason) == (None, "workers=4: the trace is not of a cell of this project")


def test_a_changed_graph_has_the_settings_of_its_cell() -> None:
    changed = registry.apply(fc_cell(), [registry.read("workers=4")])
    assert (changed.header.settings["workers"], changed.header.settings["batch_size"]) == (4, 16)


def test_a_change_starts_from_durations_without_contention() -> None:
    nodes = Nodes()
    nodes.add(150, cores=1.0, starts_ns=(0,), phase="forward")
    nodes.add(100, lane="other", cores=1.0, starts_ns=(0,), phase="forward", depends_before=(0,))
    graph = nodes.graph(cores=1, exclusive=False, settings={"workload": "fc", "batch_size": 8})
    changed = registry.apply(graph, [registry.read("batch_size=16")])
    assert [node.durations_ns for node in changed.nodes] == [(200,), (100,)]
    assert changed.header.exclusive
    assert exclusive(graph).nodes[0].durations_ns == (100,)

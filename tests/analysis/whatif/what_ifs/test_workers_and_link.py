"""Other numbers of workers, bandwidths and latencies, against step times computed by hand."""

from __future__ import annotations

from dataclasses import replace

import pytest

from keras_matrix.analysis.whatif.graph import Graph, LinkCalibration
from keras_matrix.analysis.whatif.replay import step_time_s
from keras_matrix.analysis.whatif.what_ifs import registry
from keras_matrix.analysis.whatif.what_ifs.workers import BANDWIDTH, LATENCY, WORKERS, parse_latency, parse_rate
from tests.analysis.whatif.hand_made import Nodes, data_parallel, fc_cell

COMPUTE_NS, UPDATE_NS = 600, 50  # before the first collective, and after the last


def step_ns(graph: Graph) -> float:
    return step_time_s(graph) * 1e9


def durations(graph: Graph) -> list[int]:
    return [node.durations_ns[0] for node in graph.nodes if node.collective is not None and node.rank == 0]


@pytest.mark.parametrize(("workers", "collective_ns"), [(2, 300), (3, 200 + 800 / 3), (4, 300 + 300)])
def test_more_workers_have_longer_collectives(workers: int, collective_ns: float) -> None:
    changed = WORKERS.apply(data_parallel(), workers)
    assert changed.header.world_size == workers
    assert {node.rank for node in changed.nodes} == set(range(workers))
    assert {node.collective.ranks for node in changed.nodes if node.collective} == {tuple(range(workers))}
    assert step_ns(changed) == pytest.approx(COMPUTE_NS + 4 * collective_ns + UPDATE_NS, abs=4)


def test_fewer_workers_are_the_inverse_of_more() -> None:
    graph = data_parallel(ranks=4)
    changed = WORKERS.apply(graph, 2)
    assert len(changed.nodes) == len(graph.nodes) / 2
    back = WORKERS.apply(changed, 4)
    assert step_ns(back) == pytest.approx(step_ns(graph), rel=0.01)


def test_a_single_worker_communicates_nothing() -> None:
    changed = WORKERS.apply(data_parallel(), 1)
    assert [node for node in changed.nodes if node.collective is not None] == []
    assert step_ns(changed) == pytest.approx(4 * 100 + 4 * 200 + UPDATE_NS)


def test_the_update_of_a_single_worker_waits_for_the_gradients_that_were_summed() -> None:
    changed = WORKERS.apply(data_parallel(), 1)
    update = changed.nodes[-1]
    assert [changed.nodes[number].name for number in update.depends] == [f"layer_{at} backward" for at in (3, 2, 1, 0)]


def test_more_workers_on_one_machine_share_its_cores() -> None:
    nodes = Nodes()
    ready = [nodes.add(1000, rank, cores=1.0) for rank in range(2)]
    nodes.collective(0, [100, 100], ready, bytes=1000)
    changed = WORKERS.apply(nodes.graph(cores=2), 4)
    assert step_ns(changed) == pytest.approx(2000, rel=0.1)
    apart = WORKERS.apply(nodes.graph(cores=2, machine={"hosts": [0, 1]}), 4)
    assert apart.header.machine["hosts"] == [0, 1, 2, 3]
    assert step_ns(apart) == pytest.approx(1000, rel=0.2)


def test_workers_of_a_partial_trace_change_only_its_collectives() -> None:
    """A trace of rank 0 of two: its copy of other ranks would add nothing."""
    nodes = Nodes()
    ready = [nodes.add(10, rank) for rank in range(2)]
    nodes.collective(0, [300, 300], ready, bytes=1000)
    full = nodes.graph()
    partial = full.with_nodes([full.nodes[0], replace(full.nodes[2], number=1)], missing_ranks=(1,))
    changed = WORKERS.apply(partial, 4)
    assert (len(changed.nodes), changed.header.missing_ranks) == (2, (1, 2, 3))
    assert durations(changed) == [450]


def test_the_settings_of_more_workers_keep_the_share_of_each() -> None:
    assert WORKERS.settings(fc_cell(), 4).settings == {"workers": 4, "batch_size": 16}
    assert WORKERS.settings(fc_cell(batch_size=3), 3).settings is None
    assert "only the workload fc" in WORKERS.settings(fc_cell(workload="mnist_mlp"), 4).reason


@pytest.mark.parametrize(
    ("text", "bits_per_s"), [("500mbit", 5e8), ("1.5gbit", 1.5e9), ("100kbit", 1e5), ("200000000", 2e8)]
)
def test_a_rate_is_read_in_bits_per_second(text: str, bits_per_s: float) -> None:
    assert parse_rate(text) == bits_per_s


@pytest.mark.parametrize(("rate", "collective_ns"), [(1e8, 500), (2e8, 300), (4e8, 200)])
def test_bandwidth_changes_the_time_for_bytes_but_not_the_latency(rate: float, collective_ns: int) -> None:
    changed = BANDWIDTH.apply(data_parallel(link_rate=2e8), rate)
    assert durations(changed) == [collective_ns] * 4
    assert changed.header.link is not None
    assert changed.header.link.rate_bits_per_s == rate


def test_bandwidth_of_a_trace_without_calibration_changes_what_it_measured() -> None:
    """All 300 belong to the 1000 bytes; of a link of unknown rate a limit is felt where it is slower."""
    changed = BANDWIDTH.apply(data_parallel(link=None), 8e9)
    assert durations(changed) == [1000] * 4


def test_the_settings_of_a_bandwidth_are_a_network() -> None:
    assert BANDWIDTH.settings(fc_cell(), 1e9).settings == {"network": "1gbit"}
    assert BANDWIDTH.settings(fc_cell(), 1.5e9).settings == {"network": "1500mbit"}
    assert BANDWIDTH.settings(fc_cell(), 1.0).settings is None


def test_latency_is_added_for_each_step_of_the_ring() -> None:
    two, four = (LATENCY.apply(data_parallel(ranks=ranks), 50e-9) for ranks in (2, 4))
    assert (durations(two), durations(four)) == ([300 + 2 * 50] * 4, [300 + 6 * 50] * 4)
    link = two.header.link
    assert isinstance(link, LinkCalibration)
    assert link.alpha_s == pytest.approx(200e-9)


def test_latency_is_read_with_its_unit_and_never_verified() -> None:
    assert [parse_latency(text) for text in ("2ms", "500us", "1s")] == pytest.approx([2e-3, 5e-4, 1.0])
    assert "predicted only" in LATENCY.settings(fc_cell(), 1e-3).reason


def test_changes_of_the_link_hold_for_what_follows() -> None:
    """Four workers after the change of the link have its times."""
    choices = [registry.read(text) for text in ("bandwidth=100mbit", "workers=4")]
    changed = registry.apply(data_parallel(link_rate=2e8), choices)
    assert durations(changed) == [900] * 4


@pytest.mark.parametrize(("network", "collective_ns"), [("200mbit", 300 / 5), ("local", 300)])
def test_collectives_without_a_calibration_scale_with_the_rate_of_the_cell(network: str, collective_ns: float) -> None:
    """All are of one size, so that all of a collective's time counts as that of its bytes: 1000 in 300 ns."""
    settings = {"workload": "fc", "mode": "fc_data", "workers": 2, "network": network}
    changed = BANDWIDTH.apply(data_parallel(link=None, settings=settings), 1e9)
    if network == "local":
        assert durations(changed) == [8000] * 4  # as fast as 1 Gbit/s lets 1000 bytes be
    else:
        assert durations(changed) == [pytest.approx(collective_ns)] * 4

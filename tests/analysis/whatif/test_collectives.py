"""Times of collectives, calibrations, and which gradients are summed together, on examples by hand."""

from __future__ import annotations

import math

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from keras_matrix.analysis.whatif import collectives
from keras_matrix.analysis.whatif.collectives import fit, time_s
from tests.analysis.whatif.hand_made import Nodes, data_parallel, link

MIB = 1 << 20
TABLE = (("all_reduce", 2, 1000, 1e-3), ("all_reduce", 2, 100_000, 1e-2), ("all_reduce", 2, 1_000_000, 0.1))


def test_a_ring_all_reduce_has_alpha_by_its_steps_and_beta_by_the_bytes_sent() -> None:
    """alpha 6 ms is of the two steps of two ranks; four ranks have six steps and send 1.5 times the bytes."""
    ring = link(6e-3, 1e-8)
    assert time_s(ring, "all_reduce", 2, 1_000_000) == pytest.approx(6e-3 + 1e-2)
    assert time_s(ring, "all_reduce", 4, 1_000_000) == pytest.approx(18e-3 + 1.5e-2)
    assert time_s(ring, "all_reduce", 1, 1_000_000) == 0


@pytest.mark.parametrize("operation", ["reduce_scatter", "all_gather", "all_to_all"])
def test_half_an_all_reduce_takes_half_its_time(operation: str) -> None:
    ring = link(6e-3, 1e-8)
    for ranks in (2, 3, 8):
        half = time_s(ring, operation, ranks, 1_000_000)
        assert 2 * half == pytest.approx(time_s(ring, "all_reduce", ranks, 1_000_000))


def test_a_broadcast_and_a_transfer_move_the_whole_array() -> None:
    ring = link(6e-3, 1e-8)
    assert time_s(ring, "broadcast", 4, 1_000_000) == pytest.approx(9e-3 + 1e-2)
    assert time_s(ring, "send", 2, 1_000_000) == pytest.approx(3e-3 + 1e-2)


def test_a_table_is_interpolated_between_logarithms() -> None:
    table = link(0, 0, table=TABLE)
    assert time_s(table, "all_reduce", 2, 10_000) == pytest.approx(10**-2.5)
    assert time_s(table, "all_reduce", 2, 100_000) == pytest.approx(1e-2)


def test_outside_a_table_a_small_size_costs_latency_and_a_large_one_bandwidth() -> None:
    table = link(0, 0, table=TABLE)
    assert time_s(table, "all_reduce", 2, 10) == pytest.approx(1e-3)
    assert time_s(table, "all_reduce", 2, 5_000_000) == pytest.approx(0.5)


def test_a_table_of_other_ranks_or_operations_is_scaled_by_the_bytes_sent() -> None:
    table = link(0, 0, table=TABLE)
    assert time_s(table, "all_reduce", 4, 100_000) == pytest.approx(1.5e-2)
    assert time_s(table, "all_gather", 2, 100_000) == pytest.approx(0.5e-2)


def test_fit_returns_the_alpha_and_beta_that_made_the_times() -> None:
    made = link(5e-3, 4e-8, ranks=3)
    sizes = [1000, 20_000, 20_000, 3_000_000]
    for operation in ("all_reduce", "all_gather", "broadcast"):
        points = [(size, time_s(made, operation, 3, size)) for size in sizes]
        found = fit(points, ranks=3, source="test", operation=operation)
        assert found.alpha_s == pytest.approx(5e-3)
        assert found.beta_s_per_byte == pytest.approx(4e-8)


def test_fit_of_scattered_times_is_their_geometric_mean() -> None:
    """Under load a small sum takes 1, 4 or 16 ms, and a large one 1 s."""
    small = [(0, time) for time in (1e-3, 4e-3, 16e-3)]
    found = fit([*small, (10_000_000, 1.0)], ranks=2, source="test")
    assert (found.alpha_s, found.beta_s_per_byte) == (pytest.approx(4e-3), pytest.approx(0.996e-7))


def test_a_size_whose_times_scatter_counts_less() -> None:
    """Two sizes take from a tenth to ten times 0.1 and 30 ms; the others determine that a byte takes 0.1 us."""
    scattered = [(size, time * factor) for size, time in ((10, 1e-4), (100_000, 3e-2)) for factor in (0.1, 1, 10)]
    exact = [(size, size * 1e-7 * factor) for size in (10**6, 10**7) for factor in (0.999, 1.0, 1.001)]
    found = fit([*scattered, *exact], ranks=2, source="test")
    assert found.beta_s_per_byte == pytest.approx(1e-7, rel=0.005)


def test_fit_minimises_the_squares_of_the_logarithms() -> None:
    points = [(0, 1e-3), (1_000_000, 0.3), (10_000_000, 1.0), (20_000_000, 3.0)]
    found = fit(points, ranks=2, source="test")

    def squares(alpha: float, beta: float) -> float:
        times = [found.alpha_s * alpha + found.beta_s_per_byte * beta * size for size, _ in points]
        return sum(math.log(time / seconds) ** 2 for time, (_, seconds) in zip(times, points, strict=True))

    least = squares(1, 1)
    assert all(squares(*moved) > least for moved in ((1.01, 1), (0.99, 1), (1, 1.01), (1, 0.99)))


def test_fit_never_returns_a_negative_part() -> None:
    falling = fit([(1000, 2e-3), (2000, 1e-3)], ranks=2, source="test")
    steep = fit([(1000, 1e-3), (2000, 3e-3)], ranks=2, source="test")
    assert (falling.alpha_s, falling.beta_s_per_byte) == (pytest.approx(2**0.5 * 1e-3), pytest.approx(0, abs=1e-9))
    assert (steep.alpha_s, steep.beta_s_per_byte) == (pytest.approx(0, abs=1e-6), pytest.approx(1.22e-6, rel=0.01))


@settings(deadline=None, max_examples=40, database=None)
@given(st.lists(st.tuples(st.integers(1, 10**9), st.floats(1e-6, 10)), min_size=2, max_size=8))
def test_fit_of_any_points_is_finite_and_not_negative(points: list[tuple[int, float]]) -> None:
    if len({size for size, _ in points}) > 1:
        found = fit(points, ranks=2, source="test")
        assert 0 <= found.alpha_s < 11
        assert 0 <= found.beta_s_per_byte < 11


def test_a_graph_without_a_calibration_is_calibrated_by_its_own_collectives() -> None:
    """Rank 1 comes last, so that its durations are those without a wait: 100 + 0.2 a byte."""
    nodes = Nodes()
    ready = [nodes.add(10, 0), nodes.add(20, 1)]
    for ordinal, size in enumerate((1000, 4000)):
        nodes.collective(ordinal, [900, 100 + size // 5], ready, bytes=size)
    found = collectives.of_trace(nodes.graph())
    assert found.alpha_s == pytest.approx(100e-9)
    assert found.beta_s_per_byte == pytest.approx(0.2e-9)
    assert found.source == "collectives of hand-made"


def test_collectives_of_one_size_do_not_determine_alpha() -> None:
    found = collectives.of_trace(data_parallel(link=None))
    assert (found.alpha_s, found.beta_s_per_byte) == (0.0, pytest.approx(0.3e-9))
    assert "alpha is 0" in found.source


@pytest.mark.parametrize(("larger", "separable"), [(1200, False), (8000, True)])
def test_collectives_of_similar_sizes_do_not_determine_alpha(larger: int, separable: bool) -> None:
    """Of 1000 and 1200 bytes in 245 and 250 ms, whose difference is noise, a line says that a byte is free."""
    nodes = Nodes()
    ready = [nodes.add(10, 0), nodes.add(20, 1)]
    for ordinal, (size, took) in enumerate([(1000, 245), (larger, 250)]):
        nodes.collective(ordinal, [900, took], ready, bytes=size)
    found = collectives.of_trace(nodes.graph())
    assert (found.alpha_s > 0) is separable


def test_times_that_do_not_grow_with_the_size_have_no_cost_of_a_byte() -> None:
    found = fit([(4096, 2e-3), (4096, 3e-3), (16384, 1e-3), (16384, 2e-3)], ranks=2, source="bench")
    assert (found.alpha_s, found.beta_s_per_byte) == (pytest.approx(2e-3, rel=0.5), 0.0)


def test_the_calibration_of_a_graph_is_its_own_if_it_has_one() -> None:
    graph = data_parallel()
    assert collectives.of_trace(graph) == graph.header.link


def test_a_slower_link_takes_longer_for_each_byte_but_not_for_latency() -> None:
    slower = collectives.with_rate(link(5e-3, 4e-8, rate_bits_per_s=2e8), 1e8)
    assert (slower.alpha_s, slower.beta_s_per_byte, slower.rate_bits_per_s) == (5e-3, pytest.approx(8e-8), 1e8)


def test_a_limit_on_a_link_of_unknown_rate_is_felt_where_it_is_slower() -> None:
    local = link(1e-3, 1e-9)
    assert collectives.with_rate(local, 8e8).beta_s_per_byte == pytest.approx(1e-8)
    assert collectives.with_rate(local, 8e12).beta_s_per_byte == pytest.approx(1e-9)
    table = collectives.with_rate(link(0, 0, table=TABLE), 8e6)
    assert [row[3] for row in table.table] == pytest.approx([1e-3, 0.1, 1.0])


def test_a_table_of_a_known_rate_is_scaled_above_its_latency() -> None:
    slower = collectives.with_rate(link(0, 0, table=TABLE, rate_bits_per_s=2e8), 1e8)
    assert [row[3] for row in slower.table] == pytest.approx([1e-3, 19e-3, 0.199])


def test_the_buckets_of_torch_follow_its_capacities() -> None:
    sizes = [MIB // 2, MIB, 20 * MIB, 10 * MIB, MIB]
    assert collectives.ddp_buckets(sizes) == [[0, 1], [2, 3], [4]]
    assert collectives.ddp_buckets(sizes, 25) == [[0, 1, 2, 3], [4]]
    assert collectives.ddp_buckets(sizes, 0.05) == [[0], [1], [2], [3], [4]]
    assert collectives.ddp_buckets(sizes, [0.1, 30]) == [[0], [1, 2, 3], [4]]


def test_a_pack_of_tensorflow_takes_arrays_until_it_is_larger_than_its_limit() -> None:
    assert collectives.tf_packs([4, 4, 4, 4], 0) == [[0, 1, 2, 3]]
    assert collectives.tf_packs([4, 4, 4, 4], 7) == [[0, 1], [2, 3]]
    assert collectives.tf_packs([4, 4, 4, 4], 8) == [[0, 1, 2], [3]]
    assert collectives.tf_packs([], 8) == []


def test_explicit_groups_have_all_gradients() -> None:
    assert collectives.groups_of([3, 1], 4) == [[0, 1, 2], [3]]

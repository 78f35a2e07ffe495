"""Which operation of one trace is which of the other."""

from __future__ import annotations

import pytest

from keras_matrix.analysis.step_parts import AlignedPart, Part, PartKey, TrackPlace, aligned, half_width_s
from tests.analysis.explain.traced import Operation, parts

FORWARD = {"phase": "forward"}


def layer(name: str, op: str = "dot", us: float = 10) -> Operation:
    return op, us, {"layer": name, **FORWARD}


def pairs(rows: tuple[AlignedPart, ...]) -> list[tuple[str | None, str | None, bool, bool]]:
    return [(row.key.layer, row.key.op, row.base is not None, row.new is not None) for row in rows if row.key.op]


def test_operations_of_one_backend_are_paired_by_layer_and_name_in_any_order() -> None:
    base, new = parts(100, layer("a"), layer("a", "add")), parts(100, layer("a", "add"), layer("a"), layer("a"))
    found = aligned(base, new, same_backend=True)
    assert pairs(found.rows) == [("a", "dot", True, True), ("a", "add", True, True)]
    assert found.rows[0].counts == (1, 2)


def test_renamed_kernel_is_a_row_of_its_layer() -> None:
    found = aligned(parts(100, layer("a", "gemm_v1")), parts(100, layer("a", "gemm_v2")), same_backend=True)
    assert pairs(found.rows) == [("a", "gemm_v1", True, False), ("a", "gemm_v2", False, True)]


def test_hash_in_a_name_does_not_distinguish_operations() -> None:
    base, new = (parts(100, layer("a", f"## Call CompiledFxGraph {letter * 40} ##")) for letter in "fk")
    assert pairs(aligned(base, new, same_backend=True).rows) == [("a", "## Call CompiledFxGraph ... ##", True, True)]


def test_two_backends_are_paired_by_layer_and_phase_only() -> None:
    base, new = parts(100, layer("a", "dot"), layer("a", "copy")), parts(100, layer("a", "aten::mm"), backend="torch")
    found = [row for row in aligned(base, new, same_backend=False).rows if row.key.layer]
    assert [(row.key, row.counts) for row in found] == [(PartKey(TrackPlace.COMPUTE, "forward", "a"), (2, 1))]
    assert found[0].base_s == pytest.approx(20e-6)


def test_renamed_layer_is_paired_by_its_place_between_equal_ones() -> None:
    """Mutation: `_renamed` returns nothing."""
    base, new = parts(100, *map(layer, "abc")), parts(100, *map(layer, ("a", "b_1", "c")))
    found = aligned(base, new, same_backend=True)
    assert found.renamed == {"b_1": "b"}
    assert pairs(found.rows) == [(name, "dot", True, True) for name in "abc"]


def test_layer_that_moved_is_not_taken_for_another_one() -> None:
    found = aligned(parts(100, *map(layer, "abc")), parts(100, *map(layer, "cba")), same_backend=True)
    assert found.renamed == {}


def test_interval_of_a_change_is_welchs() -> None:
    """Checked with scipy.stats.ttest_ind(equal_var=False).confidence_interval()."""
    from scipy import stats

    base, new = (1.0, 1.2, 1.1, 1.3), (2.0, 2.5, 2.1)
    row = AlignedPart(PartKey(TrackPlace.COMPUTE, op="a"), Part(base, 1), Part(new, 1))
    low, high = stats.ttest_ind(new, base, equal_var=False).confidence_interval()
    assert half_width_s([row]) == pytest.approx((high - low) / 2)


def test_single_step_has_no_interval() -> None:
    row = AlignedPart(PartKey(TrackPlace.COMPUTE, op="a"), Part((1.0,), 1), Part((2.0,), 1))
    assert half_width_s([row]) is None

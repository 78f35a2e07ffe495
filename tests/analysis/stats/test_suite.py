"""A small shift of all workloads is visible in their mean."""

from __future__ import annotations

import math
import random

import pytest

from keras_matrix.analysis.stats.blocks import of_logs
from keras_matrix.analysis.stats.suite import per_group, suite_logs, suite_ratio


def shifted(workloads: int, shift: float, blocks: int = 6, scatter: float = 0.05) -> dict[str, dict[int, float]]:
    generator = random.Random(11)
    return {
        f"w{index}": {block: math.log1p(shift) + generator.gauss(0, scatter) for block in range(blocks)}
        for index in range(workloads)
    }


def test_uniform_shift_is_detected_though_not_in_any_workload() -> None:
    logs = shifted(40, 0.02)
    alone = [of_logs(list(blocks.values())) for blocks in logs.values()]
    assert sum(1 for estimate in alone if estimate and estimate.excludes(1.0)) <= 8
    found = suite_ratio(logs)
    assert found is not None
    assert found.estimate.low is not None
    assert found.estimate.low > 1
    assert found.estimate.centre == pytest.approx(1.02, abs=0.01)


def test_centre_is_the_geometric_mean_of_the_workloads_ratios() -> None:
    found = suite_ratio({"a": dict.fromkeys(range(5), math.log(2)), "b": dict.fromkeys(range(5), math.log(8))})
    assert found is not None
    assert found.estimate.centre == pytest.approx(4.0)


def test_common_effect_of_a_block_counts_once() -> None:
    """Forty workloads with the same effect of the block are no better evidence than one."""
    effects = dict(enumerate([0.1, -0.1, 0.05, -0.05, 0.02]))
    found, one = suite_ratio({f"w{i}": effects for i in range(40)}), of_logs(list(effects.values()))
    assert found is not None
    assert one is not None
    assert found.estimate.half_width == pytest.approx(one.half_width)


def test_only_blocks_that_all_workloads_have_count() -> None:
    assert suite_logs({"a": {0: 1.0, 1: 3.0}, "b": {1: 5.0, 2: 9.0}}) == {1: 4.0}


def test_workload_without_blocks_is_left_out_and_named() -> None:
    found = suite_ratio({"a": {0: 1.0}, "empty": {}, "b": {0: 3.0}, "elsewhere": {7: 1.0}})
    assert found is not None
    assert (found.workloads, found.left_out) == (("a", "b"), ("empty", "elsewhere"))
    assert math.log(found.estimate.centre) == pytest.approx(2.0)


def test_no_workload_has_no_ratio() -> None:
    assert suite_ratio({}) is None
    assert suite_ratio({"a": {}}) is None
    assert per_group({}) == ({}, None)


def test_each_group_and_the_suite_have_a_ratio() -> None:
    blocks = range(5)
    groups, overall = per_group(
        {
            "jax": {"a": dict.fromkeys(blocks, 0.1), "b": dict.fromkeys(blocks, 0.3)},
            "torch": {"a": dict.fromkeys(blocks, 0.5)},
            "tensorflow": {},
        }
    )
    assert overall is not None
    assert {name: math.log(ratio.estimate.centre) for name, ratio in groups.items()} == pytest.approx(
        {"jax": 0.2, "torch": 0.5}
    )
    assert math.log(overall.estimate.centre) == pytest.approx(0.3)
    assert overall.workloads == ("jax a", "jax b", "torch a")

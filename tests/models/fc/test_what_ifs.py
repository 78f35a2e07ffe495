"""The parameters of a what-if on PyTorch's workers: what they really do."""

from __future__ import annotations

import json
from typing import Any

import pytest

from keras_matrix.records.fc import rules
from keras_matrix.records.fc.spec import FcProblem, traffic_per_step
from tests.conftest import NIGHTLY
from tests.models.fc.test_programs import answered

pytestmark = [pytest.mark.process, pytest.mark.xdist_group("what-ifs")]

GRADIENTS = 6
SIZES_BYTES = [48 * 4] + [48 * 48 * 4] * (GRADIENTS - 1)  # in the order of the backward pass
CASES: list[dict[str, Any]] = [
    {},
    {"bucket_cap_mb": 0.0001},
    {"bucket_cap_mb": 0.001},
    {"bucket_cap_mb": 0.01},
    {"bucket_cap_mb": 0.02},
    {"bucket_cap_mb": 1.0},
    {"buckets": "1,3,2"},
    {"buckets": "4,1,1"},
    {"buckets": "6"},
    {"buckets": "1,1,1,1,1,1"},
    {"buckets": "2,4", "gradient_accumulation": 3},
    {"bucket_cap_mb": 0.01, "recompute": True},
]


def by_rule(case: dict[str, Any]) -> list[list[int]]:
    if groups := case.get("buckets"):
        return rules.buckets_by_count(rules.counts(groups))
    return rules.buckets_by_capacity(SIZES_BYTES, rules.capacities_bytes(case.get("bucket_cap_mb", 0)))


def test_distributed_data_parallel_sums_the_buckets_of_the_documented_rule() -> None:
    cases = CASES if NIGHTLY else CASES[::2]
    found = answered("what_ifs.py", "torch", "buckets", *map(json.dumps, cases))
    assert found == {json.dumps(case): by_rule(case) for case in cases}


def test_layers_sleep_in_the_forward_and_in_the_backward_pass() -> None:
    times_s = answered("what_ifs.py", "torch", "sleeps")
    assert times_s["forward"] >= 3 * 0.020
    assert times_s["both"] >= 3 * (0.020 + 0.030)


def test_only_chosen_layers_compute_in_bfloat16_and_gradients_stay_in_float32() -> None:
    found = answered("what_ifs.py", "torch", "precision")
    errors = [found[layers][0] for layers in ("", "5", "0-5")]
    assert errors[0] < 1e-5
    assert [1e-4 < error < 0.2 for error in errors[1:]] == [True, True]
    expected = traffic_per_step(FcProblem("fc_data", workers=2, level=5, weight_size=48)).sent_bytes(2)
    assert {counted for _, counted in found.values()} == {expected}


def test_blocks_of_layers_are_each_compiled_as_one_program_and_compute_the_same() -> None:
    found = answered("what_ifs.py", "torch", "fused")
    assert found["programs"] == [2, 2]
    assert found["error"] < 1e-5


def test_recomputed_layers_run_forward_again() -> None:
    found = answered("what_ifs.py", "torch", "recomputation")
    assert found["false"] == GRADIENTS
    assert GRADIENTS < found["true"] <= 2 * GRADIENTS


def test_traced_workers_store_sizes_of_sums_and_times_of_sums_during_computation() -> None:
    found = answered("what_ifs.py", "torch", "calibrated")
    total = sum(SIZES_BYTES)
    assert found["reduced"] == [[[[total // 4]]] * 2] * 2
    times = found["times"]
    assert {(one["operation"], one["ranks"]) for one in times} == {("all_reduce", 2)}
    assert sorted({one["bytes"] for one in times}) == [4096, 16384, total]
    assert all(one["seconds"] > 0 for one in times)

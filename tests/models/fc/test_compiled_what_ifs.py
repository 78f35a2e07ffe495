"""The parameters of a what-if on JAX: a setting counts only if the compiled step differs."""

from __future__ import annotations

import json
from typing import Any

import pytest

from tests.models.fc.test_programs import answered

pytestmark = [pytest.mark.process, pytest.mark.xdist_group("compiled what-ifs")]

LAYERS = 6
CASES: list[dict[str, Any]] = [
    {},
    {"buckets": "6"},
    {"buckets": "1,3,2"},
    {"buckets": "1,1,1,1,1,1"},
    {"buckets": "3,3", "gradient_accumulation": 2},
    {"forward_sleep_ms": 1.0},
    {"forward_sleep_ms": 1.0, "backward_sleep_ms": 1.0},
    {"recompute": True},
    {"recompute": True, "forward_sleep_ms": 1.0, "backward_sleep_ms": 1.0},
    {"amp": "1-3"},
]


def compiled(case: dict[str, Any]) -> dict[str, Any]:
    found: dict[str, Any] = answered("compiled_what_ifs.py", "jax", *map(json.dumps, CASES))[json.dumps(case)]
    return found


@pytest.mark.parametrize(("case", "sums"), [(CASES[0], 1), (CASES[1], 1), (CASES[2], 3), (CASES[3], 6), (CASES[4], 2)])
def test_compiled_step_has_one_sum_per_bucket(case: dict[str, Any], sums: int) -> None:
    assert compiled(case)["sums"] == sums


@pytest.mark.parametrize(("case", "sleeps"), [(CASES[0], 0), (CASES[5], LAYERS), (CASES[6], 2 * LAYERS)])
def test_compiled_step_has_every_sleep_once(case: dict[str, Any], sleeps: int) -> None:
    assert compiled(case)["callbacks"] == sleeps


def test_layers_are_computed_again_only_if_requested() -> None:
    plain, again = (compiled(case)["products"] for case in (CASES[0], CASES[7]))
    assert plain < again <= plain + LAYERS
    assert compiled(CASES[8])["callbacks"] == 3 * LAYERS


def test_only_layers_in_bfloat16_change_the_gradients() -> None:
    errors = {name: compiled(case)["error"] for name, case in ((json.dumps(case), case) for case in CASES)}
    assert {name for name, error in errors.items() if error > 1e-5} == {json.dumps(CASES[9])}
    assert errors[json.dumps(CASES[9])] < 0.2

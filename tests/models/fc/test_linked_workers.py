"""Workers of JAX and TensorFlow as processes in networks of `ci/netns`: the same results as in one process."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from functools import cache
from pathlib import Path
from typing import Any

import pytest

from tests.ci.test_netns import ROOT, SCRIPT, why_not
from tests.conftest import NIGHTLY
from tests.models.fc.processes.test_remote import ABORTS

pytestmark = [pytest.mark.process, pytest.mark.alone]

SLEEPS = {"forward_sleep_ms": 20.0, "backward_sleep_ms": 30.0}
AMP = {"amp": "1-3"}
LAYERS = 6
COMMON: list[dict[str, Any]] = [
    {},
    SLEEPS,
    {"gradient_accumulation": 3, **SLEEPS},
    {"recompute": True, **SLEEPS},
    {"overlap": "off", "reduce": "mean"},
    AMP,
]
CASES: dict[str, list[dict[str, Any]]] = {
    "jax": [*COMMON, {"mode": "fc_zero"}],
    "tensorflow": [*COMMON, {"bytes_per_pack": 10000}],
}
if NIGHTLY:
    CASES["jax"] += [{"buckets": "1,3,2"}, {"buckets": "6"}, {"buckets": "1,1,1,1,1,1", "gradient_accumulation": 2}]
# For every change the backend with more cases; both share the program of the workers, which other tests run on each.
EVERY = ["jax", pytest.param("tensorflow", marks=pytest.mark.nightly)]


@cache
def found(backend: str) -> dict[str, dict[str, Any]]:
    answer: dict[str, dict[str, Any]] = in_networks(backend, *map(json.dumps, CASES[backend]))
    return answer


def in_networks(backend: str, *arguments: str) -> Any:
    if reason := why_not():
        pytest.skip(reason)
    environment = {**os.environ, "KERAS_BACKEND": backend, "JAX_PLATFORMS": "cpu", "PYTHONPATH": str(ROOT)}
    script = [sys.executable, str(Path(__file__).with_name("linked_workers.py")), *arguments]
    command = [SCRIPT, "2", "--rate", "200mbit", "--", *script]
    done = subprocess.run(command, env=environment, capture_output=True, text=True, timeout=280, check=False)
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout.splitlines()[-1])


@pytest.mark.parametrize("backend", EVERY)
def test_workers_in_networks_compute_what_one_process_and_numpy_do(backend: str) -> None:
    for name, one in found(backend).items():
        assert one["loss"] == pytest.approx(one["loss_in_one_process"], rel=1e-5), name
        if name != json.dumps(AMP):
            assert one["gradient_error"] < 1e-5, name
            assert one["weight_error"] < 1e-5, name


@pytest.mark.parametrize("backend", EVERY)
def test_layers_in_bfloat16_change_the_gradients(backend: str) -> None:
    assert 1e-4 < found(backend)[json.dumps(AMP)]["gradient_error"] < 0.2


@pytest.mark.nightly(why="workers without a network prove the same bytes")
@pytest.mark.parametrize("backend", EVERY)
def test_each_worker_is_a_process_with_a_network_and_communicates_the_bytes_of_the_formula(backend: str) -> None:
    assert {one["processes"] for one in found(backend).values()} == {2}
    assert {name: one["layout_problem"] for name, one in found(backend).items() if one["layout_problem"]} == {}


@pytest.mark.parametrize(
    "backend",
    ["jax", pytest.param("tensorflow", marks=[pytest.mark.nightly, pytest.mark.xfail(reason=ABORTS, strict=False)])],
)
def test_each_worker_records_a_profile_and_the_times_of_sums_over_the_link(backend: str) -> None:
    found = in_networks(backend, "traced")
    assert found["files"] == ["collectives.json", "epoch1.worker0.xplane.pb", "epoch1.worker1.xplane.pb"]
    least_s = {int(size): seconds for size, seconds in found["least_s"].items()}
    assert list(least_s) == [4**power for power in range(6, 11)] + [5 * 256 * 256 * 4 + 256 * 4]
    # The rate of the link, less a first burst.
    assert least_s[1 << 20] == pytest.approx((1 << 20) * 8 / 200e6, rel=0.3)


@pytest.mark.parametrize("backend", EVERY)
def test_layers_sleep_in_every_part_of_the_batch_in_order_and_again_if_recomputed(backend: str) -> None:
    once_s = LAYERS * (SLEEPS["forward_sleep_ms"] + SLEEPS["backward_sleep_ms"]) / 1000
    plain, once, thrice, again = (found(backend)[json.dumps(case)]["step_s"] for case in COMMON[:4])
    assert plain < once_s <= once < 2 * once_s
    assert 3 * once_s <= thrice
    assert once_s + LAYERS * SLEEPS["forward_sleep_ms"] / 1000 <= again


@pytest.mark.nightly(why="compiles for half a minute, alone")
def test_a_compiled_step_of_jax_has_one_sum_per_bucket() -> None:
    sums = {name: one["sums"] for name, one in found("jax").items() if "buckets" in name}
    assert list(sums.values()) == [3, 1, 6]

"""Every case of a test marked `one_backend` runs on exactly one backend for every change, in any order of the tests."""

from __future__ import annotations

import random
from collections import Counter
from types import SimpleNamespace
from typing import Any

import pytest

from tests.one_backend import left_to_the_night

BACKENDS = ("tensorflow", "jax", "torch")


MARK = SimpleNamespace(args=())


def item(test: str, case: str, backend: str | None, mark: object = MARK) -> Any:
    identifier = "-".join(part for part in (case, backend) if part)
    return SimpleNamespace(
        nodeid=f"tests/test_a.py::{test}[{identifier}]",
        callspec=SimpleNamespace(id=identifier, params={"backend": backend} if backend else {"case": case}),
        get_closest_marker=lambda name: mark if name == "one_backend" else None,
    )


@pytest.mark.parametrize("seed", range(5))
def test_each_case_runs_on_one_backend_and_the_cases_are_dealt_out_over_all(seed: int) -> None:
    cases = [(test, case) for test in ("test_x", "test_y") for case in ("a", "b", "c")]
    items = [item(test, case, backend) for test, case in cases for backend in BACKENDS]
    random.Random(seed).shuffle(items)
    left = {left.nodeid: chosen for left, chosen in left_to_the_night(items)}
    run = sorted(one.nodeid for one in items if one.nodeid not in left)
    assert len(run) == len(cases)
    assert Counter(identifier.rpartition("-")[2].rstrip("]") for identifier in run) == dict.fromkeys(BACKENDS, 2)
    assert all(
        identifier.replace(identifier.rpartition("-")[2], f"{chosen}]") in run for identifier, chosen in left.items()
    )


def test_one_case_runs_on_the_backend_with_the_cheapest_cells() -> None:
    items = [item("test_x", "a", backend) for backend in BACKENDS]
    assert {chosen for _, chosen in left_to_the_night(items)} == {"torch"}
    assert {chosen for _, chosen in left_to_the_night(items[:2])} == {"tensorflow"}


def test_cases_are_dealt_out_over_the_backends_that_the_mark_names() -> None:
    mark = SimpleNamespace(args=("jax", "openvino", "tensorflow"))
    items = [item("test_x", case, backend, mark) for case in ("a", "b", "c") for backend in BACKENDS]
    left = {left.nodeid: chosen for left, chosen in left_to_the_night(items)}
    run = [one.nodeid.partition("[")[2] for one in items if one.nodeid not in left]
    assert run == ["a-jax]", "b-tensorflow]", "c-jax]"]


def test_tests_without_the_mark_run_on_every_backend() -> None:
    assert list(left_to_the_night([item("test_x", "a", backend, mark=None) for backend in BACKENDS])) == []


def test_the_mark_without_a_parameter_backend_is_refused() -> None:
    with pytest.raises(pytest.UsageError, match=r"test_x\[a\]: marked one_backend, but has no parameter `backend`"):
        list(left_to_the_night([item("test_x", "a", None)]))

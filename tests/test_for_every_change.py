"""Every case of a test marked `one_backend` runs on exactly one backend for every change, in any order of the tests."""

from __future__ import annotations

import random
from collections import Counter
from types import SimpleNamespace
from typing import Any, cast

import pytest

from tests.for_every_change import beyond_the_first, left_to_the_night, on_other_backends

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
    left = {left.nodeid: chosen for left, chosen in on_other_backends(items)}
    run = sorted(one.nodeid for one in items if one.nodeid not in left)
    assert len(run) == len(cases)
    assert Counter(identifier.rpartition("-")[2].rstrip("]") for identifier in run) == dict.fromkeys(BACKENDS, 2)
    assert all(
        identifier.replace(identifier.rpartition("-")[2], f"{chosen}]") in run for identifier, chosen in left.items()
    )


def test_one_case_runs_on_the_backend_with_the_cheapest_cells() -> None:
    items = [item("test_x", "a", backend) for backend in BACKENDS]
    assert {chosen for _, chosen in on_other_backends(items)} == {"torch"}
    assert {chosen for _, chosen in on_other_backends(items[:2])} == {"tensorflow"}


def test_cases_are_dealt_out_over_the_backends_that_the_mark_names() -> None:
    mark = SimpleNamespace(args=("jax", "openvino", "tensorflow"))
    items = [item("test_x", case, backend, mark) for case in ("a", "b", "c") for backend in BACKENDS]
    left = {left.nodeid: chosen for left, chosen in on_other_backends(items)}
    run = [one.nodeid.partition("[")[2] for one in items if one.nodeid not in left]
    assert run == ["a-jax]", "b-tensorflow]", "c-jax]"]


def test_tests_without_the_mark_run_on_every_backend() -> None:
    assert list(on_other_backends([item("test_x", "a", backend, mark=None) for backend in BACKENDS])) == []


def test_the_mark_without_a_parameter_backend_is_refused() -> None:
    with pytest.raises(pytest.UsageError, match=r"test_x\[a\]: marked one_backend, but has no parameter `backend`"):
        list(on_other_backends([item("test_x", "a", None)]))


@pytest.mark.parametrize("seed", range(3))
def test_the_first_cases_of_a_test_run_for_every_change(seed: int) -> None:
    mark = SimpleNamespace(kwargs={"beyond": 2})
    items = [
        SimpleNamespace(
            nodeid=f"tests/test_a.py::{test}[{first}-{second}]",
            callspec=SimpleNamespace(indices={"first": first, "second": second}),
            get_closest_marker=lambda name: mark if name == "nightly" else None,
        )
        for test in ("test_x", "test_y")
        for first in range(3)
        for second in range(2)
    ]
    random.Random(seed).shuffle(items)
    left = {item.nodeid for item, _ in beyond_the_first(cast("list[pytest.Item]", items))}
    run = sorted(item.nodeid.partition("::")[2] for item in items if item.nodeid not in left)
    assert run == ["test_x[0-0]", "test_x[0-1]", "test_y[0-0]", "test_y[0-1]"]


def test_a_number_of_cases_without_parameters_is_refused() -> None:
    mark = SimpleNamespace(kwargs={"beyond": 1})
    alone = SimpleNamespace(nodeid="tests/test_a.py::test_x", get_closest_marker=lambda name: mark)
    with pytest.raises(pytest.UsageError, match=r"test_x: marked nightly\(beyond=...\), but has no parameters"):
        list(beyond_the_first([cast("pytest.Item", alone)]))


def test_marks_of_the_night_and_a_first_case_are_told_apart() -> None:
    def marked(name: str, **marks: dict[str, Any]) -> pytest.Item:
        values = {mark: SimpleNamespace(kwargs=kwargs) for mark, kwargs in marks.items()}
        item = SimpleNamespace(nodeid=name, get_closest_marker=values.get, callspec=SimpleNamespace(indices={"a": 0}))
        return cast("pytest.Item", item)

    items = [
        marked("a", nightly={}),
        marked("b", nightly={"why": "installs"}),
        marked("c", nightly={"beyond": 1}),
        marked("d", emulated_at_night={}),
        marked("e", emulated_at_night={}, emulator={}),
        marked("f"),
    ]
    assert {item.nodeid: reason for item, reason in left_to_the_night(items)} == {
        "a": "takes minutes",
        "b": "installs",
        "e": "only with the fake service for every change",
    }

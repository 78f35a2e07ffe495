"""The mark `one_backend`: each case of a test runs on one backend for every change, on all of them in the nightly run.

The cases of a test are dealt out over the backends, the one with the cheapest cells first: one case runs on PyTorch,
three on all. `one_backend("tensorflow", "jax")` deals them out over these alone, such as where one has to compile.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator

import pytest

# By the time of a cell: an import of TensorFlow takes 5 s, and JAX compiles every step.
CHEAPEST_FIRST = ("torch", "tensorflow", "jax")


def left_to_the_night(items: Iterable[pytest.Item]) -> Iterator[tuple[pytest.Item, str]]:
    """Yield each marked item that is not run for every change, with the backend on which its case is."""
    for cases in _cases_of_tests(items).values():
        for number, (_, members) in enumerate(sorted(cases.items())):
            mark = next(iter(members.values())).get_closest_marker("one_backend")
            named = [backend for backend in (mark.args if mark else ()) if backend in members]
            backends = named or sorted(members, key=_cost)
            chosen = backends[number % len(backends)]
            yield from ((item, chosen) for backend, item in members.items() if backend != chosen)


def _cost(backend: str) -> tuple[int, str]:
    return (CHEAPEST_FIRST.index(backend) if backend in CHEAPEST_FIRST else len(CHEAPEST_FIRST), backend)


def _cases_of_tests(items: Iterable[pytest.Item]) -> dict[str, dict[str, dict[str, pytest.Item]]]:
    """Return the items with the mark by test, by their parameters other than `backend`, and by backend."""
    tests: dict[str, dict[str, dict[str, pytest.Item]]] = {}
    for item in items:
        if not item.get_closest_marker("one_backend"):
            continue
        parameters = getattr(item, "callspec", None)
        if parameters is None or "backend" not in parameters.params:
            raise pytest.UsageError(f"{item.nodeid}: marked one_backend, but has no parameter `backend`")
        backend = str(parameters.params["backend"])
        case = "-".join(part for part in parameters.id.split("-") if part != backend)
        tests.setdefault(item.nodeid.partition("[")[0], {}).setdefault(case, {})[backend] = item
    return tests

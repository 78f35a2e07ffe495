"""The tests that run for every change; the nightly run has all of them.

The mark `nightly`: not for every change. `nightly(beyond=2)`: but the first two cases of the test, in its own order.

The mark `emulated_at_night`: with the fake service for every change, with the emulator at night.

The mark `one_backend`: each case of a test runs on one backend for every change. The cases are dealt out over the
backends, the one with the cheapest cells first: one case runs on PyTorch, three on all. `one_backend("tensorflow",
"jax")` deals them out over these alone, such as where one has to compile.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator

import pytest

# By the time of a cell: an import of TensorFlow takes 5 s, and JAX compiles every step.
CHEAPEST_FIRST = ("torch", "tensorflow", "jax")


def left_to_the_night(items: Iterable[pytest.Item]) -> Iterator[tuple[pytest.Item, str]]:
    """Yield each item that is not run for every change, with the reason."""
    left = []
    for item in items:
        if reason := _whole(item):
            yield item, reason
        else:
            left.append(item)
    others = list(on_other_backends(left))
    yield from ((item, f"this case runs on {chosen} for every change") for item, chosen in others)
    elsewhere = {item.nodeid for item, _ in others}
    left = [item for item in left if item.nodeid not in elsewhere]
    yield from ((item, f"only {count} of the cases run for every change") for item, count in beyond_the_first(left))


def _whole(item: pytest.Item) -> str:
    """Return why a test is not run for every change whatever its case; empty if it is."""
    mark = item.get_closest_marker("nightly")
    if mark and "beyond" not in mark.kwargs:
        return str(mark.kwargs.get("why", "takes minutes"))
    if item.get_closest_marker("emulated_at_night") and item.get_closest_marker("emulator"):
        return "only with the fake service for every change"
    return ""


def on_other_backends(items: Iterable[pytest.Item]) -> Iterator[tuple[pytest.Item, str]]:
    """Yield each item marked `one_backend` whose case runs on another backend for every change, with that backend."""
    for cases in _cases_of_tests(items).values():
        for number, (_, members) in enumerate(sorted(cases.items())):
            mark = next(iter(members.values())).get_closest_marker("one_backend")
            named = [backend for backend in (mark.args if mark else ()) if backend in members]
            backends = named or sorted(members, key=_cost)
            chosen = backends[number % len(backends)]
            yield from ((item, chosen) for backend, item in members.items() if backend != chosen)


def beyond_the_first(items: Iterable[pytest.Item]) -> Iterator[tuple[pytest.Item, int]]:
    """Yield each item marked `nightly(beyond=...)` that is not among the first cases of its test, with their number."""
    tests: dict[str, list[pytest.Item]] = {}
    for item in items:
        if (mark := item.get_closest_marker("nightly")) and "beyond" in mark.kwargs:
            tests.setdefault(item.nodeid.partition("[")[0], []).append(item)
    for cases in tests.values():
        mark = cases[0].get_closest_marker("nightly")
        count = mark.kwargs["beyond"] if mark else 0
        yield from ((item, count) for item in sorted(cases, key=_place)[count:])


def _place(item: pytest.Item) -> tuple[int, ...]:
    """Return the place of a case among those of its test."""
    parameters = getattr(item, "callspec", None)
    if parameters is None:
        raise pytest.UsageError(f"{item.nodeid}: marked nightly(beyond=...), but has no parameters")
    return tuple(parameters.indices.values())


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

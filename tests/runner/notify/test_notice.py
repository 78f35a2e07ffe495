"""The commands of a notification: which versions it proposes to search."""

from __future__ import annotations

from dataclasses import replace
from typing import TypeAlias

import pytest

from keras_matrix.analysis.history.change_points import assess
from keras_matrix.analysis.history.sessions import CellSession, History
from keras_matrix.analysis.stats.blocks import geometric
from keras_matrix.analysis.views.history_view import history_views
from keras_matrix.records.task import PREFIX
from keras_matrix.runner.notify.notice import About, Notice, commands, due
from tests.sessions import noisy, run_name

Versions: TypeAlias = dict[str, str]
CELL = "a" * 16
SETTINGS = ("batch_size=8", "size=very tiny")


def notice(before: Versions, after: Versions, workload: str = "gpt2") -> Notice:
    """The notification of a slowdown after twenty sessions with some versions, under others."""
    sides = (*((value, before) for value in noisy(0.010, 20)), *((value, after) for value in noisy(0.011, 10, seed=5)))
    sessions = [
        CellSession(run_name(number), geometric([value] * 3), 0.001, {}, facts)
        for number, (value, facts) in enumerate(sides)
    ]
    settings = {"workload": workload, "backend": "jax"}
    assessed = assess(History(CELL, "0" * 16, ("cpu", "cpu:0"), settings, tuple(sessions)))
    [found], [view] = due(assessed, []), history_views([assessed], {CELL: "gpt2 on jax"})
    return Notice(found, view, About(SETTINGS))


def searches(before: Versions, after: Versions) -> list[str]:
    begin = f"runner bisect {CELL} "
    return [line.removeprefix(begin) for line in commands(notice(before, after)) if line.startswith(begin)]


@pytest.mark.parametrize(
    ("before", "after", "expected"),
    [
        ({"keras": "3.9.0"}, {"keras": "3.10.0"}, ["--package keras --good 3.9.0 --bad 3.10.0"]),
        ({"keras": "3.10.0"}, {"keras": "3.9.0"}, []),
        ({"keras": "3.10.0", "python": "3.11.2"}, {"keras": "3.10.0", "python": "3.12.1"}, []),
        (
            {"jax": "0.9.0", "jaxlib": "0.9.0", "numpy": "2.1.0"},
            {"jax": "0.9.1", "jaxlib": "0.9.2", "numpy": "2.2.0"},
            ["--package jax --good 0.9.0 --bad 0.9.1", "--package numpy --good 2.1.0 --bad 2.2.0"],
        ),
        ({"keras": "3.9.0"}, {"keras": "3.9.0", "keras-hub": "0.32.0"}, []),
        ({"keras": "3.9.0", "numpy": "mine"}, {"keras": "3.9.0", "numpy": "2.2.0"}, []),
        ({"torch": "2.12.0+cpu"}, {"torch": "2.13.0+cpu"}, ["--package torch --good 2.12.0 --bad 2.13.0"]),
        (
            {"jax": "0.9.0", "jaxlib": "0.9.0"},
            {"jax": "0.9.1.dev20261101", "jaxlib": "0.9.1.dev20261101"},
            ["--package jax --good 0.9.0 --bad 0.9.1.dev20261101 --pre"],
        ),
        (
            {"keras": "3.16.0.dev2026110103"},
            {"keras": "3.16.0.dev2026110203"},
            ["--package keras-nightly --good 3.16.0.dev2026110103 --bad 3.16.0.dev2026110203 --pre"],
        ),
        ({"keras": "3.15.1"}, {"keras": "3.16.0.dev2026110203"}, []),
    ],
    ids=[
        "newer",
        "older",
        "python",
        "one set",
        "first recorded",
        "not a version",
        "local version",
        "pre-release",
        "nightly wheels of Keras",
        "release and nightly wheel of Keras",
    ],
)
def test_each_package_that_became_newer_is_searched(before: Versions, after: Versions, expected: list[str]) -> None:
    """Mutations: `searches` compares texts; it has a command for each member of a set; it raises for a text; it names
    nightly wheels without `--pre`, or as `keras`.
    """
    assert searches(before, after) == expected


def test_gate_measures_this_cell_alone() -> None:
    """Mutation: `commands` filters by workload and backend."""
    [gate] = [line for line in commands(notice({"keras": "3.9.0"}, {"keras": "3.10.0"})) if " gate " in line]
    assert gate.endswith("--filter backend=jax --filter batch_size=8 --filter 'size=very tiny'")


def test_command_of_the_user_is_not_searched() -> None:
    """Mutation: `commands` proposes a search for an external command, whose packages are unknown."""
    found = notice({"keras": "3.9.0"}, {"keras": "3.10.0"}, workload=f"{PREFIX}mine")
    assert commands(found) == [f"runner history {CELL}"]


def test_nothing_is_searched_if_no_package_changed() -> None:
    """Mutation: the searches come before the return of a history without a change of packages."""
    found = notice({"keras": "3.9.0", "kernel": "6.1"}, {"keras": "3.9.0", "kernel": "6.2"})
    assert commands(found) == [f"runner history {CELL}"]
    assert commands(replace(found, about=About())) == [f"runner history {CELL}"]

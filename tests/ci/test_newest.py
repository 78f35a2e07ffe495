"""ci/newest changes one thing in each comparison, and writes no lock that a test or a figure objects to."""

from __future__ import annotations

from pathlib import Path
from types import ModuleType
from typing import Any

import pytest

from tests.scripts import script

OLD = {"keras": "3", "jax": "0.10", "torch": "2", "rich": "14"}
NEW = {"keras": "3", "jax": "0.11", "torch": "2", "rich": "15"}


@pytest.fixture(scope="module")
def newest() -> ModuleType:
    return script("newest")


def sides(newest: ModuleType, *changes: dict[str, Any]) -> list[Any]:
    """A side for each, under Python 3.11 and with every backend unless it says otherwise."""
    given = {"locks": Path("locks"), "python": "3.11", "program": "python3"}
    return [newest.Side(**{**given, **change}) for change in changes]


def test_versions_and_python_are_compared_apart(newest: ModuleType) -> None:
    old, new, python = sides(newest, {"name": "old"}, {"name": "new"}, {"name": "python", "python": "3.13"})
    assert newest.comparisons([(old, OLD), (new, NEW), (python, NEW)]) == [(old, new), (new, python)]
    assert newest.comparisons([(old, OLD), (new, OLD), (python, OLD)]) == [(new, python)]
    assert newest.comparisons([(old, OLD), (new, OLD)]) == []


def test_table_has_the_versions_of_each_side_and_counts_the_others(newest: ModuleType) -> None:
    old, python = sides(newest, {"name": "old"}, {"name": "new", "python": "3.13", "backends": ("jax",)})
    lines = newest.versions_table([(old, OLD), (python, NEW)]).splitlines()
    assert lines[0] == "| package | old, Python 3.11 | new, Python 3.13 |"
    assert {"| jax | 0.10 | 0.11 |", "| torch | 2 | - |", "| numpy | - | - |"} <= set(lines)
    assert lines[-1] == "| other packages that differ | - | 1 |"


def test_only_the_backends_of_both_sides_are_measured(newest: ModuleType) -> None:
    old, python = sides(newest, {"name": "old"}, {"name": "new", "backends": ("tensorflow", "jax")})
    command = newest.gate_command(old, python, 600)
    assert command[-4:] == ["--backend", "tensorflow", "--backend", "jax"]
    assert [command[command.index(flag) + 1] for flag in ("--base-env", "--new-env", "--budget")] == [
        str(newest.FOLDER / "old"),
        str(newest.FOLDER / "new"),
        "600",
    ]


def test_locks_are_written_unless_a_comparison_or_a_test_objects(newest: ModuleType) -> None:
    assert newest.decision(["no worse", "undecided"], [True, True]) is None
    assert newest.decision([], [True]) is None
    assert newest.decision(["no worse", "regressed"], [True]) == "a comparison ended as regressed"
    assert newest.decision(["exit code 3"], [True]) == "a comparison ended as exit code 3"
    assert newest.decision(["no worse"], [True, False]) == "tests fail with the new versions"

"""ci/newest changes one thing in each comparison, and writes no lock that a test or a figure objects to."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path
from types import ModuleType, SimpleNamespace
from typing import Any

import pytest

from tests.scripts import script

OLD = {"keras": "3", "jax": "0.10", "torch": "2", "rich": "14"}
NEW = OLD | {"jax": "0.11", "rich": "15"}
NEW_OF_313 = NEW | {"jax": "0.12"}


@pytest.fixture(scope="module")
def newest() -> ModuleType:
    return script("newest")


def sides(newest: ModuleType, *changes: dict[str, Any]) -> list[Any]:
    """A side for each: the old locks under Python 3.11, with every backend, unless it says otherwise."""
    given = {"age": "old", "locks": Path("locks"), "python": "3.11", "program": "python3", "pinned": OLD}
    return [newest.Side(**{**given, **change}) for change in changes]


def under_two_pythons(newest: ModuleType, *pinned: dict[str, str]) -> list[Any]:
    """Old and new locks under Python 3.11, then under 3.13."""
    ages, pythons = ("old", "new", "old", "new"), ("3.11", "3.11", "3.13", "3.13")
    return sides(newest, *({"age": a, "python": p, "pinned": v} for a, p, v in zip(ages, pythons, pinned, strict=True)))


def pairs(newest: ModuleType, planned: list[Any]) -> list[tuple[str, str]]:
    return [(old.name, new.name) for old, new in newest.comparisons(planned)]


def test_versions_and_python_are_compared_apart(newest: ModuleType) -> None:
    versions, of_313, python = ("old-3.11", "new-3.11"), ("old-3.13", "new-3.13"), ("new-3.11", "new-3.13")
    same = under_two_pythons(newest, OLD, NEW, OLD, NEW)
    assert (pairs(newest, same), newest.not_measured(same)) == ([versions, of_313, python], [])
    assert pairs(newest, under_two_pythons(newest, OLD, OLD, OLD, OLD)) == [python]
    assert pairs(newest, under_two_pythons(newest, OLD, OLD | {"rich": "15"}, OLD, OLD)) == [python]
    assert pairs(newest, under_two_pythons(newest, OLD, NEW, OLD, NEW)[:2]) == [versions]


def test_python_whose_versions_differ_is_not_measured_and_the_table_says_so(newest: ModuleType) -> None:
    mixed = under_two_pythons(newest, OLD, NEW, OLD, NEW_OF_313)
    assert pairs(newest, mixed) == [("old-3.11", "new-3.11"), ("old-3.13", "new-3.13")]
    [section] = newest.not_measured(mixed)
    assert section.startswith("## new locks, Python 3.11 against new locks, Python 3.13: not measured\n")
    assert section.endswith("told from the other's: jax.\n")


def test_new_versions_of_packages_that_no_step_runs_are_not_measured_and_the_table_says_so(newest: ModuleType) -> None:
    old, new = sides(newest, {}, {"age": "new", "pinned": OLD | {"rich": "15"}})
    assert pairs(newest, [old, new]) == []
    [section] = newest.not_measured([old, new])
    assert section.startswith("## old locks, Python 3.11 against new locks, Python 3.11: not measured\n")
    assert section.endswith("No package that a step runs differs.\n")


def test_sides_are_both_locks_under_this_python_itself_and_under_the_newest(
    newest: ModuleType, monkeypatch: pytest.MonkeyPatch
) -> None:
    """This Python need not be the one that is found by its name, nor be found at all."""
    current = "{}.{}".format(*sys.version_info[:2])
    for listed in (f"{current} /other/python\n3.99 /newest", "3.99 /newest"):
        monkeypatch.setattr(newest.subprocess, "run", lambda *_, listed=listed, **__: SimpleNamespace(stdout=listed))
        monkeypatch.setattr(newest, "pinned_by", lambda *_: OLD)
        itself = os.path.realpath(sys._base_executable)
        assert [(side.name, side.program) for side in newest.sides()] == [
            (f"old-{current}", itself),
            (f"new-{current}", itself),
            ("old-3.99", "/newest"),
            ("new-3.99", "/newest"),
        ]


def test_table_has_the_versions_of_each_side_and_counts_the_others(newest: ModuleType) -> None:
    changed = {"age": "new", "python": "3.13", "backends": ("jax",), "pinned": NEW}
    lines = newest.versions_table(sides(newest, {}, changed)).splitlines()
    assert lines[0] == "| package | old locks, Python 3.11 | new locks, Python 3.13 |"
    assert {"| jax | 0.10 | 0.11 |", "| torch | 2 | - |", "| numpy | - | - |"} <= set(lines)
    assert lines[-1] == "| other packages that differ | - | 1 |"


def test_only_the_backends_of_both_sides_are_measured(newest: ModuleType) -> None:
    old, python = sides(newest, {}, {"age": "new", "backends": ("tensorflow", "jax")})
    command = newest.gate_command(old, python, 600)
    assert command[-4:] == ["--backend", "tensorflow", "--backend", "jax"]
    assert [command[command.index(flag) + 1] for flag in ("--base-env", "--new-env", "--budget")] == [
        str(newest.FOLDER / "old-3.11"),
        str(newest.FOLDER / "new-3.11"),
        "600",
    ]


def test_gate_that_breaks_has_no_findings_of_an_earlier_one(
    newest: ModuleType, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    findings = tmp_path / "findings.md"

    def gate(code: int, text: str | None) -> Any:
        if text is not None:
            findings.write_text(text)
        return SimpleNamespace(returncode=code)

    results = []
    for code, text in ((4, "slower"), (3, None)):
        monkeypatch.setattr(newest.subprocess, "run", lambda *_, code=code, text=text, **__: gate(code, text))
        results.append(newest.measure(["gate", "--markdown", str(findings)]))
    assert results == [("regressed", "slower"), ("exit code 3", "Nothing was measured.")]


def test_locks_are_written_unless_a_comparison_or_a_test_objects(newest: ModuleType) -> None:
    assert newest.decision([], ["no worse", "undecided"], [True, True]) is None
    assert newest.decision([], [], [True]) is None
    assert newest.decision([], ["no worse", "regressed"], [True]) == "a comparison ended as regressed"
    assert newest.decision([], ["exit code 3"], [True]) == "a comparison ended as exit code 3"
    assert newest.decision([], ["no worse"], [True, False]) == "tests fail with the new versions"


def test_backend_that_only_the_old_locks_have_is_named_and_objects(newest: ModuleType) -> None:
    without = {"backends": ("tensorflow", "jax")}
    old, new, neither = sides(newest, {}, {"age": "new", **without}, without)
    expected = "the new locks, Python 3.11 have no build of torch, unlike the old locks, Python 3.11"
    assert newest.decision([(old, new)], ["no worse"], [True]) == expected
    assert newest.decision([(neither, new)], ["no worse"], [True]) is None
    assert newest.left_out([old, new]) == ["Not measured: torch with the new locks, Python 3.11.\n"]


OTHER_PYTHONS = "cause: Because torch==2+cpu has no wheels with a matching Python ABI tag (e.g., `cp313`)"
NO_VERSION = "cause: Because there is no version of torch==2+cpu and you require torch==2+cpu"
NO_NETWORK = "error: Failed to fetch: https://download.pytorch.org/whl/cpu/torch/"


def test_index_that_cannot_be_read_is_not_taken_for_one_without_a_build(
    newest: ModuleType, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert newest.without_build([OTHER_PYTHONS, NO_NETWORK])
    assert newest.without_build([NO_VERSION, NO_VERSION])
    outputs = {NO_NETWORK: None, f"{OTHER_PYTHONS}\nfrom PyTorch's index:\n{NO_NETWORK}": False, NO_NETWORK * 2: None}
    for output, installed in outputs.items():
        failed = subprocess.CompletedProcess("ci/install", 1, stdout=output)
        monkeypatch.setattr(newest.subprocess, "run", lambda *_, failed=failed, **__: failed)
        if installed is None:
            with pytest.raises(subprocess.CalledProcessError):
                newest.install_torch(["ci/install"])
        else:
            assert newest.install_torch(["ci/install"]) is installed
    assert not newest.without_build([NO_VERSION, NO_NETWORK])

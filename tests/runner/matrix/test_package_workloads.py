"""Workloads that installed packages bring by entry points; the host imports none of these packages."""

import json
import sys
from pathlib import Path
from typing import Any

import jsonschema
import pytest

from keras_matrix.runner.cli.main import main
from keras_matrix.runner.matrix import catalog
from keras_matrix.runner.matrix.catalog import CatalogWorkload
from keras_matrix.runner.matrix.entries import workload_named


def install(folder: Path, package: str, points: str) -> None:
    """Install a package by its metadata alone; importing its module would fail."""
    info = folder / f"{package}-1.2.dist-info"
    info.mkdir()
    (info / "METADATA").write_text(f"Metadata-Version: 2.1\nName: {package}\nVersion: 1.2\n")
    (info / "entry_points.txt").write_text(f"[{catalog.GROUP}]\n{points}\n")
    (folder / f"{package}.py").write_text("raise SystemExit('the host has imported it')\n")


@pytest.fixture(autouse=True)
def installed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    install(tmp_path, "first_nets", "ranker = first_nets:build\nmnist_mlp = first_nets:own\nshared = first_nets:a")
    install(tmp_path, "second_nets", "shared = second_nets.deep:b\nBad-Name = second_nets:build")
    monkeypatch.syspath_prepend(str(tmp_path))


def named(name: str) -> str:
    workload = workload_named(name, catalog.load())
    return workload.name if isinstance(workload, CatalogWorkload) else workload


def test_a_matrix_finds_the_workload_of_a_package_without_importing_it() -> None:
    assert (named("ranker"), "first_nets" in sys.modules) == ("first_nets:build", False)


def test_a_built_in_workload_is_never_replaced() -> None:
    """Mutation: packages are looked up first."""
    assert named("mnist_mlp") == "mnist_mlp"


@pytest.mark.parametrize(
    ("name", "problem"),
    [
        (
            "shared",
            "shared is brought by first_nets 1.2 and by second_nets 1.2; use first_nets:a or the other",
        ),
        ("rankr", "must be a workload of the catalog or package.module:function, got 'rankr'; did you mean ranker?"),
        ("Bad-Name", "Bad-Name of second_nets 1.2 must be a lower-case name with module:function"),
    ],
)
def test_a_name_that_is_not_clear_is_refused_with_its_origins(name: str, problem: str) -> None:
    assert named(name)[: len(problem)] == problem


def test_list_shows_workloads_of_packages_and_why_others_are_refused(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["list"]) == 0
    printed = capsys.readouterr().out
    assert "  ranker: first_nets:build, of first_nets 1.2\n" in printed
    refused = "  refused: mnist_mlp of first_nets 1.2 is also a built-in workload of keras-matrix; use first_nets:own\n"
    assert refused in printed
    assert main(["list", "ranker"]) == 0
    assert capsys.readouterr().out == "  ranker: first_nets:build, of first_nets 1.2\n"


def valid(schema: Any, **entry: Any) -> bool:
    matrix = {"version": 1, "backends": ["jax"], "cells": [entry]}
    return bool(jsonschema.Draft7Validator(schema).is_valid(matrix))


def test_an_editor_accepts_workloads_of_packages_as_the_users_own(capsys: pytest.CaptureFixture[str]) -> None:
    """The shipped file cannot know their names; the schema that is printed here knows those that can be used.

    Mutation: the printed schema has the refused names, too.
    """
    shipped = json.loads((Path(__file__).parents[3] / "matrix.schema.json").read_text())
    assert main(["schema"]) == 0
    printed = json.loads(capsys.readouterr().out)
    own_keys = {"batch_size": [8, 16], "params": {"width": 3}, "exclude": [{"width": 3}]}
    for schema in (shipped, printed):
        assert valid(schema, workload="ranker", **own_keys)
        assert not valid(schema, workload="ranker", width=3)
        assert not valid(schema, workload="Bad-Name")
        assert not valid(schema, workload="mnist_mlp", params={"width": 3})
    assert [valid(printed, workload=name) for name in ("shared", "rankr")] == [False, False]
    names = printed["properties"]["cells"]["items"]["properties"]["workload"]["anyOf"][0]["enum"]
    assert names[-1] == "ranker"


@pytest.mark.parametrize("shell", ["bash", "zsh"])
def test_a_shell_completes_workloads_of_packages(shell: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["completion", shell]) == 0
    printed = capsys.readouterr().out
    assert printed.count("ranker") == 2  # for list and quick; parity takes no name of a package
    assert "Bad-Name" not in printed

"""Every program of the corpus has a figure on every backend on which it runs: the call that its table states."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import pytest

from keras_matrix.records.backends import TRAINING_BACKENDS
from keras_matrix.records.codec import canonical
from keras_matrix.records.schema import MEASURED
from keras_matrix.runner.cli.main import main
from tests.programs.corpus import Program, corpus
from tests.sessions import counted_records

pytestmark = pytest.mark.process
# A step of two networks. A project of several files, loops of one's own and what has neither are among the programs of
# test_programs.py, nested inputs and targets in forms/.
SOME = ("gan",)


@pytest.mark.one_backend
@pytest.mark.parametrize("backend", TRAINING_BACKENDS)
def test_some_programs_are_measured_by_their_call(tmp_path: Path, backend: str) -> None:
    check(tmp_path, backend, [program for program in corpus() if program.name in SOME])


@pytest.mark.nightly(why="takes three minutes a backend")
@pytest.mark.parametrize("backend", TRAINING_BACKENDS)
def test_every_program_is_measured_by_its_call(tmp_path: Path, backend: str) -> None:
    check(tmp_path, backend, [program for program in corpus() if program.name not in SOME])


def check(folder: Path, backend: str, programs: Sequence[Program]) -> None:
    """Measure those of these programs that run on a backend, and compare the measured calls with the table."""
    chosen = [program for program in programs if backend in program.backends]
    entries = [entry(program, program.copied(folder / "project")) for program in chosen]
    matrix = {
        "version": 1,
        "defaults": {"repeats": 1, "epochs": 2, "threads": 1, "timeout_s": 300},
        "backends": [backend],
        "cells": [{"workload": entry} for entry in entries],
    }
    path = folder / "project" / "matrix.yaml"
    path.write_text(canonical(matrix))
    main(["--matrix", str(path), "--results", str(folder / "results")])
    records = {record.settings.script: record for record in counted_records(folder)}
    assert {script: record.reason for script, record in records.items() if record.status not in MEASURED} == {}, (
        "programs without a figure"
    )
    measured = {
        script: (record.resolved.call, record.resolved.steps_per_epoch)
        for script, record in records.items()
        if record.resolved
    }
    assert measured == {
        f"{program.name}/{program.program}": (program.call_in(program.name), program.steps) for program in chosen
    }


def entry(program: Program, folder: Path) -> dict[str, object]:
    """Return the workload of a program in a copy of its folder."""
    workload: dict[str, object] = {"script": f"{folder.name}/{program.program}"}
    if program.args:
        workload["args"] = list(program.args)
    return workload

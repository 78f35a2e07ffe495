"""A program as the workload of a matrix: its path, arguments and call become workload, parameters and phase."""

from __future__ import annotations

from pathlib import Path

import pytest

from keras_matrix.runner.errors import MatrixError
from keras_matrix.runner.matrix.reader import Cell, expand, parse

HEAD = "version: 1\nbackends: [jax]\ncells:\n  - "


def cells(entry: str) -> list[Cell]:
    return expand(parse(Path("matrix.yaml"), f"{HEAD}{entry}\n".encode()))


def test_program_has_its_arguments_and_call_as_parameters_and_whole_passes() -> None:
    (plain,) = cells("workload: {script: a b/train.py}")
    assert (plain.settings.workload, plain.settings.script) == ("script:a b/train.py", "a b/train.py")
    assert (plain.settings.params, plain.settings.steps_per_epoch, plain.settings.phase) == ({}, "seed", "fit")
    (words,) = cells("workload: {script: train.py, args: [--name, two words, 3], call: evaluate}")
    assert words.settings.params == {"args": "--name 'two words' 3", "call": "evaluate"}
    assert words.settings.phase == "predict"
    assert len({plain.cell_id, words.cell_id}) == 2
    axis = cells("{workload: {script: train.py, call: 2}, params: {args: [--width 4, --width 8]}}")
    assert [cell.settings.params["args"] for cell in axis] == ["--width 4", "--width 8"]


def test_function_of_a_module_named_script_is_no_program() -> None:
    (cell,) = cells("workload: script:build")
    assert (cell.settings.script, cell.settings.steps_per_epoch) == ("", "auto")


@pytest.mark.parametrize(
    ("entry", "problem"),
    [
        ("workload: {args: [a]}", "cells[0].workload: script is missing; write for example {script: train.py}"),
        (
            "workload: {script: ../train.py}",
            "cells[0].workload.script: must be the path of a program, such as train.py",
        ),
        ("workload: {script: train}", "cells[0].workload.script: must be the path of a program, such as train.py"),
        ("workload: {script: train.py, args: a}", "cells[0].workload.args: must be a list of words, got "),
        ("workload: {script: train.py, call: true}", "cells[0].workload.call: must be the number or kind of a call"),
        ("workload: {script: train.py, arg: []}", "cells[0].workload.arg: unknown key"),
    ],
)
def test_wrong_program_is_refused_with_its_place(entry: str, problem: str) -> None:
    with pytest.raises(MatrixError) as error:
        cells(entry)
    assert problem in str(error.value)

"""A program as the workload of a matrix: its path, arguments and call become workload, parameters and phase."""

from __future__ import annotations

from pathlib import Path

import pytest

from keras_matrix.records.identity import cell_id
from keras_matrix.records.settings import OF_CALLS, OF_PROGRAMS
from keras_matrix.runner.errors import MatrixError, UsageError
from keras_matrix.runner.matrix.grammar import SETTINGS
from keras_matrix.runner.matrix.overrides import Overrides
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


def test_defaults_that_a_program_does_not_take_are_not_applied_to_it() -> None:
    """So that a matrix of built-in workloads can have a program too."""
    defaults = "{steps_per_epoch: auto, batch_size: 64, jit: false, feed: pipeline, epochs: 6, phase: predict}"
    entries = "[{workload: {script: train.py}}, {workload: {script: train.py, call: predict}}]"
    text = f"version: 1\nbackends: [jax]\ndefaults: {defaults}\ncells: {entries}\n"
    fit, predict = (cell.settings for cell in expand(parse(Path("matrix.yaml"), text.encode())))
    for settings in (fit, predict):
        assert (settings.steps_per_epoch, settings.batch_size, settings.feed) == ("seed", 1, "host_fed")
        assert settings.epochs == 6
    assert [(settings.phase, settings.jit) for settings in (fit, predict)] == [("fit", False), ("predict", "auto")]


def test_every_setting_is_taken_by_a_call_of_a_program_or_refused_by_its_name() -> None:
    values = {"feed": "device_resident", "page_cache": "cold", "remat": "full", "distribution": "model"}
    values |= {
        "implementation": "native",
        "data": "digits",
        "input_timers": "true",
        "call": "model",
        "outputs": "device",
        "torch_compile": "mode=default",
    }
    others = set(SETTINGS) - OF_PROGRAMS
    assert others > frozenset().union(*OF_CALLS.values())
    for call, taken_keys in OF_CALLS.items():
        for key in sorted(others - taken_keys):
            value = values.get(key, "true" if key in ("jit", "eager") else "2")
            with pytest.raises(MatrixError, match=rf"cells\[0\].{key}: must be left out with a script"):
                cells(f"{{workload: {{script: train.py, call: {call}}}, {key}: {value}}}")


def test_setting_on_the_command_line_that_a_program_does_not_take_is_refused() -> None:
    matrix = parse(Path("matrix.yaml"), f"{HEAD}workload: {{script: train.py}}\n".encode())
    with pytest.raises(UsageError, match=r"--set batch_size=32: .* batch_size must be left out with a script"):
        expand(matrix, Overrides(assignments={"batch_size": 32}))


def test_function_of_a_module_named_script_is_no_program() -> None:
    (cell,) = cells("workload: script:build")
    assert (cell.settings.script, cell.settings.steps_per_epoch) == ("", "auto")


def test_variables_are_one_value_or_an_axis_and_part_of_the_identity() -> None:
    entry = "workload: {script: train.py}"
    plain, one = cells(entry) + cells(f"{{{entry}, env: {{XLA_FLAGS: --a --b, OMP_DYNAMIC: 1}}}}")
    assert one.settings.env == "OMP_DYNAMIC=1 'XLA_FLAGS=--a --b'"
    assert one.cell_id == cell_id(one.settings)
    none, two = cells(f"{{{entry}, env: [{{}}, {{OMP_DYNAMIC: 1, XLA_FLAGS: --a --b}}]}}")
    assert (none.cell_id, two.cell_id) == (plain.cell_id, one.cell_id), "in any order, and without any as before"
    (built,) = cells("{workload: mnist_mlp, env: {JAX_ENABLE_X64: 0}}")
    assert built.settings.env == "JAX_ENABLE_X64=0"


def test_variables_of_ones_own_are_allowed_by_the_command() -> None:
    """Mutation: a flag that allows one variable allows all."""
    text = f"{HEAD}{{workload: {{script: train.py}}, env: {{DATA_DIR: /data, WANDB_MODE: offline, FOLDS: 3}}}}\n"
    matrix = parse(Path("matrix.yaml"), text.encode())
    with pytest.raises(UsageError, match=r"cells\[0\]: env: .*, got FOLDS; add --allow-env FOLDS$"):
        expand(matrix, Overrides(allowed_variables=("DATA_DIR",)))
    (allowed,) = expand(matrix, Overrides(allowed_variables=("DATA_DIR", "FOLDS")))
    assert allowed.settings.env == "DATA_DIR=/data FOLDS=3 WANDB_MODE=offline"
    (written,) = expand(matrix, Overrides(assignments={"env": "FOLDS=4"}))
    assert written.settings.env == "FOLDS=4"

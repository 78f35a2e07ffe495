"""Options of compilers: equal ones give equal texts, and lists of them are an axis."""

from __future__ import annotations

from itertools import permutations
from pathlib import Path

import pytest

from keras_matrix.records.compiler_options import (
    TORCH_ARGUMENTS,
    flags_problem,
    flags_text,
    torch_arguments,
    torch_combinations,
    torch_problem,
    torch_text,
)
from keras_matrix.records.settings import Settings
from keras_matrix.runner.matrix.overrides import Overrides
from keras_matrix.runner.matrix.reader import expand, parse
from tests.conftest import make_settings

HEAD = "version: 1\nbackends: [torch, jax]\ncells:\n  - "


def settings_of(entry: str, **assignments: str) -> list[Settings]:
    matrix = parse(Path("matrix.yaml"), f"{HEAD}{entry}\n".encode())
    return [cell.settings for cell in expand(matrix, Overrides(assignments=assignments))]


def test_arguments_in_any_order_are_one_text_and_read_back() -> None:
    """Mutation: names are not ordered; a word is read as text where it is true."""
    arguments = {name: values[-1] for name, values in TORCH_ARGUMENTS.items()}
    texts = {torch_text(dict(order)) for order in permutations(arguments.items())}
    assert texts == {"dynamic=true fullgraph=true mode=max-autotune-no-cudagraphs"}
    (text,) = texts
    assert torch_arguments(text) == arguments
    assert torch_text(text) == text
    assert torch_problem(text) is None


def test_lists_in_a_mapping_are_an_axis_of_all_combinations() -> None:
    """Mutation: only the first list is one."""
    options = "{mode: [default, max-autotune], dynamic: [true, false]}"
    entry = f"{{workload: mnist_mlp, backends: [torch], jit: true, torch_compile: {options}}}"
    assert [settings.torch_compile for settings in settings_of(entry)] == [
        "dynamic=true mode=default",
        "dynamic=false mode=default",
        "dynamic=true mode=max-autotune",
        "dynamic=false mode=max-autotune",
    ]
    assert [*torch_combinations({"mode": ["default"]})] == [{"mode": "default"}]
    assert [*torch_combinations(3)] == [3]


def test_each_option_is_an_axis_and_can_be_set_by_the_command() -> None:
    entry = "{workload: mnist_mlp, backends: [jax], xla_flags: ['', --xla_b --xla_a=1], matmul_precision: high}"
    assert [(cell.xla_flags, cell.matmul_precision) for cell in settings_of(entry)] == [
        ("", "high"),
        ("--xla_a=1 --xla_b", "high"),
    ]
    (compiled,) = settings_of(
        "{workload: mnist_mlp, backends: [torch], jit: true}", torch_compile="mode=default fullgraph=true"
    )
    assert compiled.torch_compile == "fullgraph=true mode=default"


@pytest.mark.parametrize("flags", ["--xla_a=1 --xla_b=x,y", " --xla_b  --xla_a ", ""])
def test_flags_in_any_order_are_one_text(flags: str) -> None:
    assert flags_problem(flags) is None
    assert flags_text(flags) == flags_text(" ".join(reversed(flags.split())))
    assert flags_text(flags).split() == sorted(flags.split())


def test_settings_without_options_are_as_before() -> None:
    plain = make_settings()
    assert (plain.torch_compile, plain.xla_flags, plain.matmul_precision) == ("", "", "default")

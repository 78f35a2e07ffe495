"""Entries of single layers and operations: what the host makes of them, without Keras."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import jsonschema
import pytest
import yaml

from keras_matrix.records.parts import ArraySpec, array_specs, input_problem
from keras_matrix.records.settings import Scalar
from keras_matrix.runner.errors import InfrastructureError, UsageError
from keras_matrix.runner.matrix import catalog, json_schema, parts
from keras_matrix.runner.matrix.overrides import Overrides
from keras_matrix.runner.matrix.reader import Cell, expand, parse
from keras_matrix.runner.matrix.settings_text import work

HEAD = "version: 1\nbackends: [jax, torch]\ncells:\n  - "


def cells_of(entry: str) -> list[Cell]:
    return expand(parse(Path("matrix.yaml"), (HEAD + entry).encode(), catalog.load()))


def of_jax(entry: str) -> list[dict[str, Any]]:
    """The parameters of an entry's cells on JAX, with their batch sizes."""
    settings = [cell.settings for cell in cells_of(entry) if cell.settings.backend == "jax"]
    return [{**item.params, "batch_size": item.batch_size} for item in settings]


def test_each_part_of_an_axis_has_its_own_input_arguments_and_batch() -> None:
    """Mutation: every part gets the input of the first."""
    assert of_jax("{workload: layer, layer: [Conv2D, LSTM]}") == [
        {"layer": "Conv2D", "input": "8x32x32x16", "filters": 32, "kernel_size": 3, "batch_size": 8},
        {"layer": "LSTM", "input": "16x64x128", "units": 64, "batch_size": 16},
    ]


def test_own_inputs_and_arguments_replace_those_of_the_catalogue_and_are_axes() -> None:
    entry = "{workload: layer, layer: Dense, input: [2x8, 4x8], params: {units: [3, 5], use_bias: false}}"
    points = [(point["input"], point["units"], point["use_bias"], point["batch_size"]) for point in of_jax(entry)]
    assert points == [("2x8", 3, False, 2), ("2x8", 5, False, 2), ("4x8", 3, False, 4), ("4x8", 5, False, 4)]


def test_a_part_predicts_without_being_asked_to() -> None:
    assert {cell.settings.phase for cell in cells_of("{workload: op, op: sort}")} == {"predict"}


@pytest.mark.parametrize(("kind", "least"), [("layer", 60), ("op", 150)])
def test_all_is_every_part_of_the_catalogue_once(kind: str, least: int) -> None:
    names = [str(point[kind]) for point in of_jax(f"{{workload: {kind}, {kind}: all}}")]
    assert names == list(parts.load().parts[kind])
    assert len(names) >= least


def test_excluded_parts_of_all_are_left_out() -> None:
    """Mutation: `all` is replaced after the excludes are read."""
    entry = "{workload: op, op: all, exclude: [{op: [svd, eig]}]}"
    assert len(cells_of(entry)) == 2 * (len(parts.load().parts["op"]) - 2)


def test_a_part_of_another_version_of_keras_needs_only_an_input() -> None:
    assert of_jax("{workload: op, op: sort_soon, input: 8x4}") == [{"op": "sort_soon", "input": "8x4", "batch_size": 8}]


def test_an_include_may_name_another_part() -> None:
    entry = "{workload: op, op: sort, include: [{op: einsum}]}"
    assert [point["op"] for point in of_jax(entry)] == ["sort", "einsum"]


def test_progress_names_the_part() -> None:
    """Mutation: cells of parts are named by their workload alone."""
    assert [work(cell.settings) for cell in cells_of("{workload: layer, layer: LSTM}")] == ["layer LSTM"] * 2


@pytest.mark.parametrize("assignment", [{"input": "2x8"}, {"params.op": "sin"}])
def test_a_flag_does_not_change_the_part_or_its_input(assignment: dict[str, Scalar]) -> None:
    matrix = parse(Path("matrix.yaml"), f"{HEAD}{{workload: op, op: [sort, sum]}}".encode(), catalog.load())
    with pytest.raises(UsageError, match="must be set in the matrix: each layer or operation has its own input"):
        expand(matrix, Overrides(assignments=assignment))


def test_the_batch_of_a_part_stays_that_of_its_input_when_a_flag_sets_another() -> None:
    """Mutation: `--set batch_size` applies to parts, too."""
    matrix = parse(Path("matrix.yaml"), f"{HEAD}{{workload: op, op: sort}}".encode(), catalog.load())
    assert {cell.settings.batch_size for cell in expand(matrix, Overrides(assignments={"batch_size": 3}))} == {64}


def test_inputs_have_sizes_and_a_type() -> None:
    assert array_specs("8x4, 8:int32") == [ArraySpec((8, 4)), ArraySpec((8,), "int32")]
    with pytest.raises(ValueError, match="must be sizes"):
        array_specs("8x4x")


@pytest.mark.parametrize("text", ["", "x", "8x", "-1x2", "8x4:text", "8,", "1" * 10, "8x" * 8 + "8"])
def test_other_texts_are_no_inputs(text: str) -> None:
    assert (input_problem(text) or "").startswith("must be sizes")


def test_a_broken_catalogue_is_the_installations_fault(tmp_path: Path) -> None:
    for text in ("{}", "[1]", "{"):
        (tmp_path / "parts.json").write_text(text)
        parts.load.cache_clear()
        with pytest.raises(InfrastructureError, match="not a catalogue of parts"):
            parts.load(tmp_path / "parts.json")
    with pytest.raises(InfrastructureError, match="cannot be read"):
        parts.load(tmp_path / "missing.json")


@pytest.mark.parametrize(
    ("entry", "is_valid"),
    [
        ("{workload: layer, layer: [Conv2D, LSTM], input: 8x8x8x3, params: {filters: [1, 2]}}", True),
        ("{workload: op, op: all}", True),
        ("{workload: op, layer: Dense}", False),
        ("{workload: mnist_mlp, layer: Dense}", False),
    ],
)
def test_an_editor_accepts_what_the_reader_accepts(entry: str, is_valid: bool) -> None:
    schema = json_schema.json_schema(catalog.load())
    assert jsonschema.Draft7Validator(schema).is_valid(yaml.safe_load(HEAD + entry)) is is_valid

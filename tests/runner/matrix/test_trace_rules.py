"""The rules for traces in a matrix file, and their effect on cells and plans."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest

from keras_matrix.records.traces.request import Trace
from keras_matrix.runner.matrix import catalog
from keras_matrix.runner.matrix.reader import Cell, expand, load, parse
from keras_matrix.runner.plan.plan import plan_id

CATALOG = catalog.load(Path(__file__).parents[1] / "catalog.json")
HEAD = "version: 1\nbackends: [jax]\n"

Cells = Callable[[str], list[Cell]]


@pytest.fixture
def cells_of(tmp_path: Path) -> Cells:
    def make(text: str) -> list[Cell]:
        path = tmp_path / "matrix.yaml"
        path.write_text(HEAD + text)
        return expand(load(path, CATALOG))

    return make


@pytest.mark.parametrize(
    ("trace", "wanted"),
    [
        ("{}", Trace([2], 5)),
        ("{epochs: [2], steps: 5}", Trace([2], 5)),
        ("{epochs: [3, 1], steps: 1}", Trace([1, 3], 1)),
        ("{steps: 7}", Trace([2], 7)),
    ],
)
def test_cell_requests_a_trace_of_epochs_and_steps(cells_of: Cells, trace: str, wanted: Trace) -> None:
    (cell,) = cells_of(f"cells:\n  - workload: mnist_mlp\n    trace: {trace}\n")
    assert cell.trace == wanted


def test_trace_is_part_of_the_plan_id_and_not_of_the_cell_id(cells_of: Cells) -> None:
    (plain,) = cells_of("cells:\n  - workload: mnist_mlp\n")
    (traced,) = cells_of("cells:\n  - workload: mnist_mlp\n    trace: {}\n")
    assert (traced.cell_id, traced.settings) == (plain.cell_id, plain.settings)
    assert plan_id([traced]) != plan_id([plain])
    assert plan_id([replace(traced, trace=None, line=plain.line)]) == plan_id([plain])


def test_default_trace_applies_to_every_entry_and_include_replaces_it(cells_of: Cells) -> None:
    text = (
        "defaults: {trace: {steps: 3}}\n"
        "cells:\n"
        "  - workload: mnist_mlp\n"
        "  - workload: lstm\n"
        "    trace: {steps: 4}\n"
        "    include: [{batch_size: 65}, {batch_size: 66, trace: {steps: 9}}]\n"
    )
    assert [cell.trace and cell.trace.steps for cell in cells_of(text)] == [3, 4, 4, 9]


def test_only_the_default_call_is_traced(cells_of: Cells) -> None:
    both = cells_of("cells:\n  - {workload: mnist_mlp, phase: predict, call: [model, predict_on_batch], trace: {}}\n")
    assert {cell.settings.call: cell.trace for cell in both} == {"model": None, "predict_on_batch": Trace()}


def test_only_the_cells_of_backends_with_a_profiler_are_traced() -> None:
    """Mutation: a cell of OpenVINO is measured for its trace, and warns of a module that is missing."""
    text = "version: 1\nbackends: [jax, openvino]\ncells:\n  - {workload: mnist_mlp, phase: predict, trace: {}}\n"
    every = expand(parse(Path("matrix.yaml"), text.encode(), CATALOG))
    assert {cell.settings.backend: cell.trace for cell in every} == {"jax": Trace(), "openvino": None}


def test_only_the_cells_of_keras_are_traced(cells_of: Cells) -> None:
    """Mutation: `check_trace` checks the trace that an include gets from its entry too."""
    both = cells_of("cells:\n  - workload: mnist_mlp\n    implementation: [keras, native]\n    trace: {}\n")
    assert [cell.trace for cell in both] == [Trace(), None]
    included = cells_of("cells:\n  - workload: mnist_mlp\n    trace: {}\n    include: [{implementation: native}]\n")
    assert [cell.trace for cell in included] == [Trace(), None]

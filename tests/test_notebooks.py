"""The notebooks of docs/examples: the first runs offline; the code of every one compiles and installs what fits."""

from __future__ import annotations

import ast
import json
import re
import tomllib
from pathlib import Path
from typing import Any

import pytest

from keras_matrix.records.store import Results
from keras_matrix.runner.matrix import reader
from tests.scripts import script

ROOT = Path(__file__).parents[1]
EXAMPLES = ROOT / "docs" / "examples"
FIRST, COLAB = EXAMPLES / "first_run.ipynb", EXAMPLES / "colab_gpu.ipynb"
MOST_BYTES = 300_000
runs = script("notebook")


def read(path: Path) -> dict[str, Any]:
    found: dict[str, Any] = json.loads(path.read_text(encoding="utf-8"))
    return found


def sources(path: Path) -> list[str]:
    return ["".join(cell["source"]) for cell in runs.code_cells(read(path))]


def python_of(source: str) -> str:
    """The Python of a cell: lines of IPython's own syntax, such as `!pip`, become `pass`."""
    return re.sub(r"^(\s*)[!%].*$", r"\1pass", source, flags=re.MULTILINE)


def test_there_is_no_other_notebook() -> None:
    assert sorted(EXAMPLES.glob("*.ipynb")) == [COLAB, FIRST]


@pytest.mark.parametrize("path", [FIRST, COLAB])
def test_every_code_cell_compiles(path: Path) -> None:
    for source in sources(path):
        ast.parse(python_of(source))


@pytest.mark.parametrize(("path", "cells"), [(FIRST, [2, 1]), (COLAB, [9])])
def test_every_matrix_of_a_notebook_is_one_that_the_runner_reads(path: Path, cells: list[int]) -> None:
    names = {"backends": ["jax", "torch"]}  # what a notebook finds out when it runs
    found = [
        eval(compile(ast.Expression(node), path.name, "eval"), dict(names))
        for source in sources(path)
        for node in ast.walk(ast.parse(python_of(source)))
        if isinstance(node, ast.Dict)
        and any(isinstance(key, ast.Constant) and key.value == "version" for key in node.keys)
    ]
    read = [reader.parse(path, json.dumps(matrix).encode()) for matrix in found]
    assert [len(reader.expand(matrix)) for matrix in read] == cells


def test_outputs_of_the_first_notebook_are_stored_and_small() -> None:
    shown = [output for cell in runs.code_cells(read(FIRST)) for output in cell["outputs"]]
    assert [one for one in shown if one["output_type"] == "error"] == []
    assert [one["data"]["text/html"][:26] for one in shown if "text/html" in one.get("data", {})] == [
        '<div class="keras-matrix">'
    ]
    assert FIRST.stat().st_size < MOST_BYTES


def test_the_first_notebook_writes_the_example_workload() -> None:
    workload = (EXAMPLES / "my_workload.py").read_text(encoding="utf-8").strip()
    assert sum(workload in source for source in sources(FIRST)) == 1


def test_the_colab_notebook_says_in_its_first_cell_that_it_is_not_run_here() -> None:
    first = read(COLAB)["cells"][0]
    assert first["cell_type"] == "markdown"
    assert re.search(r"Not run by the project's tests.*\(20\d\d-\d\d-\d\d\)", "".join(first["source"]))
    assert all(cell["outputs"] == [] for cell in runs.code_cells(read(COLAB)))


def test_the_colab_notebook_installs_what_the_gpu_extras_require_besides_the_backend() -> None:
    extras = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]["optional-dependencies"]
    common = set.intersection(*(set(extras[f"{name}-gpu"]) for name in ("tf", "jax", "torch")))
    [line] = [line for source in sources(COLAB) for line in source.splitlines() if line.startswith("!pip")]
    assert set(re.findall(r'"([^"]+)"', line)) == common


@pytest.mark.process
@pytest.mark.nightly
def test_the_first_notebook_runs_offline(tmp_path: Path) -> None:
    outputs = runs.executed(read(FIRST), tmp_path)
    stored = [cell["outputs"] for cell in runs.code_cells(read(FIRST))]
    assert [[one["output_type"] for one in cell] for cell in outputs] == [
        [one["output_type"] for one in cell] for cell in stored
    ]
    measured, own = Results(tmp_path / "results").runs()
    assert {record.status for run in (measured, own) for record in run.load()[0]} <= {"ok", "unstable"}

"""The key `python` of a matrix: the Python environment of the cells, or of each backend."""

from __future__ import annotations

from pathlib import Path

import pytest

from keras_matrix.runner.errors import MatrixError
from keras_matrix.runner.matrix.overrides import Overrides
from keras_matrix.runner.matrix.reader import parse
from keras_matrix.runner.measure.request import CellChoice

CELLS = "version: 1\nbackends: [jax, torch]\ncells:\n  - workload: mnist_mlp\n"


def environments_of(matrix: Path) -> dict[str, Path]:
    choice = CellChoice(matrix, Overrides())
    choice.load()
    return choice.environments()


def test_paths_are_relative_to_the_matrix(tmp_path: Path) -> None:
    matrix = tmp_path / "project" / "matrix.yaml"
    matrix.parent.mkdir()
    matrix.write_text(f"{CELLS}python: .venv\n")
    assert environments_of(matrix) == {"": tmp_path / "project" / ".venv"}
    matrix.write_text(f"{CELLS}python: {{jax: /envs/jax, torch: ../torch}}\n")
    assert environments_of(matrix) == {
        "jax": Path("/envs/jax"),
        "torch": tmp_path / "project" / ".." / "torch",
    }


def test_a_matrix_is_read_once(tmp_path: Path) -> None:
    """So that cells and their environments are those of one text, also if the file changes meanwhile."""
    matrix = tmp_path / "matrix.yaml"
    matrix.write_text(f"{CELLS}python: .venv\n")
    choice = CellChoice(matrix, Overrides())
    _, cells = choice.load()
    matrix.write_text("cells: [")
    assert choice.environments() == {"": tmp_path / ".venv"}
    assert choice.load()[1] == cells


def test_a_file_from_which_no_cell_is_loaded_names_none(tmp_path: Path) -> None:
    """Such as a .cfg of the driver, or a file that has the name under which the cells of flags are stored."""
    assert CellChoice(tmp_path / "matrix.yaml", Overrides(), optional=True).environments() == {}
    (tmp_path / "fc").write_text("[section]\n")
    assert CellChoice(tmp_path / "fc", Overrides()).environments() == {}


@pytest.mark.parametrize(
    ("value", "problem"),
    [
        ("3", "python: must be a mapping, got 3"),
        ("''", "python: must be the path of a virtual environment or of its Python, such as .venv/bin/python, got ''"),
        ("{jaxx: a}", "python.jaxx: unknown key, got 'jaxx'; did you mean jax?"),
        (
            "{jax: 1}",
            "python.jax: must be the path of a virtual environment or of its Python, such as .venv/bin/python, got 1",
        ),
    ],
)
def test_what_is_no_path_is_refused(value: str, problem: str) -> None:
    with pytest.raises(MatrixError) as raised:
        parse(Path("matrix.yaml"), f"{CELLS}python: {value}\n".encode())
    assert str(raised.value) == f"matrix.yaml:5: {problem}"

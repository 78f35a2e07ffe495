"""What matrix files, tasks, `.cfg` files and flags are refused for: a table of inputs and complete messages each."""

from __future__ import annotations

import shlex
from pathlib import Path

import pytest

from keras_matrix.runner.errors import MatrixError, UsageError
from keras_matrix.runner.matrix import catalog
from keras_matrix.runner.matrix.cfg import Filled, read_cfg
from keras_matrix.runner.matrix.overrides import Overrides, parse_assignment
from keras_matrix.runner.matrix.reader import Cell, expand, parse
from tests.golden import Golden
from tests.messages import check_texts, refusal

HEAD = "version: 1\nbackends: [tensorflow, jax, torch]\ncells:\n  - "
FOR_FLAGS = HEAD + (
    "{workload: mnist_mlp, batch_size: [1, 32]}\n  - {workload: 'pkg.mod:build', params: {feed: [a, b]}}\n"
)


def entry(lines: str, key: str, head: str) -> str:
    """Return the file of one entry if the text begins with `key`, else the text."""
    return head + lines.replace("\n", "\n    ").rstrip(" ") if lines.startswith(f"{key}:") else lines


def problems_of(text: str) -> list[str]:
    """Return the problems of a matrix, without the name of the file at the beginning of each."""
    problems = refusal(MatrixError, lambda: expand(parse(Path("matrix.yaml"), text.encode(), catalog.load())))
    assert all(problem.startswith("matrix.yaml:") for problem in problems)
    return [problem.removeprefix("matrix.yaml:") for problem in problems]


@pytest.mark.fault("F32", mutation="any version of a matrix file is accepted")
@pytest.mark.fault("F34", mutation="an entry may exclude all of its cells")
@pytest.mark.fault("F34", mutation="a cell may be defined twice")
@pytest.mark.fault("F34", mutation="the number of cells has no limit")
@pytest.mark.fault("F12", mutation="discard may equal epochs")
@pytest.mark.fault("F12", mutation="a boolean is an integer for a rule")
def test_every_wrong_matrix_has_its_messages(golden: Golden) -> None:
    """Mutations: `_of_generation` or `_of_quantised_weights` yields nothing; a twin that generates has the rungs of
    training, too; conflicts do not know the parameters.
    """
    check_texts(golden, "matrix.txt", lambda text: problems_of(entry(text, "workload", HEAD)))


def test_every_wrong_task_has_its_messages(golden: Golden) -> None:
    check_texts(golden, "tasks.txt", lambda text: problems_of(entry(text, "task", "version: 1\ntasks:\n  - ")))


def test_every_wrong_cfg_file_has_its_messages(golden: Golden, tmp_path: Path) -> None:
    path = tmp_path / "tasks.cfg"

    def messages_of(text: str) -> list[str]:
        path.write_text(text)
        problems = refusal(MatrixError, lambda: read_cfg(path, None, Filled()))
        return [problem.replace(str(path), path.name) for problem in problems]

    check_texts(golden, "cfg.txt", messages_of)


def test_every_wrong_flag_has_its_messages(golden: Golden) -> None:
    matrix = parse(Path("matrix.yaml"), FOR_FLAGS.encode(), catalog.load())

    def messages_of(text: str) -> list[str]:
        words = shlex.split(text)
        flags = list(zip(words[::2], words[1::2], strict=True))
        backends, filters, assignments, repeats = (
            tuple(value for flag, value in flags if flag == name)
            for name in ("--backend", "--filter", "--set", "--repeats")
        )

        def expanded() -> list[Cell]:
            values = dict(parse_assignment(value) for value in assignments)
            return expand(matrix, Overrides(backends, filters, values, int(repeats[0]) if repeats else None))

        return refusal(UsageError, expanded)

    check_texts(golden, "flags.txt", messages_of)

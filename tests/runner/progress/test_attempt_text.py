"""Short names of cells in the lines of progress."""

from __future__ import annotations

from pathlib import Path

from keras_matrix.records.schema import Status
from keras_matrix.runner.matrix.reader import expand, parse
from keras_matrix.runner.plan.plan import PlannedRepeat
from keras_matrix.runner.progress.time_left import CellNames, result
from tests.conftest import make_record

MATRIX = """\
version: 1
backends: [jax, torch]
cells:
  - {workload: "user:build", batch_size: 8, params: {width: [64, 256], depth: 2}}
  - {workload: lstm, threads: [1, 2]}
  - {workload: mnist_mlp}
"""


def test_cells_of_one_workload_have_the_settings_that_differ_between_them() -> None:
    planned = [PlannedRepeat(cell, 0) for cell in expand(parse(Path("m.yaml"), MATRIX.encode()))]
    names = CellNames(planned)
    found = [names.label(one) for one in planned]
    assert len(set(found)) == len(found) == 10
    assert "user:build b8 width=64 on jax #0" in found
    assert "user:build b8 width=256 on torch #0" in found
    assert "lstm b32 threads=1 on jax #0" in found
    assert any(one.startswith("mnist_mlp b") and one.endswith(" on jax #0") and "=" not in one for one in found)


def test_comparison_is_named_without_the_backend() -> None:
    cells = expand(parse(Path("m.yaml"), MATRIX.encode()))
    names = CellNames([PlannedRepeat(cell, 0) for cell in cells])
    found = {names.comparison(cell) for cell in cells}
    assert found == {
        "user:build b8 width=64",
        "user:build b8 width=256",
        "lstm b32 threads=1",
        "lstm b32 threads=2",
        "mnist_mlp b32",
    }


def test_a_long_reason_is_cut_where_it_shows() -> None:
    found = result(make_record(None, status=Status.ERROR, reason="x" * 300))
    assert found == f"error: {'x' * 197}..."
    assert result(make_record(None, status=Status.ERROR, reason="x" * 200)) == f"error: {'x' * 200}"

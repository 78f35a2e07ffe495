"""Cells as columns, with and without a library for tables."""

from __future__ import annotations

import sys
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest

import keras_matrix as km
from keras_matrix.analysis.comparison.table import table
from keras_matrix.analysis.views.result_table import result_table
from keras_matrix.records.task import Metric, TaskRun
from keras_matrix.runner.api import stored_run
from keras_matrix.runner.service.cell_rows import cells_of
from tests.conftest import make_record, make_settings
from tests.runner.api.conftest import measured


class FakeTable:
    """Stands for a library's DataFrame."""

    def __init__(self, columns: dict[str, list[Any]]) -> None:
        self.columns = columns


@pytest.fixture
def installed(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """The libraries that a test pretends are installed; the real ones are hidden."""
    names: list[str] = []
    for name in stored_run.LIBRARIES:
        library = ModuleType(name)
        library.DataFrame = type(f"{name}_table", (FakeTable,), {})  # type: ignore[attr-defined]
        monkeypatch.setitem(sys.modules, name, library)
    monkeypatch.setattr(stored_run, "find_spec", lambda name: name if name in names else None)
    return names


def test_without_a_library_a_frame_is_a_dict_of_equally_long_columns(folder: Path, installed: list[str]) -> None:
    found = measured().to_frame()
    assert isinstance(found, dict)
    assert {len(column) for column in found.values()} == {6}
    assert found["backend"] == ["tensorflow", "jax", "torch"] * 2
    assert found["batch_size"] == [32] * 3 + [64] * 3
    assert found["step_time_s"][1] == pytest.approx(0.02, rel=0.02)
    assert found["metric"] == [None] * 6
    assert "times.samples_per_s" in found


def test_parameters_are_columns_that_are_none_where_a_cell_has_no_such_parameter(folder: Path) -> None:
    cells = [{"workload": "mnist_mlp"}, {"workload": "fc", "mode": "fc_data", "workers": 2}]
    found = measured({"version": 1, "backends": ["jax"], "cells": cells}).to_frame("dict")
    assert found["params.workers"] == [2, None]


def test_values_of_several_types_become_floats_or_texts_of_one_type_per_column(folder: Path) -> None:
    cells = [
        {"workload": "mnist_mlp", "threads": ["all", 2], "jit": "auto"},
        {"workload": "my_module:build", "threads": "all", "jit": True, "params": {"width": [1, 2.5]}},
    ]
    found = measured({"version": 1, "backends": ["jax"], "cells": cells}).to_frame("dict")
    assert (found["threads"], found["jit"]) == (["2", "all", "all", "all"], ["auto", "auto", "true", "true"])
    assert [repr(value) for value in found["params.width"]] == ["None", "None", "1.0", "2.5"]
    assert {
        name for name, column in found.items() if len({type(value) for value in column} - {type(None)}) > 1
    } == set()


@pytest.mark.parametrize(
    ("there", "asked", "made"),
    [
        (["pandas", "polars"], None, "pandas_table"),
        (["polars"], None, "polars_table"),
        (["pandas", "polars"], "polars", "polars_table"),
        (["pandas"], "dict", "dict"),
    ],
)
def test_pandas_is_taken_before_polars_unless_one_is_named(
    folder: Path, installed: list[str], there: list[str], asked: str | None, made: str
) -> None:
    installed += there
    assert type(measured(repeats=1).to_frame(asked)).__name__ == made


def test_unknown_and_missing_libraries_are_refused(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "polars", None)
    run = measured(repeats=1)
    with pytest.raises(km.UsageError, match=r"one of pandas, polars, dict, got 'panda'; did you mean pandas\?"):
        run.to_frame("panda")
    with pytest.raises(km.UsageError, match=r"polars cannot be imported .*pip install polars"):
        run.to_frame("polars")


def test_metric_named_like_a_column_has_one_of_its_own() -> None:
    """A command names its metrics itself."""
    metrics = [Metric("speed", 4.0, "x/s"), Metric("seed", 7.0), Metric("work", 8.0), Metric("params.lr", 9.0)]
    task = TaskRun("t", ["true"], "speed", metrics)
    settings = make_settings(workload="task t", params={"lr": 1})
    found = stored_run.columns(cells_of(result_table(table([make_record(None, task=task, settings=settings)]))))
    assert (found["seed"], found["work"], found["params.lr"]) == ([0], ["task t"], [1])
    assert [found[f"statistics.{name}"] for name in ("seed", "work", "params.lr")] == [[7.0], [8.0], [9.0]]


def test_text_that_looks_like_a_number_stays_apart_from_it_in_a_column_of_texts() -> None:
    works = [make_settings(workload="m:build", params={"x": value}) for value in ("1", 1, "a")]
    found = stored_run.columns(cells_of(result_table(table([make_record(settings=one) for one in works]))))
    assert sorted(found["params.x"]) == ['"1"', "1", "a"]

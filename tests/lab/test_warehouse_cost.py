"""The calculation of a year's cost counts bytes as BigQuery does."""

from __future__ import annotations

from collections import Counter
from pathlib import Path
from typing import Any

import pytest

from keras_matrix.dashboards.live.questions import questions
from keras_matrix.uploader.schema import CELLS, RUNS, ColumnMode, TableColumn, Type
from lab import warehouse_cost as cost
from tests.uploader.stored import results_with


@pytest.mark.parametrize(
    ("kind", "mode", "value", "expected"),
    [
        (Type.STRING, ColumnMode.NULLABLE, "é", 4),
        (Type.INT64, ColumnMode.NULLABLE, 7, 8),
        (Type.BOOL, ColumnMode.NULLABLE, True, 1),
        (Type.DATE, ColumnMode.REQUIRED, "2026-01-31", 8),
        (Type.JSON, ColumnMode.NULLABLE, {"jax": "0.1"}, 13),
        (Type.STRING, ColumnMode.REPEATED, ["a", "bc"], 7),
        (Type.FLOAT64, ColumnMode.NULLABLE, None, 0),
    ],
)
def test_value_has_its_logical_size(kind: Type, mode: ColumnMode, value: Any, expected: int) -> None:
    assert cost.width(TableColumn("x", kind, mode, ""), value) == expected


def test_only_the_columns_that_a_question_uses_are_counted() -> None:
    read = cost.columns_read(questions()["failures"].sql)
    assert {table for table, _ in read} == {CELLS.name}
    assert {name for _, name in read} == {"status", "workload", "backend", "run_id", "reason", "source", "day"}


def test_night_has_each_cell_with_its_repeats(tmp_path: Path) -> None:
    [run] = results_with(tmp_path / "results", runs=1, count=2).runs()
    sizes, counts = cost.sizes_of(cost.night_of(run, tmp_path / "night"))
    assert counts == Counter(
        {"runs": 1, "cells": 5, "measurements": counts["measurements"], "findings": counts["findings"]}
    )
    assert sizes[RUNS.name, "day"] == 8
    assert sizes[CELLS.name, "run_id"] == 5 * (2 + len(run.run_id))

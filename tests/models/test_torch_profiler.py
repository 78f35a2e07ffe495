"""PyTorch's profiler with real steps: every step's operators have shapes, those of the first or their own."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from keras_matrix.models.profiling import load, recorded
from keras_matrix.records.traces.request import STEP

pytestmark = pytest.mark.process


def products(path: Path, rows: list[int], *, equal: bool) -> list[list[list[int]]]:
    """Record a product with so many rows in each step; return the shapes of its inputs, in order of time."""
    import torch

    profiler: Any = load("torch")
    profiler.steps_are_equal = equal
    with recorded(profiler, path):
        for number, count in enumerate(rows, 1):
            with profiler.step(number):
                torch.mm(torch.ones(count, 3), torch.ones(3, 4))
    events = json.loads(path.read_text())["traceEvents"]
    assert sum(str(one.get("name")).startswith(STEP) for one in events) == len(rows)
    found = sorted((one for one in events if one.get("name") == "aten::mm"), key=lambda one: float(one["ts"]))
    return [one["args"].get("Input Dims") for one in found]


def test_equal_steps_have_the_shapes_of_the_first(tmp_path: Path) -> None:
    assert products(tmp_path / "trace.json", [2, 2, 2, 2], equal=True) == [[[2, 3], [3, 4]]] * 4


def test_steps_that_may_differ_have_their_own_shapes(tmp_path: Path) -> None:
    found = products(tmp_path / "trace.json", [2, 5, 7], equal=False)
    assert found == [[[rows, 3], [3, 4]] for rows in (2, 5, 7)]


def test_a_profiler_records_again_after_it_was_stopped(tmp_path: Path) -> None:
    for name in ("a.json", "b.json"):
        assert products(tmp_path / name, [2, 2], equal=True) == [[[2, 3], [3, 4]]] * 2


def test_marks_of_a_profiler_that_does_not_record_have_no_effect(tmp_path: Path) -> None:
    """The steps of a profile for TensorBoard are marked by another object than the one that records."""
    import torch

    marking, recording = load("torch"), load("torch")
    with recorded(recording, tmp_path / "trace.json"):
        for number in (1, 2, 3):
            with marking.step(number):
                torch.mm(torch.ones(2, 3), torch.ones(3, 4))
    events = json.loads((tmp_path / "trace.json").read_text())["traceEvents"]
    assert [one["args"]["Input Dims"] for one in events if one.get("name") == "aten::mm"] == [[[2, 3], [3, 4]]] * 3

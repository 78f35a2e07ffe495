"""Fixtures of the tests of the Python API."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from keras_matrix.runner.api.measuring import measure
from keras_matrix.runner.api.stored_run import Run
from keras_matrix.runner.measure.seams import Seams
from tests.fakes.executor import FakeExecutor

MATRIX: dict[str, Any] = {
    "version": 1,
    "backends": ["tensorflow", "jax", "torch"],
    "cells": [{"workload": "mnist_mlp", "batch_size": [32, 64], "repeats": 5}],
}


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """An empty working folder."""
    monkeypatch.chdir(tmp_path)
    return tmp_path


def measured(matrix: Any = MATRIX, fake: FakeExecutor | None = None, **options: Any) -> Run:
    """Return a run of the matrix, measured by a fake executor."""
    return measure(matrix, {"progress": False, **options}, Seams(executor=fake or FakeExecutor()))  # type: ignore[typeddict-item]

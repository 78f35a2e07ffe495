"""How far a session is: stored for displays, never a reason to fail."""

from __future__ import annotations

from pathlib import Path

import pytest

from keras_matrix.records.instruments import progress
from keras_matrix.records.instruments.progress import PlannedCell, Progress, RunningRepeat
from keras_matrix.records.store import Run


def test_stored_progress_is_loaded_replaced_and_removed(tmp_path: Path) -> None:
    run = Run(tmp_path)
    assert progress.load(run) is None
    cell = PlannedCell("0" * 16, "jax", "base", "gru", 5, 1.5)
    for running in ([RunningRepeat("0" * 16, "base", 3)], []):
        stored = Progress("2026-01-01T00:00:00+00:00", [cell], running)
        progress.keep(run, stored)
        assert progress.load(run) == stored
    progress.remove(run)
    progress.remove(run)
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize("text", ["", "[]", '{"started": 1}', '{"started": "x", "cells": [{}]}'])
def test_damaged_progress_reads_as_none(tmp_path: Path, text: str) -> None:
    (tmp_path / progress.FILE).write_text(text)
    assert progress.load(Run(tmp_path)) is None


def test_folder_that_cannot_be_written_does_not_end_a_run(tmp_path: Path) -> None:
    gone = Run(tmp_path / "gone")
    progress.keep(gone, Progress("2026-01-01T00:00:00+00:00"))
    progress.remove(gone)
    assert progress.load(gone) is None

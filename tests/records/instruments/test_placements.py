"""Placements are stored with a run, and a damaged file is like none."""

from __future__ import annotations

from pathlib import Path

import pytest

from keras_matrix.records.instruments import progress
from keras_matrix.records.instruments.progress import Placement, Placements
from keras_matrix.records.store import Run


def test_stored_placements_are_loaded_and_replaced(tmp_path: Path) -> None:
    run = Run(tmp_path)
    assert progress.load_placements(run) == Placements()
    for machines in ([Placement("a", "0" * 16, "gru #0: jax", "2026-01-01T00:00:00+00:00")], [Placement("b")]):
        progress.keep_placements(run, Placements(machines))
        assert progress.load_placements(run) == Placements(machines)


@pytest.mark.parametrize("text", ["", "[]", '{"machines": [{"name": 1}]}'])
def test_damaged_placements_read_as_none(tmp_path: Path, text: str) -> None:
    (tmp_path / progress.PLACEMENTS_FILE).write_text(text)
    assert progress.load_placements(Run(tmp_path)) == Placements()


def test_folder_that_cannot_be_written_does_not_end_a_run(tmp_path: Path) -> None:
    gone = Run(tmp_path / "gone")
    progress.keep_placements(gone, Placements())
    assert progress.load_placements(gone) == Placements()

"""Profilers' files are told apart by their names."""

from __future__ import annotations

from pathlib import Path

import pytest

from keras_matrix.analysis.whatif.graph import GraphError
from keras_matrix.analysis.whatif.reconstruct.files import graph_of
from keras_matrix.records.traces.request import TraceError


def test_no_file_is_an_error() -> None:
    with pytest.raises(GraphError, match="no trace: give the profiler's file of at least one rank"):
        graph_of([])


def test_files_of_different_profilers_are_rejected() -> None:
    with pytest.raises(GraphError, match=r"a\.json and b\.xplane\.pb are of different profilers"):
        graph_of([Path("a.json"), Path("b.xplane.pb")])


def test_file_of_another_kind_is_rejected() -> None:
    with pytest.raises(TraceError, match=r"a\.txt: must end in"):
        graph_of([Path("a.txt")])


def test_missing_file_is_rejected_with_its_name(tmp_path: Path) -> None:
    with pytest.raises(TraceError, match=r"mine\.json: cannot be read"):
        graph_of([tmp_path / "mine.json"])

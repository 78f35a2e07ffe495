"""The file of collectives that were timed during computation."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from keras_matrix.records.codec import CodecError
from keras_matrix.records.fc import communication
from keras_matrix.records.fc.communication import NAME, TimedCollective


def test_sizes_grow_up_to_that_of_all_gradients_and_large_ones_are_called_less_often() -> None:
    assert communication.sizes_bytes(5_000_000) == [
        *((4096, 20), (16384, 20), (65536, 20), (262144, 8), (1048576, 8), (4194304, 3), (5_000_000, 3))
    ]
    assert communication.sizes_bytes(100) == [(100, 20)]


def test_stored_times_are_read_back(tmp_path: Path) -> None:
    found = [TimedCollective("all_reduce", 2, 4096, 0.003), TimedCollective("all_reduce", 2, 16384, 0.004)]
    communication.write(tmp_path, found)
    assert communication.read(tmp_path) == found
    (first, _) = json.loads((tmp_path / NAME).read_text())
    assert first == {"operation": "all_reduce", "ranks": 2, "bytes": 4096, "seconds": 0.003, "library": ""}


def test_without_a_file_there_are_no_times_and_a_damaged_one_is_refused(tmp_path: Path) -> None:
    assert communication.read(tmp_path) == []
    (tmp_path / NAME).write_text('[{"operation": "all_reduce"}]')
    with pytest.raises(CodecError, match=NAME):
        communication.read(tmp_path)

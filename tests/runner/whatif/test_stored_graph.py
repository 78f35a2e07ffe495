"""A trace graph survives its Parquet files; damaged or missing ones are refused with their name."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from keras_matrix.analysis.whatif.graph import GraphError, LinkCalibration
from keras_matrix.runner.whatif import source
from tests.runner.whatif.graphs import two_workers


def test_a_graph_is_equal_after_it_was_stored(tmp_path: Path) -> None:
    graph = two_workers()
    link = LinkCalibration(1e-3, 4e-8, 2, "probe", 2e8, (("all_reduce", 2, 1024, 0.001),))
    graph = replace(graph, header=replace(graph.header, link=link, settings={"workers": 2}, parallel_lanes={"gloo": 2}))
    paths = source.write(graph, tmp_path / "graph")
    assert [path.name for path in paths] == ["rank0.parquet", "rank1.parquet"]
    assert paths == source.files_in(tmp_path / "graph")
    assert graph == source.read(paths)


def test_files_are_in_the_order_of_ranks(tmp_path: Path) -> None:
    for rank in (10, 2, 0):
        (tmp_path / f"rank{rank}.parquet").touch()
    assert [tmp_path / f"rank{rank}.parquet" for rank in (0, 2, 10)] == source.files_in(tmp_path)


@pytest.mark.parametrize("damage", ["truncated", "foreign", "empty"])
def test_a_damaged_file_is_refused_with_its_name(tmp_path: Path, damage: str) -> None:
    paths = source.write(two_workers(), tmp_path)
    content = {"truncated": paths[0].read_bytes()[:-100], "foreign": b"PAR1 and other text", "empty": b""}[damage]
    paths[0].write_bytes(content)
    with pytest.raises(GraphError, match=r"rank0\.parquet: cannot be read as Parquet"):
        source.read(paths)

"""Our reader of JAX's and TensorFlow's trace files agrees with JAX's own, also on a file of the installed version."""

from __future__ import annotations

import gzip
import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from keras_matrix.records.traces.xspace.xplane import Plane, PlaneEvent, planes
from tests.records.traces.xspace import read_by_jax

pytestmark = pytest.mark.process

RECORDED = Path(__file__).parents[3] / "analysis" / "whatif" / "reconstruct" / "xplane" / "data"


@pytest.fixture(scope="module")
def read(tmp_path_factory: pytest.TempPathFactory) -> dict[str, list[Any]]:
    """Return per file what JAX's reader sees in it; the first file is recorded by the installed JAX."""
    files = sorted(map(str, RECORDED.rglob("*.xplane.pb.gz")))
    command = [sys.executable, read_by_jax.__file__, "record", str(tmp_path_factory.mktemp("trace")), *files]
    done = subprocess.run(command, capture_output=True, text=True, timeout=300, check=False)
    assert done.returncode == 0, done.stderr[-2000:]
    found = json.loads(done.stdout.splitlines()[-1])
    assert len(found) == len(files) + 1 >= 9
    return found


def bytes_of(file: str) -> bytes:
    data = Path(file).read_bytes()
    return gzip.decompress(data) if file.endswith(".gz") else data


def own_planes(file: str) -> list[Plane]:
    """Return our planes of a file, without that of the programs, which JAX's reader does not show."""
    return list(planes(bytes_of(file)))


def test_planes_and_lines_are_those_that_jax_reads(read: dict[str, list[Any]]) -> None:
    for file, theirs in read.items():
        ours = own_planes(file)
        assert [plane.name for plane in ours] == [name for name, _ in theirs], file
        for plane, (_, lines) in zip(ours, theirs, strict=True):
            assert [(line.name, line.begins.size) for line in plane.lines] == [(name, len(of)) for name, of in lines]


def test_events_and_their_statistics_are_those_that_jax_reads(read: dict[str, list[Any]]) -> None:
    compared = statistics = 0
    for file, theirs in read.items():
        for plane, (_, lines) in zip(own_planes(file), theirs, strict=True):
            for line, (_, expected) in zip(plane.lines, lines, strict=True):
                for event, (name, start_ns, end_ns, stats) in zip(line.events(), expected, strict=True):
                    assert event.name == name
                    assert abs(event.start_ns - start_ns) <= 1
                    assert abs(event.end_ns - end_ns) <= 1
                    assert {key: _plain(event, key) for key in stats} == stats
                    compared, statistics = compared + 1, statistics + len(stats)
    assert compared > 10_000
    assert statistics > 10_000


def _plain(event: PlaneEvent, key: str) -> Any:
    return event.stats.get(key)

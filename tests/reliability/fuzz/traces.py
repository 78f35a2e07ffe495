"""What the targets of traces share: every reader of a profiler's file, as the commands call them."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from keras_matrix.analysis.traces import read_table
from keras_matrix.analysis.whatif.graph import GraphError
from keras_matrix.records.codec import dumps
from keras_matrix.records.traces import conversion
from keras_matrix.records.traces.request import TraceError
from keras_matrix.runner.whatif.source import graph_of_files
from tests.reliability.fuzz.target import Check

MODULES = ("records/traces/conversion.py", "records/traces/neutral.py", "analysis/traces.py")


@contextmanager
def converting(path: Path, graphs: bool = True) -> Iterator[Check]:
    """Yield a check that converts a file to a neutral trace, makes its table, and builds its graph.

    An input is accepted if one of the readers accepts it: a graph needs more than a neutral trace does.
    """
    target = path.with_name("trace.json.gz")

    def check(data: bytes) -> bool:
        path.write_bytes(data)
        accepted = False
        try:
            conversion.make_of(path, target)
            dumps(read_table(target))
            accepted = True
        except TraceError as error:
            assert str(path) in str(error)
        try:
            accepted |= graphs and bool(graph_of_files([path], threads=2).nodes)
        except (TraceError, GraphError) as error:
            assert str(path) in str(error)
        return accepted

    yield check

"""Trace graphs from profilers' own files, one for each rank."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Unpack

from keras_matrix.analysis.whatif.graph import Graph, GraphError
from keras_matrix.analysis.whatif.reconstruct.coverage import HeaderFacts
from keras_matrix.analysis.whatif.reconstruct.kineto import graph as kineto
from keras_matrix.analysis.whatif.reconstruct.xplane import graph as xplane
from keras_matrix.records.traces.conversion import backend_of


def graph_of(paths: Sequence[Path], **facts: Unpack[HeaderFacts]) -> Graph:
    """Return the graph of these files; a rank without a file is missing, and the graph says so.

    A name that ends in .json or .json.gz is a Kineto file, one in .xplane.pb is JAX's or TensorFlow's. Raises
    `TraceError` for a file that cannot be read, and `GraphError` for one that has no graph.
    """
    if not paths:
        raise GraphError("no trace: give the profiler's file of at least one rank")
    formats = {backend_of(path): path for path in paths}
    if len(formats) > 1:
        first, second = list(formats.values())[:2]
        raise GraphError(f"{first} and {second} are of different profilers; give the files of one run")
    return xplane.graph_of(paths, facts) if "xla" in formats else kineto.graph_of(paths, facts)

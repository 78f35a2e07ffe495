"""Synthetic events of Kineto files, in microseconds, and the pieces and graphs of them."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from keras_matrix.analysis.whatif.graph import Graph, Node
from keras_matrix.analysis.whatif.reconstruct.kineto.rank import trace_of
from keras_matrix.analysis.whatif.reconstruct.kineto.reading import read
from keras_matrix.analysis.whatif.reconstruct.pieces import Piece, RankTrace
from keras_matrix.runner.whatif.source import graph_of_files
from tests.records.traces.synthetic import chrome, event, mark

Event = dict[str, Any]
AUTOGRAD, STREAM, NCCL = 2, 7, 40
TWO = {"distributedInfo": {"rank": 0, "world_size": 2}}


def operator(name: str, ts: float, dur: float, **args: Any) -> Event:
    return event(name, ts, dur, **args)


def backward(name: str, ts: float, dur: float, **args: Any) -> Event:
    return event(f"autograd::engine::evaluate_function: {name}", ts, dur, **args)


def accumulate(ts: float, dur: float, shape: Sequence[int], **args: Any) -> list[Event]:
    """The addition of a gradient of a shape."""
    inner = event("torch::autograd::AccumulateGrad", ts + 1, 1, **_floats(shape), **args)
    return [backward("torch::autograd::AccumulateGrad", ts, dur, **args), inner]


def call(name: str, ts: float, dur: float, correlation: int = -1, **args: Any) -> Event:
    """A call of CUDA's runtime."""
    return event(name, ts, dur, "cuda_runtime", correlation=correlation, **args)


def kernel(name: str, ts: float, dur: float, correlation: int, **args: Any) -> Event:
    """A kernel on the stream of computations, unless `tid` names another."""
    return event(
        name, ts, dur, args.pop("cat", "kernel"), **{"pid": 0, "tid": STREAM, "correlation": correlation} | args
    )


def issued(name: str, correlation: int, times: tuple[float, float, float], **args: Any) -> list[Event]:
    """A call of 2 us at the first time, and its kernel, from the second time on for the third."""
    thread = {"tid": args.pop("thread", 1)}
    return [
        call("cudaLaunchKernel", times[0], 2, correlation, **thread),
        kernel(name, times[1], times[2], correlation, **args),
    ]


def gloo(name: str, ts: float, dur: float, shape: Sequence[int], tid: int = 9) -> Event:
    return event(f"gloo:{name}", ts, dur, "user_annotation", tid=tid, **_floats(shape))


def step(dur: float, ts: float = 0.0, number: int = 1) -> Event:
    return mark(f"step:{number}", ts, dur)


def repeated(events: Sequence[Event], starts: Sequence[float], dur: float) -> list[Event]:
    """The same events in several steps that begin at these times."""
    found: list[Event] = []
    for number, start in enumerate(starts, 1):
        found.append(step(dur, start, number))
        for one in events:
            args = dict(one["args"])
            if "correlation" in args:
                args["correlation"] += 10_000 * number
            found.append(one | {"ts": one["ts"] + start, "args": args})
    return found


def _floats(shape: Sequence[int]) -> dict[str, Any]:
    return {"Input Dims": [list(shape)], "Input type": ["float"]}


def pieces_of(tmp_path: Path, events: Sequence[Event], **members: Any) -> RankTrace:
    return trace_of(read(chrome(tmp_path / "trace.json", events, **members)), 0)


def graph_in(tmp_path: Path, *files: Sequence[Event], **members: Any) -> Graph:
    """The graph of the files of ranks 0, 1, ..."""
    paths = []
    for rank, events in enumerate(files):
        info = {"distributedInfo": {"rank": rank, "world_size": len(files)}}
        paths.append(chrome(tmp_path / f"rank{rank}.json", events, **info | members))
    return graph_of_files(paths)


def times(lane: Sequence[Piece], begin: float = 0.0) -> list[tuple[str, float, float]]:
    """The name, begin and end of pieces in microseconds."""
    return [(piece.name, piece.start_ns / 1000 - begin, piece.end_ns / 1000 - begin) for piece in lane]


def named(found: Graph, name: str, rank: int = 0) -> list[Node]:
    return [node for node in found.nodes if node.name == name and node.rank == rank]


def waited(found: Graph, node: Node) -> list[str]:
    """The names of the nodes that a node depends on."""
    return [found.nodes[number].name for number in node.depends]


def own(mapping: Mapping[str, Any]) -> dict[str, Any]:
    return dict(mapping)

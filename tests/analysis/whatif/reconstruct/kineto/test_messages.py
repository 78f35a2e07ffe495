"""PyTorch's files that no graph can be made of, each with its complete message."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

from keras_matrix.analysis.whatif.graph import GraphError
from keras_matrix.records.traces.request import TraceError
from keras_matrix.runner.whatif.source import graph_of_files
from tests.analysis.whatif.reconstruct.kineto.events import (
    Event,
    call,
    gloo,
    graph_in,
    issued,
    kernel,
    operator,
    repeated,
    step,
)
from tests.golden import Golden
from tests.messages import check_messages, refusal
from tests.records.traces.synthetic import chrome, event, mark

MM = operator("aten::mm", 1, 5)
SUM = [operator("aten::mm", 0, 90), operator("c10d::allreduce_", 90, 10), gloo("all_reduce", 100, 200, [64])]
Case = Callable[[Path], object]


def graph(*events: Any, **members: Any) -> Case:
    """Return a case of one file with these events."""
    return lambda folder: graph_in(folder, events, **members)


def ranks(*files: Sequence[Event]) -> Case:
    return lambda folder: graph_in(folder, *files)


def file(name: str, text: str) -> Case:
    def made(folder: Path) -> object:
        (folder / name).write_text(text)
        return graph_of_files([folder / name])

    return made


def of_one_rank(folder: Path) -> object:
    """Return the graph of two files that say that they are of the same rank."""
    one = {"distributedInfo": {"rank": 0}}
    return graph_of_files([chrome(folder / f"{name}.json", repeated(SUM, [0], 350), **one) for name in "ab"])


def without(key: str) -> Event:
    return {name: value for name, value in MM.items() if name != key}


def cycle() -> list[Event]:
    """Two streams whose short kernels begin within the tolerance of clocks of each other, and wait for each other."""
    events: list[Event] = []
    for stream, other, correlation in ((7, 20, 3), (20, 7, 4)):
        events += [
            operator("aten::mm", correlation * 10, 9),
            call("cudaStreamWaitEvent", correlation * 10 + 1, 1, correlation + 50),
            *issued(f"k{stream}", correlation, (correlation * 10 + 3, 60, 2), tid=stream),
        ]
        waited_for = {"wait_on_stream": other, "wait_on_cuda_event_record_corr_id": 90}
        waits = kernel("Stream Wait Event", 50, 1, correlation + 50, cat="cuda_sync", tid=stream)
        waits["args"] = {**waited_for, "cuda_sync_kind": "Stream Wait Event", "correlation": correlation + 50}
        events.append(waits)
    return [*events, call("cudaEventRecord", 80, 1, 90)]


CASES: Mapping[str, Case] = {
    "no file": lambda folder: graph_of_files([]),
    "files of two profilers": lambda folder: graph_of_files([folder / "a.json", folder / "b.xplane.pb"]),
    "a file of another kind": lambda folder: graph_of_files([folder / "a.txt"]),
    "a missing file": lambda folder: graph_of_files([folder / "mine.json"]),
    "JSON of another program": file("mine.json", '{"a": 1}'),
    "a list without events": file("mine.json", '{"traceEvents": []}'),
    "events of a browser": file("mine.json", '[{"ph": "X", "cat": "browser", "name": "x"}]'),
    "work of an unknown accelerator alone": graph(event("dma_request", 20, 5, "mtia_ccp_events", pid=9)),
    "a file that breaks off after an event": file("mine.json", json.dumps({"traceEvents": [MM, MM]})[:-90]),
    "an event without a duration": graph(step(9), without("dur")),
    "an event without a time": graph(step(9), without("ts")),
    "an event that ends before it begins": graph(step(9), operator("aten::mm", 9, -5)),
    "an event at no time": graph(step(9), operator("aten::mm", float("nan"), 5)),
    "an event at a time that is text": graph(step(9), MM | {"ts": "soon"}),
    "an event with a list of arguments": graph(step(9), MM | {"args": [1]}),
    "a sequence number that is text": graph(step(9), operator("aten::mm", 1, 5, **{"Sequence number": "7"})),
    "an identifier that is no integer": graph(step(9), operator("aten::mm", 1, 5, **{"External id": 1.5})),
    "a number of ranks that is text": graph(step(9), MM, distributedInfo={"rank": 0, "world_size": "2"}),
    "a rank that is no integer": graph(step(9), MM, distributedInfo={"rank": 0.5, "world_size": 2}),
    "a rank that is true": graph(step(9), MM, distributedInfo={"rank": True}),
    "more ranks than a trace may have": graph(step(9), MM, distributedInfo={"rank": 0, "world_size": 2**60}),
    "a mark of an unknown phase": graph(step(100), mark("phase:later", 1, 9)),
    "steps that overlap": graph(step(100_000), step(100_000, 50_000, 2), MM),
    "a device's work alone": graph(kernel("sgemm", 1, 5, 3)),
    "a kernel long before its call": graph(
        step(9000), operator("aten::mm", 3000, 20), *issued("sgemm", 3, (3010, 100, 50))
    ),
    "a cycle of waits": graph(step(900), *cycle()),
    "two files of one rank": of_one_rank,
    "a rank with fewer steps": ranks(repeated(SUM, [0, 900], 350), repeated(SUM, [0], 350)),
    "a rank with fewer collectives": ranks(repeated(SUM, [0, 900], 350), repeated(SUM[:1], [0, 900], 350)),
}


def test_every_file_without_a_graph_has_its_message(golden: Golden, tmp_path: Path) -> None:
    """Mutations: `_graph_of` lists every missing rank of 2^60, which takes years; `_trace_of` lets the error of an
    unknown phase through.
    """

    def messages_of(case: Case) -> list[str]:
        lines = refusal((GraphError, TraceError), lambda: case(tmp_path))
        return [line.replace(f"{tmp_path}/", "") for line in lines]

    check_messages(golden, "graphs.txt", {title: messages_of(case) for title, case in CASES.items()})

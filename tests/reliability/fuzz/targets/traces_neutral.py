"""Neutral traces: JSON with one event in a line, compressed or not."""

from __future__ import annotations

import gzip
import json
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from hypothesis import strategies as st

from keras_matrix.records.traces import neutral
from keras_matrix.records.traces.neutral import Flow, FlowEnd, Head, Track, TrackKind
from tests.records.traces.synthetic import span
from tests.reliability.fuzz import documents, traces
from tests.reliability.fuzz.target import Check, Target

SPANS = [
    span("step 1", 0, 100, TrackKind.STEPS, step=1),
    span("dense", 1, 40, TrackKind.LAYERS, layer="dense", phase="forward", step=1),
    span("dot", 2, 30, phase="forward", layer="dense", step=1, stream=7, size_bytes=10, correlation=3),
    span("all-reduce", 40, 20, TrackKind.COMMUNICATION, worker=1, phase="communication", step=1),
    span("copy", 60, 5, TrackKind.COPY, lane=2),
]
FLOW = Flow("fwdbwd", FlowEnd(Track(0, TrackKind.COMPUTE), 2000), FlowEnd(Track(1, TrackKind.COMMUNICATION), 50_000))


def lines() -> list[str]:
    """Return the lines of a valid trace."""
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "trace.json"
        neutral.write(path, Head("jax", workers=2, device="cpu", steps=1, epochs=1, warnings=["w"]), SPANS, [FLOW])
        return gzip.decompress(path.read_bytes()).decode().splitlines()


FIRST, SECOND, *EVENTS, LAST = lines()
HEAD: dict[str, Any] = json.loads(FIRST.removesuffix(",") + "}")
PARSED = [json.loads(line.removesuffix(",")) for line in EVENTS]


def line(value: Any) -> bytes:
    """Return a value as the line of an event."""
    return documents.written(value).replace(b'": ', b'":').replace(b', "', b',"')


@st.composite
def inputs(draw: st.DrawFn) -> bytes:
    """Return a trace: usual events, of which some are changed, under a head that rarely is."""
    head = draw(documents.changed([HEAD])) if draw(st.integers(0, 5)) == 0 else HEAD
    events = draw(st.lists(st.sampled_from(PARSED), max_size=6))
    if draw(st.booleans()) and events:
        events[0] = draw(documents.changed(events))
    content = line(head).removesuffix(b"}") + b',\n"traceEvents":[\n' + b",\n".join(map(line, events)) + b"\n]}\n"
    content = draw(documents.damaged_bytes(content))
    if draw(st.integers(0, 3)):
        return content
    return draw(documents.damaged_bytes(gzip.compress(content, 1, mtime=0), 2))


@contextmanager
def checking(folder: Path) -> Iterator[Check]:
    with traces.converting(folder / "given.json", graphs=False) as check:
        yield check


TARGET = Target(inputs(), checking, share=55, modules=("records/traces/neutral.py", *traces.MODULES))

"""Kineto's JSON files, which PyTorch's profiler writes."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from hypothesis import strategies as st

from tests.analysis.whatif.reconstruct.kineto.events import TWO, accumulate, backward, call, kernel
from tests.records.traces.synthetic import event, flow, mark, step_of_torch
from tests.reliability.fuzz import documents, traces
from tests.reliability.fuzz.target import Check, Target

EVENTS: list[dict[str, Any]] = [
    *step_of_torch(),
    *step_of_torch(shift=200, number=2),
    *accumulate(70, 5, [4, 4]),
    backward("AddmmBackward0", 40, 10),
    call("cudaLaunchKernel", 15, 1, 3),
    kernel("sgemm", 17, 4, 3),
    mark("clock:1000000", 0, 1),
    event("gloo:all_reduce", 60, 8, **{"In msg nelems": 16, "Group size": 2, "Collective name": "allreduce"}),
    flow("s", 1, 15),
    flow("f", 1, 42, bp="e"),
    {"ph": "M", "name": "thread_name", "pid": 1, "tid": 1, "args": {"name": "python"}},
]
MEMBERS: list[dict[str, Any]] = [
    {},
    {},
    TWO,
    {"baseTimeNanoseconds": 10**18},
    {"deviceProperties": [{"id": 0, "name": "H100"}]},
]


@st.composite
def inputs(draw: st.DrawFn) -> bytes:
    """Return a file with two steps and some further events, of which up to three values are changed."""
    events = [*EVENTS[:24], *draw(st.lists(st.sampled_from(EVENTS), max_size=6))]
    document = {"schemaVersion": 1, **draw(st.sampled_from(MEMBERS)), "traceEvents": events, "baseTimeNanoseconds": 0}
    if draw(st.integers(0, 2)):
        document = draw(documents.changed([document]))
    data = documents.written(document, indent=draw(st.sampled_from([None, 2])))
    return draw(documents.damaged_bytes(data))


@contextmanager
def checking(folder: Path) -> Iterator[Check]:
    with traces.converting(folder / "epoch2.worker0.json") as check:
        yield check


TARGET = Target(
    inputs(),
    checking,
    share=25,
    modules=(
        "records/traces/torch.py",
        "records/traces/kineto.py",
        "analysis/whatif/reconstruct/kineto/*.py",
        *traces.MODULES,
    ),
)

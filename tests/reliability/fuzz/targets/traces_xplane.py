"""The protocol buffers that the profilers of JAX and TensorFlow write."""

from __future__ import annotations

import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from hypothesis import strategies as st

from tests.analysis.whatif.reconstruct.xplane.profiles import PROGRAM, Op, clock, host, node, ran, step, training, write
from tests.records.traces.synthetic import Made
from tests.reliability.fuzz import documents, traces
from tests.reliability.fuzz.target import Check, Target

OPS = ("dot.1", "dot.2", "dot.3", "all-reduce", "gte.1", "sub.1", "fusion.9", "copy-start")
NODES = ("a/MatMul:MatMul", "b/Conv2D:Conv2D", "IteratorGetNext:IteratorGetNext", "kbm.layer.dense/x:AddV2", "odd")
ODD_BYTES = st.sampled_from([b"", b"\0", b"\xff" * 10, b"\x80" * 9 + b"\x01", b"\x0a\xff\xff\xff\xff\x7f"])


@st.composite
def ops(draw: st.DrawFn, number: int, origin: float) -> list[Made]:
    """Return an operation of a step that begins at `origin`."""
    begin = origin + draw(st.integers(0, 35))
    name, late = draw(st.sampled_from(OPS)), draw(st.sampled_from([None, None, begin + 30]))
    run = draw(st.sampled_from([1, 1, 2, 0, 2**63]))
    return ran(Op(name, begin, begin + draw(st.integers(0, 20)), run, draw(st.integers(0, 1)), late), number)


@st.composite
def inputs(draw: st.DrawFn) -> bytes:
    """Return a profile of up to three steps of JAX or TensorFlow; a third have changed bytes."""
    marks = [step(number, 40 * number, 40 * number + 40) for number in range(draw(st.integers(1, 3)))]
    if draw(st.integers(0, 3)) == 0:
        marks.append(draw(st.sampled_from([clock(5, 10**18), clock(0, 0), host("main", 0, 50), step(2**62, 1, 9)])))
    events: list[Made] = []
    for number in range(len(marks)):
        events += draw(ops(number + 1, 40 * number))
        events += draw(ops(number + 9, 40 * number)) if draw(st.booleans()) else []
        events += [node(draw(st.sampled_from(NODES)), 40 * number + 1, 40 * number + 9)] if draw(st.booleans()) else []
    programs = {PROGRAM: training()} if draw(st.booleans()) else {}
    with tempfile.TemporaryDirectory() as folder:
        data = write(Path(folder) / "made", marks, events, programs).read_bytes()
    if draw(st.integers(0, 2)):
        return data
    if draw(st.booleans()):  # the lengths of messages remain right
        at = draw(st.integers(0, len(data) - 1))
        return data[:at] + bytes([data[at] ^ 1 << draw(st.integers(0, 6))]) + data[at + 1 :]
    return draw(documents.damaged_bytes(data, 10)) + draw(ODD_BYTES)


@contextmanager
def checking(folder: Path) -> Iterator[Check]:
    with traces.converting(folder / "epoch2.worker0.xplane.pb") as check:
        yield check


TARGET = Target(
    inputs(),
    checking,
    share=15,
    modules=("records/traces/xspace/*.py", "analysis/whatif/reconstruct/xplane/*.py", *traces.MODULES),
)

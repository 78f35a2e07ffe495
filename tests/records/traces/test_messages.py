"""What files of profilers and neutral traces are refused for, each with its complete message."""

from __future__ import annotations

import gzip
import json
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from keras_matrix.records.traces import conversion, neutral
from keras_matrix.records.traces.neutral import Head
from keras_matrix.records.traces.request import TRACE_NAME, TraceError
from tests.golden import Golden
from tests.messages import check_messages, refusal
from tests.records.traces.synthetic import Made, event, mark, message, plane, step_of_torch

JSON, XPLANE = "mine.json", "mine.xplane.pb"


def torch(*events: Any) -> tuple[str, bytes]:
    """Return a file of PyTorch with a step and these events."""
    return JSON, json.dumps({"traceEvents": [*step_of_torch(), *events]}).encode()


def profile(name: str, made: Made) -> tuple[str, bytes]:
    """Return a file of JAX or TensorFlow with one event on a plane."""
    return XPLANE, message(plane(name, {"Stream": [made]}))


def ran(name: str, device: int) -> Made:
    stats = {"hlo_op": name, "hlo_module": "jit_step", "program_id": 9, "run_id": 1, "device_ordinal": device}
    return name, 0, 5, stats


MUL: Made = ("MatMul:MatMul", 0, 5, {})
PROFILES: Mapping[str, tuple[str, bytes]] = {
    "another ending": ("mine.txt", b""),
    "JSON of another program": (JSON, b'{"a": 1}'),
    "an empty list": (JSON, b"[]"),
    "events of a browser": (
        JSON,
        b'[{"ph": "X", "cat": "browser", "name": "x", "ts": 0, "dur": 1, "pid": 1, "tid": 1}]',
    ),
    "work of an unknown accelerator alone": (
        JSON,
        json.dumps([event("dma_request", 20, 5, "mtia_ccp_events", pid=9)]).encode(),
    ),
    "no JSON": (JSON, b"nonsense"),
    "an empty file": (JSON, b""),
    "an object that breaks off": (JSON, b"{"),
    "a list that breaks off": (JSON, b'{"traceEvents": [{}'),
    "two events without a comma": (JSON, b'{"traceEvents": [{} {}]}'),
    "an event that is a number": torch(17),
    "an event without a duration": torch({"ph": "X", "cat": "cpu_op", "name": "aten::mm", "pid": 1, "tid": 1, "ts": 1}),
    "an event at a time that is text": torch(event("aten::mm", 1, 2) | {"ts": "soon"}),
    "an event at no time": torch(event("aten::mm", 1, 1e308) | {"ts": float("inf")}),
    "a flow without a number": torch({"ph": "s", "cat": "fwdbwd"}),
    "a mark of the clock without a number": torch(mark("clock:late", 1, 2)),
    "a mark of a step without a number": torch(mark("step:one", 0, 9)),
    "a mark of an unknown phase": torch(mark("phase:sideways", 0, 9)),
    "a step of the profiler without a number": torch(event("ProfilerStep#last", 0, 9, "user_annotation")),
    "a sequence number that is a list": torch(event("aten::mm", 1, 2, **{"Sequence number": []})),
    "an event in centuries": torch(event("aten::mm", 1e16, 2)),
    "an event of centuries": torch(event("aten::mm", 200, 1e16)),
    "an event centuries ago": torch(event("aten::mm", -1e16, 2)),
    "an empty profile": (XPLANE, b""),
    "a profile that breaks off": (XPLANE, b"\x0a\x7fxx"),
    "bytes that are no message": (XPLANE, b"\xff\xff"),
    "JSON as a profile": (XPLANE, b"{}"),
    "a number of eleven bytes": (XPLANE, b"\x08" + b"\x80" * 10 + b"\x00"),
    "a line that begins at no time of a machine": (
        XPLANE,
        message((1, message((2, "/host:CPU"), (3, message((3, (1 << 61) + 1), (4, message((1, 1)))))))),
    ),
    "a line with an event that breaks off": (XPLANE, message((1, message((3, b"\x22\x04" + message((1, 1))))))),
    "a name of an instruction without one": (
        XPLANE,
        message(plane("/host:CPU", {"pool": [ran("dot.1", 0), ("dot.1", 6, 1, {})]})),
    ),
    "a device beyond number": profile("/device:GPU:99999999999", MUL),
    "one device more than a trace may have": profile(f"/device:GPU:{neutral.MOST_WORKERS}", MUL),
    "an instruction of a device beyond number": profile("/host:CPU", ran("dot.1", 1 << 40)),
    "an operation of a worker beyond number": profile("/host:CPU", ("worker_99999999999/MatMul:MatMul", 0, 5, {})),
    "a device of more than 64 bits": profile(f"/device:GPU:{1 << 64}", MUL),
    "an operation of a worker of more than 64 bits": profile(
        "/host:CPU", (f"worker_{1 << 64}/MatMul:MatMul", 0, 5, {})
    ),
    "a mark of a step without a number in a profile": profile("/host:CPU", ("kbm:step:one", 0, 5, {})),
    "a mark of an unknown phase in a profile": profile("/host:CPU", ("kbm:phase:sideways", 0, 5, {})),
    "a scope of an unknown phase in a profile": profile("/host:CPU", ("kbm.phase.sideways/MatMul:MatMul", 0, 5, {})),
}


def messages(folder: Path, kind: type[Exception], call: Callable[[], object]) -> list[str]:
    """Return the message of the error that a call raises, with the names of files alone."""
    return [line.replace(f"{folder}/", "") for line in refusal(kind, call)]


def test_every_wrong_file_of_a_profiler_has_its_message(golden: Golden, tmp_path: Path) -> None:
    def messages_of(name: str, content: bytes) -> list[str]:
        path = tmp_path / name
        path.write_bytes(content)
        return messages(tmp_path, TraceError, lambda: conversion.make_of(path, tmp_path / TRACE_NAME))

    check_messages(golden, "profiles.txt", {title: messages_of(*case) for title, case in PROFILES.items()})
    assert not (tmp_path / TRACE_NAME).exists()


def head(**fields: object) -> bytes:
    """Return an uncompressed neutral trace of no event with a head of these fields."""
    values = {"backend": "jax", "device": "cpu", "steps": 1, "version": neutral.VERSION, "workers": 1, **fields}
    return f'{neutral.BEGINNING}{json.dumps(values, separators=(",", ":"))},\n"traceEvents":[]}}'.encode()


HEADS: Mapping[str, bytes] = {
    "an empty file": b"",
    "JSON of another program": b"{}",
    "a head of another version": head(version=99),
    "a head of more workers than there can be": head(workers=999_999_999),
    "a head of fewer workers than none": head(workers=-1),
    "a head of no epoch": head(epochs=0),
}
SPAN = {"ph": "X", "pid": 0, "tid": 0, "ts": 0, "dur": 0, "name": "a", "args": {}}
LINES: Mapping[str, Mapping[str, object]] = {
    "an event of nothing else": {"ph": "X"},
    "a span on no track": SPAN | {"tid": 99_000},
    "a span of a worker without a number": SPAN | {"pid": "one"},
    "a span of an unknown phase": SPAN | {"args": {"phase": "sideways"}},
    "a span at a time that is text": SPAN | {"ts": "soon"},
    "a span at no time of a machine": SPAN | {"ts": 1e300},
    "a span that ends before it begins": SPAN | {"dur": -1},
    "a span longer than any": SPAN | {"dur": 1e300},
    "a span of a step without a number": SPAN | {"args": {"step": "first"}},
    "a span of a list of layers": SPAN | {"args": {"layer": ["dense"]}},
    "a span of a number as its operation": SPAN | {"args": {"op": 7}},
    "a span without a name": SPAN | {"name": None, "args": {"op": "a"}},
    "a flow that begins nowhere": {"ph": "f", "pid": 0, "tid": 0, "ts": 0, "id": 1},
}


def test_every_wrong_neutral_trace_has_its_message(golden: Golden, tmp_path: Path) -> None:
    path = tmp_path / TRACE_NAME

    def of_head(content: bytes) -> list[str]:
        path.write_bytes(gzip.compress(content))
        return messages(tmp_path, TraceError, lambda: neutral.head_of(path))

    def of_line(line: Mapping[str, object]) -> list[str]:
        neutral.write(path, Head("torch", 2, "cpu", 1), [])
        path.write_bytes(
            gzip.compress(
                gzip.decompress(path.read_bytes()) + json.dumps(line, separators=(",", ":")).encode() + b",\n"
            )
        )
        return messages(tmp_path, TraceError, lambda: [*neutral.spans(path), *neutral.flows(path)])

    heads = {title: of_head(content) for title, content in HEADS.items()}
    check_messages(golden, "neutral.txt", heads | {title: of_line(line) for title, line in LINES.items()})

"""Synthetic files of profilers, small enough to know every span."""

from __future__ import annotations

import gzip
import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from keras_matrix.records.traces.neutral import Phase, Span, Track, TrackKind
from keras_matrix.records.traces.table import TraceSummary

US = 1000
# Of four steps of 5 ms on one worker, of which 5 ms in all were computed; by what and with which gap is the test's own.
TABLE = TraceSummary(
    backend="jax",
    device="cpu",
    workers=1,
    steps=4,
    window_s=0.02,
    busy_share=0.25,
    computed_s=0.005,
    gap_count=1,
    gap_time_s=0.003,
)


def event(name: str, ts: float, dur: float, cat: str = "cpu_op", **args: Any) -> dict[str, Any]:
    """An event of PyTorch's file; times in microseconds; `args` its arguments, `pid` and `tid` its thread."""
    pid, tid = args.pop("pid", 1), args.pop("tid", 1)
    return {"ph": "X", "cat": cat, "name": name, "pid": pid, "tid": tid, "ts": ts, "dur": dur, "args": args}


def mark(name: str, ts: float, dur: float) -> dict[str, Any]:
    return event(f"kbm:{name}", ts, dur, "user_annotation")


def flow(phase: str, number: int, ts: float, **place: Any) -> dict[str, Any]:
    return {"ph": phase, "id": number, "cat": "fwdbwd", "name": "fwdbwd", "pid": 1, "tid": 1, "ts": ts} | place


def chrome(path: Path, events: Sequence[Mapping[str, Any]], **members: Any) -> Path:
    """Write a file as PyTorch does: members round the list of events, a value over several lines."""
    before = {"schemaVersion": 1, "deviceProperties": []}
    text = json.dumps({**before, "traceEvents": list(events), "baseTimeNanoseconds": 0, **members}, indent=2)
    path.write_text(text, encoding="utf-8")
    return path


def step_of_torch(shift: float = 0.0, number: int = 1) -> list[dict[str, Any]]:
    """A step: input, a layer within a layer, its backward pass in another order, an update; one gap of 10 us."""
    back = "autograd::engine::evaluate_function: MmBackward0"
    events = [
        mark(f"step:{number}", 0, 100),
        mark("phase:input", 1, 4),
        mark("phase:forward", 10, 20),
        mark("layer:block", 10, 20),
        mark("layer:dense", 12, 16),
        event("aten::linear", 13, 10, **{"Sequence number": 7}),
        event("aten::mm", 15, 6, **{"Sequence number": 7}),
        event(back, 40, 30, **{"Sequence number": 7, "Fwd thread id": 1}),
        event("MmBackward0", 42, 26, **{"Sequence number": 7, "Fwd thread id": 1}),
        event("aten::mm", 45, 20),
        mark("phase:update", 80, 15),
        event("aten::add_", 82, 10),
    ]
    return [one | {"ts": one["ts"] + shift} for one in events]


def span(name: str, start_us: float, duration_us: float, kind: TrackKind = TrackKind.COMPUTE, **fields: Any) -> Span:
    """A span; `worker`, `lane`, `op`, `phase`, `layer` and `step` where they matter."""
    track = Track(fields.pop("worker", 0), kind, fields.pop("lane", 0))
    phase = fields.pop("phase", None)
    start_ns, duration_ns = round(start_us * US), round(duration_us * US)
    return Span(track, name, fields.pop("op", name), start_ns, duration_ns, Phase(phase) if phase else None, **fields)


def damaged(content: bytes) -> bytes:
    """Packed content of which the head is whole and the rest is not what was written."""
    packed = gzip.compress(content)
    return packed[:10] + b"\xff" * len(packed[10:])


# Protocol buffers, as JAX's and TensorFlow's files are made of.


def varint(value: int) -> bytes:
    out = bytearray()
    while value > 127:
        out.append(value & 127 | 128)
        value >>= 7
    return bytes([*out, value])


def message(*fields: tuple[int, int | str | bytes]) -> bytes:
    """A message of these fields, in their order: numbers, text or messages."""
    out = b""
    for number, value in fields:
        if isinstance(value, int):
            out += varint(number << 3) + varint(value)
        else:
            data = value.encode() if isinstance(value, str) else value
            out += varint(number << 3 | 2) + varint(len(data)) + data
    return out


def named(field: int, names: Sequence[str], *more: tuple[int, bytes]) -> list[tuple[int, bytes]]:
    """Entries of a map from numbers, from 1, to messages that hold a name."""
    return [
        (field, message((1, i), (2, message((1, i), (2, name), *(more if i == 1 else ())))))
        for i, name in enumerate(names, 1)
    ]


# XLA's programs.


def hlo_array(kind: int, *dimensions: int) -> bytes:
    """The shape of an array of a type of `PrimitiveType`."""
    return message((2, kind), *((3, one) for one in dimensions))


def hlo_instruction(number: int, name: str, opcode: str, shape: bytes | Sequence[bytes], **more: Any) -> bytes:
    """An instruction; `shape` is that of an array or those of a tuple.

    `more`: its `operands` and `called` computations by number, `origin`, contracted dimensions of a `dot`, `groups`.
    """
    whole = shape if isinstance(shape, bytes) else message((2, 13), *((4, one) for one in shape))
    packed = [(36, more.get("operands", ())), (38, more.get("called", ()))]
    return message(
        *((1, name), (2, opcode), (3, whole), (7, message((2, more.get("origin", "")))), (35, number)),
        *((key, b"".join(map(varint, values))) for key, values in packed if values),
        *((30, message((1, one))) for one in more.get("dot", ())),
        *((49, message((1, b"".join(map(varint, group))))) for group in more.get("groups", ())),
    )


def hlo(name: str, computations: Mapping[str, tuple[int, Sequence[bytes]]], entry: int) -> bytes:
    """A program of computations, each with its number and instructions; `entry` is the number of the outermost."""
    parts = [
        (3, message((1, own), *((2, one) for one in instructions), (5, number)))
        for own, (number, instructions) in computations.items()
    ]
    return message((1, message((1, name), *parts, (6, entry))))


def hlo_plane(programs: Mapping[str, bytes]) -> tuple[int, bytes]:
    """The plane of a profile that stores programs by their names, such as `jit_step(9)`."""
    entries = [
        (
            4,
            message(
                (1, i), (2, message((1, i), (2, name), (5, message((1, STATS.index("Hlo Proto") + 1), (6, data)))))
            ),
        )
        for i, (name, data) in enumerate(programs.items(), 1)
    ]
    stats = [(5, message((1, i), (2, message((1, i), (2, one))))) for i, one in enumerate(STATS, 1)]
    return 1, message((2, "/host:metadata"), *entries, *stats)


# JAX's and TensorFlow's own file.

STATS = (
    *("hlo_op", "hlo_module", "program_id", "run_id", "device_ordinal", "_p", "_c", "Hlo Proto", "tf_op"),
    *("_pt", "_ct", "correlation_id", "device_id", "context_id", "memcpy_details", "step_num"),
)
Made = tuple[str, float, float, dict[str, int | str | bytes]]  # name, begin and duration in microseconds, statistics


def _stat(name: str, value: int | str | bytes) -> tuple[int, bytes]:
    kind = {int: 4, str: 5, bytes: 6}[type(value)]
    return 4, message((1, STATS.index(name) + 1), (kind, value))


def plane(name: str, lines: Mapping[str, Sequence[Made]]) -> tuple[int, bytes]:
    """A plane of a profile: its lines by their names, and each line's events."""
    names = list(dict.fromkeys(event[0] for events in lines.values() for event in events))
    parts: list[tuple[int, bytes]] = []
    for number, (line, events) in enumerate(lines.items()):
        made = [
            (
                4,
                message(
                    (1, names.index(what) + 1),
                    (2, round(begin * 1e6)),
                    (3, round(duration * 1e6)),
                    *(_stat(*item) for item in stats.items()),
                ),
            )
            for what, begin, duration, stats in events
        ]
        parts.append((3, message((1, number), (2, line), *made)))
    parts += [(4, message((1, i), (2, message((1, i), (2, one))))) for i, one in enumerate(names, 1)]
    parts += [(5, message((1, i), (2, message((1, i), (2, one))))) for i, one in enumerate(STATS, 1)]
    return 1, message((2, name), *parts)

"""Converts PyTorch's trace to an `XSpace`, the file that TensorBoard's profile plugin opens. Pure.

The plugin reads no other format; TensorFlow's and JAX's profilers write it themselves. CPU operations become lines of
the plane `/host:CPU`, one per thread; kernels become lines of `/device:GPU:N`, one per stream.
Source of the layout: tsl/profiler/protobuf/xplane.proto of XLA. Times: traces use microseconds, lines nanoseconds, and
events picoseconds from the begin of their line.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

from keras_matrix.records.protobuf import encoded_number, encoded_piece
from keras_matrix.records.text import printable
from keras_matrix.records.traces.request import STEP, TRAIN

HOST = "/host:CPU"
ON_DEVICE = frozenset({"kernel", "gpu_memcpy", "gpu_memset"})
US_IN_NS, US_IN_PS = 1000, 1_000_000

# Of a step, by which XProf's pages group events: its number, and that it is the root of its group.
STEP_NUMBER, ROOT = (1, "step_num"), (2, "_r")

Plane = dict[str, list[tuple[float, float, str]]]
"""Lines by name, each a list of (begin in us, duration in us, name)."""


def xspace(events: Iterable[Mapping[str, Any]]) -> bytes:
    """Return the XSpace of a Chrome trace's events; incomplete events are skipped."""
    planes: dict[str, Plane] = {}
    for event in events:
        if event.get("ph") != "X" or "ts" not in event:
            continue
        begun_us, took_us = float(event["ts"]), float(event.get("dur", 0.0))
        plane, line = _place(event)
        planes.setdefault(plane, {}).setdefault(line, []).append((begun_us, took_us, str(event.get("name", ""))))
    begun_us = min((one[0] for plane in planes.values() for line in plane.values() for one in line), default=0.0)
    return b"".join(
        encoded_piece(1, _plane(number, name, plane, begun_us))
        for number, (name, plane) in enumerate(sorted(planes.items()), start=1)
    )


def _place(event: Mapping[str, Any]) -> tuple[str, str]:
    if event.get("cat") in ON_DEVICE:
        args = event.get("args") or {}
        device, stream = args.get("device", event.get("pid", 0)), args.get("stream", event.get("tid"))
        return f"/device:GPU:{device}", f"stream {stream}"
    return HOST, f"thread {event.get('tid', 0)}"


def _plane(number: int, name: str, plane: Plane, begun_us: float) -> bytes:
    shown = {_shown(one[2])[0] for x in plane.values() for one in x}
    names = {text: index for index, text in enumerate(sorted(shown), 1)}
    lines = (
        encoded_piece(3, _line(index, line, sorted(events), names, begun_us))
        for index, (line, events) in enumerate(sorted(plane.items()), start=1)
    )
    metadata = (
        encoded_piece(4, encoded_number(1, index) + encoded_piece(2, encoded_number(1, index) + _text(2, text)))
        for text, index in names.items()
    )
    statistics = (
        encoded_piece(5, encoded_number(1, index) + encoded_piece(2, encoded_number(1, index) + _text(2, text)))
        for index, text in (STEP_NUMBER, ROOT)
    )
    return b"".join([encoded_number(1, number), _text(2, name), *lines, *metadata, *statistics])


def _shown(name: str) -> tuple[str, bytes]:
    """Return the name of an event, and its statistics: those of a step if it is a mark of one."""
    number = name.removeprefix(STEP)
    if number == name or not (number.isascii() and number.isdigit()):
        return name, b""
    values = ((STEP_NUMBER[0], int(number)), (ROOT[0], 1))
    return TRAIN, b"".join(
        encoded_piece(4, encoded_number(1, index) + encoded_number(4, value)) for index, value in values
    )


def _line(
    number: int, name: str, events: list[tuple[float, float, str]], names: Mapping[str, int], begun_us: float
) -> bytes:
    begins_ns = round((events[0][0] - begun_us) * US_IN_NS)
    parts = [encoded_number(1, number), _text(2, name), encoded_number(3, begins_ns)]
    for event_us, took_us, text in events:
        offset_ps = max(0, round((event_us - begun_us) * US_IN_PS) - begins_ns * 1000)
        shown, statistics = _shown(text)
        times = encoded_number(2, offset_ps) + encoded_number(3, round(took_us * US_IN_PS))
        parts.append(encoded_piece(4, encoded_number(1, names[shown]) + times + statistics))
    return b"".join(parts)


def _text(field: int, value: str) -> bytes:
    return encoded_piece(field, printable(value, " ").encode())

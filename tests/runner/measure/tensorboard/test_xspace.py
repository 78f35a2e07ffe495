"""PyTorch's trace as the profile plugin reads it, decoded by protobuf's own reader."""

from __future__ import annotations

from functools import cache
from typing import Any

from google.protobuf import descriptor_pb2, descriptor_pool, message_factory
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from keras_matrix.records.traces.request import STEP
from keras_matrix.runner.measure.tensorboard import xspace

# Field by name: number, and the message it holds or None for a number, "" for text. After XLA's xplane.proto.
LAYOUT: dict[str, dict[str, tuple[int, str | None]]] = {
    "Stat": {"metadata_id": (1, None), "int64_value": (4, None)},
    "Event": {"metadata_id": (1, None), "offset_ps": (2, None), "duration_ps": (3, None), "stats": (4, "Stat")},
    "Line": {"id": (1, None), "name": (2, ""), "timestamp_ns": (3, None), "events": (4, "Event")},
    "Metadata": {"id": (1, None), "name": (2, "")},
    "Entry": {"key": (1, None), "value": (2, "Metadata")},
    "Plane": {
        "id": (1, None),
        "name": (2, ""),
        "lines": (3, "Line"),
        "event_metadata": (4, "Entry"),
        "stat_metadata": (5, "Entry"),
    },
    "Space": {"planes": (1, "Plane")},
}
REPEATED = {"events", "lines", "event_metadata", "stat_metadata", "stats", "planes"}


@cache
def space() -> Any:
    types = descriptor_pb2.FieldDescriptorProto
    file = descriptor_pb2.FileDescriptorProto(name="space.proto", package="t", syntax="proto3")
    for message, fields in LAYOUT.items():
        made = file.message_type.add(name=message)
        for name, (number, kind) in fields.items():
            field_type = types.TYPE_INT64 if kind is None else types.TYPE_STRING if kind == "" else types.TYPE_MESSAGE
            label = types.LABEL_REPEATED if name in REPEATED else types.LABEL_OPTIONAL
            made.field.add(
                name=name, number=number, type=field_type, label=label, type_name=f".t.{kind}" if kind else None
            )
    pool = descriptor_pool.DescriptorPool()
    pool.Add(file)
    return message_factory.GetMessageClass(pool.FindMessageTypeByName("t.Space"))


def event(name: str, at_us: float, took_us: float, **more: Any) -> dict[str, Any]:
    return {"ph": "X", "name": name, "ts": at_us, "dur": took_us, "pid": 1, "tid": 7, "cat": "cpu_op", **more}


def decoded(events: list[dict[str, Any]]) -> dict[str, dict[str, list[tuple[str, float, float]]]]:
    """The events of each plane and line: name, begin and duration in microseconds."""
    found = space().FromString(xspace(events))
    planes: dict[str, dict[str, list[tuple[str, float, float]]]] = {}
    for plane in found.planes:
        names = {entry.key: entry.value.name for entry in plane.event_metadata}
        planes[plane.name] = {
            line.name: [
                (names[e.metadata_id], line.timestamp_ns / 1e3 + e.offset_ps / 1e6, e.duration_ps / 1e6)
                for e in line.events
            ]
            for line in plane.lines
        }
    return planes


def test_mark_of_a_step_becomes_the_root_of_that_step() -> None:
    found = space().FromString(xspace([event(f"{STEP}12", 5.0, 2.0), event("aten::mm", 5.5, 1.0)]))
    (plane,) = found.planes
    events = {entry.key: entry.value.name for entry in plane.event_metadata}
    statistics = {entry.key: entry.value.name for entry in plane.stat_metadata}
    stats = {
        events[one.metadata_id]: {statistics[stat.metadata_id]: stat.int64_value for stat in one.stats}
        for one in plane.lines[0].events
    }
    assert stats == {"train": {"step_num": 12, "_r": 1}, "aten::mm": {}}


def test_operations_are_lines_of_the_host_and_kernels_of_their_device() -> None:
    found = decoded(
        [
            event("aten::mm", 1000.5, 20.25),
            event("aten::add", 1030.0, 3.0),
            event("aten::mm", 1001.0, 1.0, tid=8),
            event("gemm", 1010.0, 9.0, cat="kernel", pid=0, args={"device": 0, "stream": 7}),
            {"ph": "M", "name": "process_name", "args": {"name": "python"}},
            {"ph": "s", "name": "flow", "ts": 3},
        ]
    )
    assert found == {
        "/host:CPU": {
            "thread 7": [("aten::mm", 0.0, 20.25), ("aten::add", 29.5, 3.0)],
            "thread 8": [("aten::mm", 0.5, 1.0)],
        },
        "/device:GPU:0": {"stream 7": [("gemm", 9.5, 9.0)]},
    }


def test_trace_without_events_is_an_empty_space() -> None:
    assert xspace([]) == b""


@settings(deadline=None, suppress_health_check=[HealthCheck.too_slow])  # on a busy machine
@given(
    st.lists(st.tuples(st.sampled_from("ab"), st.integers(0, 10**9), st.integers(0, 10**7)), min_size=1, max_size=30)
)
def test_events_retain_their_begin_and_duration(events: list[tuple[str, int, int]]) -> None:
    (lines,) = decoded([event(name, at_ns / 1000, took_ns / 1000) for name, at_ns, took_ns in events]).values()
    begun = min(at_ns for _, at_ns, _ in events)
    expected = sorted((at_ns - begun, took_ns) for _, at_ns, took_ns in events)
    received = sorted((round(at_us * 1000), round(took_us * 1000)) for _, at_us, took_us in lines["thread 7"])
    assert expected == received

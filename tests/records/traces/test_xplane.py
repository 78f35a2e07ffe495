"""JAX's and TensorFlow's file, read without either."""

from __future__ import annotations

import struct

import pytest

from records.traces import hlo
from records.traces.wire import Malformed, fields
from records.traces.xplane import planes
from tests.records.traces.made_up import message, named, varint


def space(*parts: tuple[int, int | str | bytes]) -> bytes:
    return message((1, message(*parts)))


def test_events_have_their_lines_time_and_what_is_told_of_them() -> None:
    stats = [
        (4, message((1, 1), (4, (1 << 64) - 5))),
        (4, message((1, 2), (5, "dot.3"))),
        (4, message((1, 3), (7, 2))),
        (4, varint(1 << 3) + varint(4) + varint(2 << 3 | 1) + struct.pack("<d", 0.5)),
    ]
    event = message((1, 1), (2, 2_000_000), (3, 1_500_000), *stats)
    line = message((1, 7), (2, "thread"), (3, 1000), (4, event), (9, 4))
    data = space((2, "/host:CPU"), (3, line), *named(4, ["dot"]), *named(5, ["run_id", "hlo_op", "ref", "share"]))
    (plane,) = planes(data)
    (found,) = plane.lines[0].events()
    assert (plane.name, plane.lines[0].name, plane.lines[0].number) == ("/host:CPU", "thread", 7)
    assert (found.name, found.start_ns, found.duration_ns) == ("dot", 3000.0, 1500.0)
    assert plane.stats(found) == {"run_id": -5, "hlo_op": "dot.3", "ref": "hlo_op", "share": 0.5}


def test_what_is_told_of_a_name_holds_for_all_its_events() -> None:
    of_name = (5, message((1, 1), (5, "MatMul")))
    line = message((4, message((1, 1), (3, 1000))))
    (plane,) = planes(space((3, line), *named(4, ["a"], of_name), *named(5, ["tf_op"])))
    assert [plane.stats(event) for event in plane.lines[0].events()] == [{"tf_op": "MatMul"}]
    assert list(plane.own_stats()) == [("a", {"tf_op": "MatMul"})]


def test_a_shown_name_goes_before_a_lines_own() -> None:
    (plane,) = planes(space((3, message((2, "own"), (11, "shown")))))
    assert [line.name for line in plane.lines] == ["shown"]


def test_a_programs_instructions_have_their_operation_and_origin() -> None:
    dot = message((1, "dot.3"), (2, "dot"), (7, message((1, "mul"), (2, "jit(f)/jvp(dense)/dot_general"))))
    copy = message((1, "copy.1"), (2, "copy"))
    program = message((1, message((1, "jit_f"), (3, message((1, "main"), (2, dot), (2, copy))))))
    assert hlo.instructions(memoryview(program)) == {
        "dot.3": hlo.Instruction("dot", "jit(f)/jvp(dense)/dot_general"),
        "copy.1": hlo.Instruction("copy", ""),
    }


@pytest.mark.parametrize("data", [b"\x0a\x05abc", b"\x0b", b"\x08"])
def test_bytes_that_are_no_message_are_refused(data: bytes) -> None:
    with pytest.raises((Malformed, IndexError)):
        list(fields(memoryview(data)))


def test_a_number_ends_after_ten_bytes_however_many_follow() -> None:
    assert list(fields(memoryview(b"\x08" + b"\xff" * 9 + b"\x01"))) == [(1, (1 << 64) - 1)]
    with pytest.raises(Malformed, match="more than ten bytes"):
        list(fields(memoryview(b"\x08" + b"\x80" * 10 + b"\x00")))


def test_numbers_of_fixed_size_are_read_as_they_lie() -> None:
    data = varint(1 << 3 | 1) + (300).to_bytes(8, "little") + varint(2 << 3 | 5) + (7).to_bytes(4, "little")
    assert list(fields(memoryview(data))) == [(1, 300), (2, 7)]

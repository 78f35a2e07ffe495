"""JAX's and TensorFlow's file is read without either."""

from __future__ import annotations

import struct

import numpy as np
import pytest

from keras_matrix.records.protobuf import Malformed, fields
from keras_matrix.records.traces.xspace import reader
from keras_matrix.records.traces.xspace.xplane import UNTOLD, Events, planes
from tests.records.traces.synthetic import message, named, varint

# Fields of numbers that no version of the format has yet: a number, a piece, eight bytes, four bytes.
UNKNOWN = (
    varint(16 << 3) + varint(300)
    + varint(17 << 3 | 2) + varint(200) + b"\x80" * 200
    + varint(13 << 3 | 1) + b"\xff" * 8
    + varint(14 << 3 | 5) + b"\xff" * 4
)  # fmt: skip


def counted(events: Events, name: str) -> list[int | None]:
    numbers, has_value = events.numbers(name)
    return [number if known else None for number, known in zip(numbers.tolist(), has_value.tolist(), strict=True)]


def worded(events: Events, name: str) -> list[str | None]:
    codes, words = events.words(name)
    return [None if code == UNTOLD else words[code] for code in codes.tolist()]


def space(*parts: tuple[int, int | str | bytes]) -> bytes:
    return message((1, message(*parts)))


def test_events_have_times_of_their_line_and_statistics() -> None:
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
    assert (found.name, found.start_ns, found.end_ns) == ("dot", 3000, 4500)
    assert found.stats == {"run_id": -5, "hlo_op": "dot.3", "ref": "hlo_op", "share": 0.5}


def test_statistics_of_a_name_apply_to_all_its_events() -> None:
    of_name = (5, message((1, 1), (5, "MatMul")))
    line = message((4, message((1, 1), (3, 1000))))
    (plane,) = planes(space((3, line), *named(4, ["a"], of_name), *named(5, ["tf_op"])))
    assert [event.stats for event in plane.lines[0].events()] == [{"tf_op": "MatMul"}]
    assert list(plane.own_stats()) == [("a", {"tf_op": "MatMul"})]


def test_fields_in_any_order_and_some_left_out_are_read() -> None:
    stat = (4, message((5, "dot.3"), (1, 300)))
    events = [
        message(stat, (3, 2_000), (2, (1 << 64) - 5_000), (1, 200)),
        message((2, 300_000)),
        message((1, 1)),
        message((3, (1 << 64) - 90_000), (5, 7)),
        b"",
    ]
    line = message(*((4, event) for event in events), (3, 1000), (1, 500))
    names = [(4, message((2, message((2, "dot"))), (1, 200))), *named(4, ["first"])]
    (plane,) = planes(space((3, line), *names, (5, message((1, 300), (2, message((2, "hlo_op")))))))
    found = plane.lines[0].events()
    assert [(one.name, one.kind, one.start_ns, one.end_ns, one.stats) for one in found] == [
        ("dot", 200, 995, 997, {"hlo_op": "dot.3"}),
        ("", 0, 1300, 1300, {}),
        ("first", 1, 1000, 1000, {}),
        ("", 0, 1000, 1000, {}),
        ("", 0, 1000, 1000, {}),
    ]
    assert worded(found, "hlo_op") == ["dot.3", None, None, None, None]


def test_unknown_fields_of_later_format_versions_are_skipped() -> None:
    stat = UNKNOWN + message((1, 1), (4, 7)) + UNKNOWN
    event = UNKNOWN + message((1, 1), (2, 5_000), (4, stat)) + UNKNOWN
    line = UNKNOWN + message((4, event)) + UNKNOWN + message((4, event), (2, "thread"))
    (plane,) = planes(space((3, line), *named(4, ["dot"]), *named(5, ["_c"])))
    (line_read,) = plane.lines
    assert (line_read.name, line_read.kinds().tolist()) == ("thread", [1, 1])
    assert [(one.name, one.start_ns, one.stats) for one in line_read.events()] == [("dot", 5, {"_c": 7})] * 2
    assert counted(line_read.events(), "_c") == [7, 7]


@pytest.mark.parametrize("first", [True, False])
def test_kind_of_an_event_is_read_at_any_position(first: bool) -> None:
    kinds = (1, 127, 128, 300)
    events = [message(*sorted([(1, kind), (2, kind * 1_000)], reverse=not first)) for kind in kinds]
    parts = [(4, event) for event in (*events, message((2, 1000)), b"")]
    (plane,) = planes(space((3, message(*parts, (1, 9)))))
    (line,) = plane.lines
    assert (line.number, line.kinds().tolist()) == (9, [*kinds, 0, 0])
    assert [(one.kind, one.start_ns) for one in line.events(np.array([3, 1]))] == [(300, 300), (127, 127)]


def test_last_statistic_counts_and_an_events_own_precedes_its_names() -> None:
    of_name = [(5, message((1, 1), (3, 5))), (5, message((1, 2), (5, "of all")))]
    own = [
        [],
        [(4, message((1, 1), (4, 6))), (4, message((1, 1), (4, 7))), (4, message((1, 2), (5, "a"), (7, 3)))],
        [(4, message((1, 2), (7, 3))), (4, message((1, 2), (5, "own")))],
        [(4, message((1, 2), (7, 9)))],
    ]
    line = message(*((4, message((1, 1), *stats)) for stats in own), (4, message((1, 2))))
    names = named(5, ["run_id", "hlo_op", "dot"])
    (plane,) = planes(space((3, line), *named(4, ["some", "other"], *of_name), *names))
    found = plane.lines[0].events()
    assert counted(found, "run_id") == [5, 7, 5, 5, None]
    assert worded(found, "hlo_op") == ["of all", "dot", "own", "", None]
    assert [one.stats.get("run_id") for one in found] == [5, 7, 5, 5, None]
    assert [one.stats.get("hlo_op") for one in found] == ["of all", "dot", "own", "", None]
    assert (counted(found, "none"), worded(found, "none")) == ([None] * 5, [None] * 5)


@pytest.mark.parametrize("kind", [3, 4])
@pytest.mark.parametrize("number", [-(1 << 63), -2, 0, (1 << 63) - 1])
def test_64_bit_statistic_is_equal_from_the_event_or_from_its_name(number: int, kind: int) -> None:
    stat = message((1, 1), (kind, number % (1 << 64)))
    line = message((4, message((1, 1))), (4, message((1, 2), (4, stat))))
    (plane,) = planes(space((3, line), *named(4, ["all", "one"], (5, stat)), *named(5, ["_c"])))
    assert counted(plane.lines[0].events(), "_c") == [number, number]


def test_name_with_two_numbers_is_found_by_either() -> None:
    events = [message((1, 1), (4, message((1, name), (3, name * 7)))) for name in (1, 2)]
    (plane,) = planes(space((3, message(*((4, event) for event in events))), *named(5, ["_c", "_c"])))
    assert counted(plane.lines[0].events(), "_c") == [7, 14]


def test_consecutive_events_do_not_overlap_after_rounding() -> None:
    events = [message((2, 600), (3, 600)), message((2, 1200), (3, 300)), message((2, 1500), (3, 1500))]
    (plane,) = planes(space((3, message(*((4, event) for event in events)))))
    found = plane.lines[0].events()
    assert list(zip(found.start_ns.tolist(), found.end_ns.tolist(), strict=True)) == [(1, 1), (1, 2), (2, 3)]


def test_an_event_never_ends_before_it_begins_however_long_it_is() -> None:
    (plane,) = planes(space((3, message((4, message((2, (1 << 63) - 1), (3, (1 << 63) - 1)))))))
    (found,) = plane.lines[0].events()
    assert found.end_ns > found.start_ns > 0


@pytest.mark.parametrize("value", [(5, "7"), (7, 1)])
@pytest.mark.parametrize("whose", ["an event's own", "its name's"])
def test_text_instead_of_a_number_is_malformed(value: tuple[int, int | str], whose: str) -> None:
    stat = message((1, 1), value)
    own, of_name = ([(4, stat)], []) if whose == "an event's own" else ([], [(5, stat)])
    line = message((4, message((1, 1), *own)))
    (plane,) = planes(space((3, line), *named(4, ["dot"], *of_name), *named(5, ["_c"])))
    with pytest.raises(Malformed, match="_c of an event is not an integer"):
        plane.lines[0].events().numbers("_c")


@pytest.mark.parametrize("whose", ["an event's own", "its name's"])
def test_number_instead_of_text_is_malformed(whose: str) -> None:
    stat = message((1, 1), (3, 7))
    own, of_name = ([(4, stat)], []) if whose == "an event's own" else ([], [(5, stat)])
    line = message((4, message((1, 1), *own)))
    (plane,) = planes(space((3, line), *named(4, ["dot"], *of_name), *named(5, ["hlo_op"])))
    with pytest.raises(Malformed, match="is not text"):
        plane.lines[0].events().words("hlo_op")


@pytest.mark.parametrize("sign", [1, -1])
def test_a_line_that_begins_at_no_time_of_a_machine_is_malformed(sign: int) -> None:
    last = sign * (1 << 61)
    lines = [message((3, begin % (1 << 64)), (4, message((1, 1)))) for begin in (last, last + sign)]
    (plane,) = planes(space((3, lines[0])))
    assert plane.lines[0].events().start_ns.tolist() == [last]
    with pytest.raises(Malformed, match=f"begins at {last + sign} ns"):
        list(planes(space((3, lines[1]))))


def test_empty_statistic_is_ignored() -> None:
    line = message((4, message((1, 1), (4, b""), (4, message((1, 1), (3, 4))), (4, message((1, 1))))))
    (plane,) = planes(space((3, line), *named(4, ["end: dot"]), *named(5, ["_c"])))
    assert counted(plane.lines[0].events(), "_c") == [4]


@pytest.mark.parametrize(
    "event",
    [
        pytest.param(message((1, 1)) + b"\x10", id="amid an event"),
        pytest.param(message((1, 1)) + b"\x22\x09\x08", id="amid a statistic"),
        pytest.param(message((1, 1)) + b"\x13\x01", id="of no kind"),
        pytest.param(message((1, 1)) + b"\x09\x01", id="amid a number of eight bytes"),
    ],
)
def test_an_event_that_breaks_off_is_not_read_on_in_the_next(event: bytes) -> None:
    line = message((4, event), (4, message((1, 2), (2, 1000))), (2, "thread"))
    (plane,) = planes(space((3, line)))
    with pytest.raises(Malformed):
        plane.lines[0].events()


@pytest.mark.parametrize(
    "stat",
    [
        pytest.param(message((1, 1)) + b"\x2a\x09dot", id="amid a text"),
        pytest.param(message((1, 1)) + b"\x11\x00", id="amid a real number"),
        pytest.param(message((1, 1)) + b"\x2d\x00", id="amid four bytes"),
    ],
)
def test_a_statistic_that_breaks_off_is_malformed(stat: bytes) -> None:
    line = message((4, message((1, 1), (4, stat))))
    (plane,) = planes(space((3, line), *named(5, ["hlo_op"])))
    with pytest.raises(Malformed):
        plane.lines[0].events().words("hlo_op")
    with pytest.raises(Malformed):
        list(plane.lines[0].events())


@pytest.mark.parametrize("event", [b"\x08\x81", b"\x10"])
def test_an_event_that_breaks_off_has_no_kind(event: bytes) -> None:
    line = message((4, event), (4, message((1, 2))))
    (plane,) = planes(space((3, line)))
    with pytest.raises(Malformed):
        plane.lines[0].kinds()


def test_line_with_a_truncated_event_is_malformed() -> None:
    with pytest.raises(Malformed, match="is truncated"):
        list(planes(space((3, b"\x22\x04" + message((1, 1))))))


def test_display_name_precedes_a_lines_own_name() -> None:
    (plane,) = planes(space((3, message((2, "own"), (11, "shown")))))
    assert [line.name for line in plane.lines] == ["shown"]


def test_a_programs_instructions_have_their_operation_and_origin() -> None:
    dot = message((1, "dot.3"), (2, "dot"), (7, message((1, "mul"), (2, "jit(f)/jvp(dense)/dot_general"))))
    copy = message((1, "copy.1"), (2, "copy"))
    program = message((1, message((1, "jit_f"), (3, message((1, "main"), (2, dot), (2, copy))))))
    assert reader.program_instructions(memoryview(program)) == {
        "dot.3": reader.Instruction("dot", "jit(f)/jvp(dense)/dot_general"),
        "copy.1": reader.Instruction("copy", ""),
    }


@pytest.mark.parametrize("data", [b"\x0a\x05abc", b"\x0b", b"\x08", b"\x09\x01", b"\x0d\x01\x02\x03"])
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

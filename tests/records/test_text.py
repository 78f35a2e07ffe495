"""The notations of figures, which can be read back; text from outside, which every output can show."""

from __future__ import annotations

import json
import math
import re

import pytest
from hypothesis import given
from hypothesis import strategies as st

from keras_matrix.records.text import (
    GIB,
    MEMORY_UNITS,
    MILLISECOND,
    NOTHING,
    PERCENT,
    SECOND,
    TIME_UNITS,
    Unit,
    amount,
    bytes_text,
    count,
    duration,
    escaped,
    interval,
    interval_text,
    moment,
    number,
    percent_change,
    percentage,
    percentage_interval,
    plural,
    printable,
    printable_values,
    quantity,
    ratio_text,
    seconds,
    unit_for,
)

BIDI = "\u061c\u200e\u200f\u202a\u202b\u202c\u202d\u202e\u2066\u2067\u2068\u2069"


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        (
            "loss −3.5 µs, café, 日本, 👩‍💻, 5\u00a0%\tand\nlines",
            "loss −3.5 µs, café, 日本, 👩‍💻, 5\u00a0%\tand\nlines",
        ),
        ("half \ud800 a pair", "half \\ud800 a pair"),
        (b"caf\xe9.txt".decode(errors="surrogateescape"), "caf\\xe9.txt"),
        ("user\u202egpj.exe", "user\\u202egpj.exe"),
        ("\x1b[31mred\x1b[0m \x1b]0;title\x07done\x08\x08", "red done"),
        ("nul \x00, delete \x7f, C1 \x9b[2J", "nul \\u0000, delete \\u007f, C1 \\u009b[2J"),
        ("1/8\r2/8\r\nend\u2028x", "1/8\n2/8\nend\\u2028x"),
        ("no\u200bwidth, tag \U000e0041", "no\\u200bwidth, tag \\udb40\\udc41"),
    ],
)
def test_text_from_outside_is_made_printable(text: str, expected: str) -> None:
    assert printable(text) == expected


def test_line_ends_become_what_the_caller_needs() -> None:
    assert printable("a\nb\r\nc\rd\u2029e\tf", " ") == "a b c d e f"


@given(st.text(st.characters(codec=None)))
def test_printable_text_can_be_encoded_has_no_control_character_and_is_not_changed_again(text: str) -> None:
    shown = printable(text)
    shown.encode()
    assert not set(shown) & set(BIDI)
    assert all(character in "\t\n" or not 0 <= ord(character) < 32 for character in shown)
    assert printable(shown) == shown
    assert len(printable(text, " ").splitlines()) <= 1


def test_text_that_can_be_shown_is_the_same_object() -> None:
    text = "plain"
    assert printable(text) is text


def test_escaped_text_shows_what_was_received_in_one_line() -> None:
    assert escaped("a\x1b[31m\udcff\n") == "a\\x1b[31m\\udcff\\n"
    assert escaped("x" * 200) == "x" * 117 + "..."
    assert escaped("x" * 200, most=None) == "x" * 200


def test_texts_and_keys_of_json_values_are_made_printable() -> None:
    value = {"k\ud800": ["\x1b[1mbold", {"n": 1, "none": None, "real": 0.5}], "flag": True}
    expected = {"k\\ud800": ["bold", {"n": 1, "none": None, "real": 0.5}], "flag": True}
    assert printable_values(value) == expected


@given(st.text(st.characters(codec=None)))
def test_json_document_made_printable_is_the_same_value(text: str) -> None:
    document = json.dumps({"text": text.encode(errors="backslashreplace").decode()}, ensure_ascii=False)
    assert json.loads(printable(document)) == json.loads(document)


FIGURES = st.floats(1e-12, 1e15) | st.floats(-1e15, -1e-12) | st.just(0.0)
SHARES = st.floats(-50, 50)
UNITS = {unit.name: unit.size for unit in (*TIME_UNITS, *MEMORY_UNITS, PERCENT, Unit("x", 1.0))}
INTERVAL = re.compile(r"\[(\S+) (\S+)\]")


def read(digits: str) -> tuple[float, float]:
    """Return a printed number, and half of its last digit: what rounding may have changed."""
    assert re.fullmatch(r"[+-]?\d{1,3}(,\d{3})*(\.\d+)?", digits), digits
    decimals = len(digits.partition(".")[2])
    return float(digits.replace(",", "")), 0.5 * 10.0**-decimals * (1 + 1e-6)


def assert_reads_back(text: str, value: float) -> None:
    """Check a number with its unit, which may be attached, such as that of a ratio."""
    digits, name = re.fullmatch(r"(?:> )?(\S+?) ?(s|ms|us|ns|[KMGT]iB|B|%|x|)", text).groups()  # type: ignore[union-attr]
    printed, half = read(digits)
    size = UNITS.get(name, 1.0)
    if text.startswith("> "):
        assert printed < value / size < 100
        return
    assert abs(printed - value / size) <= half + abs(value / size) * 1e-12


def assert_interval_reads_back(text: str, low: float, high: float) -> None:
    """Check an interval whose unit stands behind it, or else before it behind the centre."""
    [(first, last)] = INTERVAL.findall(text)
    name = text.rpartition("] ")[2] if "] " in text else text.partition(" [")[0].lstrip("+-0123456789.,").strip()
    for digits, value in ((first, low), (last, high)):
        printed, half = read(digits)
        assert abs(printed - value / UNITS.get(name, 1.0)) <= half + abs(value / UNITS.get(name, 1.0)) * 1e-12


@given(FIGURES)
def test_a_number_reads_back_within_half_of_its_last_digit(value: float) -> None:
    assert_reads_back(number(value), value)


@given(st.floats(1e-9, 99) | st.floats(-99, -1e-9))
def test_a_number_below_a_hundred_has_three_significant_digits(value: float) -> None:
    assert len(re.sub(r"\D", "", number(value)).lstrip("0")) == 3


@given(st.integers(0, 2**60))
def test_bytes_read_back_within_half_of_their_last_digit(value: int) -> None:
    assert_reads_back(bytes_text(value), value)


@given(st.floats(0, 1e9))
def test_a_time_reads_back_within_half_of_its_last_digit(value: float) -> None:
    assert_reads_back(seconds(value), value)


@given(SHARES)
def test_a_percentage_reads_back_within_half_of_its_last_digit(share: float) -> None:
    assert_reads_back(percentage(share), share)
    assert percent_change(share + 1)[0] in "+-"


@given(st.floats(0.01, 1e4))
def test_a_ratio_reads_back_within_half_of_its_last_digit(ratio: float) -> None:
    assert_reads_back(ratio_text(ratio), ratio)


@given(st.lists(st.floats(1e-6, 1e6), min_size=3, max_size=3).map(sorted))
def test_every_interval_reads_back_with_or_without_its_centre(values: list[float]) -> None:
    low, centre, high = values
    for text in (
        f"{interval(low, high)}",
        f"{interval(low, high, centre)}",
        ratio_text(centre, low, high),
        seconds(centre, low, high),
        quantity(centre, MILLISECOND, low, high),
        interval_text(low, high, "s"),
        interval_text(low, high, "W"),
        percentage(centre, low, high),
        percentage_interval(low, high),
    ):
        assert_interval_reads_back(text, low, high)


def test_each_notation_looks_as_it_is_documented() -> None:
    assert seconds(0.00421, 0.0041, 0.00433) == "4.21 ms [4.10 4.33]"
    assert ratio_text(1.66, 1.48, 1.86) == "1.66x [1.48 1.86]"
    assert ratio_text(1.66) == ratio_text(1.66, 1.48, None) == "1.66x"
    assert percentage(0.052, 0.049, 0.055) == "5.2 % [4.9 5.5]"
    assert percent_change(0.969, 0.96, 0.978) == "-3.1 % [-4.0 -2.2]"
    assert percentage_interval(0.049, 0.055) == "[4.9 5.5] %"
    assert percentage(0.0003, -0.02, 0.021) == "0.0 % [-2.0 2.1]"
    assert percentage(0.93, 0.88, 0.9998) == "93.00 % [88.00 99.98]"
    assert interval_text(0.0041, 0.00433, "s") == "[4.10 4.33] ms"
    assert bytes_text(1.4 * GIB) == "1.40 GiB"
    assert (bytes_text(812 << 20), bytes_text(1000), bytes_text(0)) == ("812 MiB", "1,000 B", "0 B")
    assert amount(825.4, "samples/s") == "825 samples/s"
    assert (count(25_600_000), count(999)) == ("25.6 M", "999")
    assert quantity(0.052, PERCENT, 0.049, 0.055) == percentage(0.052, 0.049, 0.055)
    assert [duration(value) for value in (59.4, 185, 3725)] == ["59 s", "3 min 05 s", "1 h 02 min"]
    assert (plural(1, "repeat"), plural(2000, "process", "processes")) == ("1 repeat", "2,000 processes")


@pytest.mark.parametrize(
    ("share", "expected"),
    [
        (1.0, "100.0 %"),
        (0.1 * 3 + 0.7 - 1e-15, "100.0 %"),
        (0.9994, "99.9 %"),
        (0.9997, "99.97 %"),
        (0.99996, "99.996 %"),
        (0.999999, "> 99.999 %"),
        (1.0004, "100.0 %"),
        (0.8123, "81.2 %"),
        (0.0999, "10.0 %"),
        (0.00314, "0.31 %"),
        (0.000314, "0.031 %"),
        (0.0000314, "0.0031 %"),
        (1e-9, "0.0 %"),
        (-1e-9, "0.0 %"),
        (0.0, "0.0 %"),
        (-0.031, "-3.1 %"),
    ],
)
def test_a_percentage_has_one_decimal_and_more_below_one_percent_and_near_all(share: float, expected: str) -> None:
    assert percentage(share) == expected


@pytest.mark.parametrize(
    ("value", "expected"),
    [
        (0.000123456, "0.000123"),
        (0.4117, "0.412"),
        (0.9996, "1.00"),
        (9.996, "10.0"),
        (999.6, "1,000"),
        (123456.0, "123,456"),
        (-3.14159, "-3.14"),
        (0.0, "0"),
        (1e-9, "0.00000000100"),
    ],
)
def test_a_number_has_no_exponent_and_is_whole_from_a_hundred_on(value: float, expected: str) -> None:
    assert number(value) == expected


def test_what_was_not_measured_or_is_not_finite_is_a_dash() -> None:
    shown = [
        show(value) for show in (number, seconds, bytes_text, percentage, percent_change) for value in (None, math.nan)
    ]
    assert shown == [NOTHING] * len(shown)
    assert quantity(None, MILLISECOND) == percentage_interval(None, 1.0) == NOTHING
    assert interval(None, 1.0, 1.0) is None


def test_unit_is_the_largest_with_a_value_of_at_least_one() -> None:
    assert [unit_for([value]).name for value in (2.0, 0.5, 4e-5, 3e-9, 1e-12)] == ["s", "ms", "us", "ns", "ns"]
    assert unit_for([]) == SECOND
    assert unit_for([3 << 30], MEMORY_UNITS).name == "GiB"


def test_label_that_is_not_a_date_is_unchanged() -> None:
    assert moment("2025-11-21T05:25:00Z") == "21 November 2025, 05:25 UTC"
    assert moment("2025-11-21T05:25:00") == "21 November 2025, 05:25 UTC"
    assert moment("yesterday") == "yesterday"

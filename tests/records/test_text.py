"""Text from outside: what every output can show, and what is left as it is."""

from __future__ import annotations

import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

from keras_matrix.records.text import escaped, printable, printable_values

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

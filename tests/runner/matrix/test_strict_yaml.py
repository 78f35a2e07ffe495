"""The strict YAML loader: accepted values, and the messages for refused ones."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from keras_matrix.records.text import escaped
from keras_matrix.runner.matrix.scalars import resolve, say
from keras_matrix.runner.matrix.strict_yaml import MAX_BYTES, MAX_PROBLEMS, REFUSED, path_text, read


def problems(data: str | bytes) -> list[str]:
    document = read(data.encode() if isinstance(data, str) else data)
    return [f"{p.line}:{path_text(p.path)}: {p.text}" for p in document.problems]


def value(text: str) -> object:
    document = read(text.encode())
    assert document.problems == []
    return document.value


@pytest.mark.fault("F32", mutation="plain scalars follow YAML 1.1, where 012 is 10 and no is false")
@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("no", "no"),
        ("yes", "yes"),
        ("on", "on"),
        ("off", "off"),
        ("true", True),
        ("false", False),
        ("tRue", "tRue"),
        ("012", "012"),
        ("0x10", "0x10"),
        ("0o7", "0o7"),
        ("1_000", "1_000"),
        ("16:30", "16:30"),
        ("2001-01-01", "2001-01-01"),
        ("1e-3", 0.001),
        ("1.0e3", 1000.0),
        ("2.10", 2.1),
        (".5", 0.5),
        ("-3", -3),
        ("+3", 3),
        ("0", 0),
        ("1e999", "1e999"),
        (".inf", ".inf"),
        (".nan", ".nan"),
        ("nan", "nan"),
        ("9" * 6000, "9" * 6000),
        ("١٢", "١٢"),
        ("null", None),
        ("~", None),
        ("", None),
    ],
)
def test_plain_scalar_is_a_number_or_boolean_only_if_unambiguous(text: str, expected: object) -> None:
    found = resolve(text)

    assert expected == found
    assert type(expected) is type(found)


@pytest.mark.parametrize("text", ["'12'", '"true"', "'~'", "|-\n  1e-3"])
def test_quoted_and_block_scalars_are_text(text: str) -> None:
    found = value(f"a: {text}\n")

    assert isinstance(found, dict)
    assert isinstance(found["a"], str)


def test_values_keep_the_line_of_their_key_or_item() -> None:
    document = read(b"a: 1\nb:\n  - x\n  - {c: 2,\n     d: 3}\n")

    assert document.value == {"a": 1, "b": ["x", {"c": 2, "d": 3}]}
    assert [document.lines[p] for p in [("a",), ("b",), ("b", 0), ("b", 1, "c"), ("b", 1, "d")]] == [1, 2, 3, 4, 5]


@pytest.mark.fault("F32", mutation="the line ends of Windows count as control characters")
@pytest.mark.parametrize("text", ["\ufeffa: 1\n", "a: 1\r\n", "a: 1", "---\na: 1\n...\n", "%YAML 1.2\n---\na: 1\n"])
def test_byte_order_mark_windows_line_ends_and_explicit_document_are_accepted(text: str) -> None:
    assert value(text) == {"a": 1}


REFUSALS: dict[str, tuple[str | bytes, list[str]]] = {
    "empty file": ("", ["1:: the file is empty"]),
    "only a comment": ("# nothing\n", ["1:: the file is empty"]),
    "duplicate key": ("a: 1\nb: 2\na: 3\n", ["3:a: keys must not repeat, first used on line 1"]),
    "duplicate nested key": ("a:\n  b: 1\n  'b': 2\n", ["3:a.b: keys must not repeat, first used on line 2"]),
    "anchor": ("a: &x 1\n", ["1:a: anchors are not allowed, got &x"]),
    "alias": ("a: &x 1\nb: *x\n", ["1:a: anchors are not allowed, got &x", "2:b: aliases are not allowed, got *x"]),
    "cycle": ("&a [*a]", ["1:: anchors are not allowed, got &a", "1:[0]: aliases are not allowed, got *a"]),
    "merge key": ("a:\n  <<: {b: 1}\n", ["2:a: merge keys are not allowed, got <<"]),
    "tag": ("a: !!int 3\n", ["1:a: tags are not allowed, got 'tag:yaml.org,2002:int'"]),
    "local tag": ("a: !thing {b: 1}\n", ["1:a: tags are not allowed, got '!thing'"]),
    "bare tag": ("a: ! b\n", ["1:a: tags are not allowed, got '!'"]),
    "python tag": (
        "!!python/object/apply:os.system [ls]",
        ["1:: tags are not allowed, got 'tag:yaml.org,2002:python/object/apply:os.system'"],
    ),
    "number as key": ("1: a\n", ["1:: keys must be text, got 1"]),
    "boolean as key": ("true: a\n", ["1:: keys must be text, got true"]),
    "null as key": ("~: a\n", ["1:: keys must be text, got nothing"]),
    "list as key": ("[a]: b\n", ["1:: keys must be text, got a list of 1"]),
    "second document": ("a: 1\n---\nb: 2\n", ["2:: must be one document, got a second one"]),
    "tab": ("a:\n\tb: 1\n", ["2:: indentation must be spaces, got a tab"]),
    "not UTF-8": (b"a: 1\nb: \xff\n", ["2:: must be UTF-8, got byte 0xff"]),
    "UTF-16": ("a: 1\n".encode("utf-16"), ["1:: must be UTF-8, got byte 0xff"]),
    "NUL": ("a: 1\nb: \0\n", ["2:: control characters are not allowed, got U+0000"]),
    "escape": ("a: \x1b[31m\n", ["1:: control characters are not allowed, got U+001B"]),
    "too large": (b"#" * (MAX_BYTES + 1), ["1:: a file must be at most 1048576 bytes, got more"]),
    "too deep": ("[" * 3000, ["1:: must be nested at most 20 deep, got more"]),
    "too many values": (f"[{'1,' * 30_000}]", ["1:: must have at most 20000 values, got more"]),
    "open bracket": (
        "a: [1\nb: 2\n",
        ["2:: not YAML: while parsing a flow sequence did not find expected ',' or ']'"],
    ),
    "directive": ("%YAML 3.0\n---\na: 1\n", ["1:: not YAML: found incompatible YAML document"]),
}


@pytest.mark.fault("F32", mutation="anchors are accepted")
@pytest.mark.parametrize("case", REFUSALS)
def test_ambiguous_yaml_is_refused_with_a_message(case: str) -> None:
    text, expected = REFUSALS[case]

    assert expected == problems(text)


@pytest.mark.fault("F32", mutation="anchors and aliases are not reported")
def test_alias_bomb_is_refused_without_expansion() -> None:
    bomb = "a: &a [x,x,x,x,x,x,x,x,x]\n" + "".join(f"{n}: &{n} [{f'*{chr(ord(n) - 1)},' * 9}]\n" for n in "bcdef")

    found = problems(bomb)
    assert found[0] == "1:a: anchors are not allowed, got &a"
    assert all("not allowed" in line or "stopped after" in line for line in found)


@pytest.mark.fault("F32", mutation="the number of problems has no limit")
def test_file_with_many_problems_is_not_read_completely() -> None:
    found = problems("".join(f"{n}: a\n" for n in range(1000)))

    assert len(found) == MAX_PROBLEMS + 1
    assert found[-1] == "50:: stopped after 50 problems; fix these first"


def test_refused_value_is_reported_only_once() -> None:
    assert read(b"a: !x 3\nb: 1\n").value == {"a": REFUSED, "b": 1}


@pytest.mark.fault("F32", mutation="invalid UTF-8 raises")
@given(st.binary(max_size=200) | st.text(max_size=200).map(lambda text: text.encode("utf-8", "replace")))
def test_any_bytes_result_in_a_document_or_problems(data: bytes) -> None:
    document = read(data)

    assert document.problems or document.value is not REFUSED


@given(st.text(alphabet="a:-[]{}&*!|>'\"#%@`?,<~ \t\n01", max_size=60))
def test_random_yaml_characters_result_in_a_document_or_problems(text: str) -> None:
    document = read(text.encode())

    assert document.problems or document.value is not REFUSED


@pytest.mark.parametrize(
    ("received", "expected"),
    [
        (True, "true"),
        (None, "nothing"),
        ([1, 2], "a list of 2"),
        ([], "an empty list"),
        ({"a": 1}, "a mapping of 1"),
        ("x\x1b[0m", "'x\\x1b[0m'"),
        ("раypal", "'\\u0440\\u0430ypal'"),
        ("a" * 300, "'" + "a" * 56 + "..."),
        (2.5, "2.5"),
    ],
)
def test_received_value_is_short_and_printable(received: object, expected: str) -> None:
    assert expected == say(received)


@given(st.text(max_size=300))
def test_escaped_text_fits_a_line(text: str) -> None:
    assert escaped(text).isprintable()
    assert len(escaped(text)) <= 120

"""Strategies that change valid documents: JSON values, texts and bytes.

Most changes leave a document valid, so that the code behind the parser is reached too. What Python cannot write as
JSON, such as a number with 6,000 digits, is a word of `RAW` until the text is complete.
"""

from __future__ import annotations

import copy
import json
from collections.abc import Iterator, Sequence
from typing import Any

from hypothesis import strategies as st

RAW = {
    "@deep_list": "[" * 5000 + "]" * 5000,
    "@deep_mapping": '{"a":' * 5000 + "1" + "}" * 5000,
    "@digits": "9" * 6000,
    "@overflow": "1e999",
    "@nan": "NaN",
    "@infinity": "-Infinity",
    "@surrogate": r'"\ud800"',
    "@twice": '{"a": 1, "a": 2}',
    "@open": '{"a": ',
}
ODD_TEXTS = (
    "",
    " ",
    "\0",
    "\x1b[31mred",
    "../../etc/passwd",
    "/",
    "a\nb",
    "<script>alert(1)</script>",
    "é" * 300,
    "\u202e",
    "nan",
)
ODD_NUMBERS = (0, -1, 1, 2**31, 2**63, -(2**63) - 1, 10**30, 10**400, 1e308, -1e308, 5e-324, 0.5, -0.0)
ODD_DATES = ("0001-01-01T00:00:00+23:59", "9999-12-31T23:59:59-23:59", "2026-02-30T00:00:00+00:00", "2026-01-01", "now")
ODD_VALUES: tuple[Any, ...] = (
    None,
    True,
    False,
    *ODD_NUMBERS,
    *ODD_TEXTS,
    *ODD_DATES,
    [],
    {},
    [[]],
    {"a": {}},
    [None],
    *RAW,
)
CHANGES = (0, 1, 1, 2, 3)

Place = tuple[Any, Any]
"""A container and the key or index of one of its values."""


def places(document: Any) -> Iterator[Place]:
    """Yield the place of every value within a document."""
    open_values = [document]
    while open_values:
        container = open_values.pop()
        items = container.items() if isinstance(container, dict) else enumerate(container)
        for key, value in items:
            yield container, key
            if isinstance(value, (dict, list)):
                open_values.append(value)


def similar(value: Any) -> st.SearchStrategy[Any]:
    """Return values of the same type."""
    if value is None or isinstance(value, bool):
        return st.sampled_from([value, value, not value])
    if isinstance(value, int):
        return st.integers(0, 10_000) | st.sampled_from([value + 1, 0, 2**40])
    if isinstance(value, float):
        return st.floats(1e-9, 1e9) | st.just(value * 2)
    if isinstance(value, str):
        return st.sampled_from([value, value, value, value + "x"]) | st.text(max_size=12)
    if isinstance(value, list):
        return st.sampled_from([value, value[:1], [*value, *value[-1:]], []])
    return st.just(value)


@st.composite
def changed(draw: st.DrawFn, documents: Sequence[Any], hostile: int = 2) -> Any:
    """Return one of the documents with up to three changes, of which `hostile` in ten ignore the type of the value."""
    document = {"root": copy.deepcopy(draw(st.sampled_from(documents)))}
    for _ in range(draw(st.sampled_from(CHANGES))):
        container, key = draw(st.sampled_from(list(places(document))))
        if draw(st.integers(0, 9)) >= hostile:
            container[key] = draw(similar(container[key]))
        elif draw(st.booleans()):
            container[key] = copy.deepcopy(draw(st.sampled_from(ODD_VALUES)))
        elif isinstance(container, dict) and container is not document and draw(st.booleans()):
            container[draw(st.sampled_from(ODD_TEXTS) | st.text(max_size=6))] = container.pop(key)
        elif container is not document:
            del container[key]
    return document["root"]


@st.composite
def json_texts(draw: st.DrawFn, values: st.SearchStrategy[Any], damaged: int = 1) -> bytes:
    """Return the JSON text of a value; `damaged` in ten are changed as bytes."""
    return draw(damaged_bytes(written(draw(values)), damaged))


def written(value: Any, indent: int | None = None) -> bytes:
    """Return the JSON text of a value, with the words of `RAW` replaced."""
    text = json.dumps(value, indent=indent, ensure_ascii=False)
    for word, raw in RAW.items():
        text = text.replace(f'"{word}"', raw)
    return text.encode("utf-8", "surrogatepass")


@st.composite
def damaged_bytes(draw: st.DrawFn, data: bytes, damaged: int = 1) -> bytes:
    """Return the bytes; `damaged` in ten times with a few flipped, inserted, repeated or cut off."""
    if not damaged or draw(st.integers(0, 9)) < 10 - damaged:
        return data
    for _ in range(draw(st.integers(1, 3))):
        at = draw(st.integers(0, max(len(data) - 1, 0)))
        kind = draw(st.sampled_from(["flip", "cut", "insert", "repeat", "mark"]))
        if kind == "flip" and data:
            data = data[:at] + bytes([data[at] ^ (1 << draw(st.integers(0, 7)))]) + data[at + 1 :]
        elif kind == "cut":
            data = data[:at]
        elif kind == "insert":
            data = data[:at] + draw(st.binary(min_size=1, max_size=4)) + data[at:]
        elif kind == "repeat":
            data = data[:at] + data[at : at + 200] * 2 + data[at + 200 :]
        elif kind == "mark":
            data = b"\xef\xbb\xbf" + data
    return data

"""Converts dataclasses to JSON and back, strictly: no NaN, no unknown field, no missing field, no coercion.

Integers have at most 64 bits, as in the warehouse.

Supported types: str, int, float, bool, None, lists, string-keyed dicts, enums, dataclasses and unions of these.

Why not msgspec, which reads 10,000 records in 0.5 s instead of 3.3 s of CPU time: of dataclasses it takes unknown
fields and repeated names without a word, and its messages lack the value that was received.
"""

from __future__ import annotations

import json
import math
import re
import types
import typing
from collections.abc import Callable
from dataclasses import MISSING, field, fields, is_dataclass
from enum import StrEnum
from functools import cache, partial
from json.encoder import encode_basestring
from typing import Any, TypeVar, cast

T = TypeVar("T")

MOST_INT = 2**63 - 1  # of the warehouse's columns
PLAIN = frozenset({str, int, float, bool, type(None)})  # types that JSON has, too
SURROGATE = re.compile("[\\ud800-\\udfff]")


class CodecError(ValueError):
    """A value that does not fit the schema. The message states its path, the rule and the value received."""


def about(meaning: str, **kwargs: Any) -> Any:
    """Return a dataclass field with a description, from which documentation and the warehouse's columns are generated.

    The field is required unless a default is given.
    """
    return field(metadata={"meaning": meaning}, **kwargs)


def to_json(value: object) -> Any:
    """Convert a dataclass (or list, dict, scalar) to plain JSON values."""
    kind: Any = type(value)
    if kind in PLAIN:
        return value
    if (names := _field_names(kind)) is not None:
        return {name: to_json(getattr(value, name)) for name in names}
    if isinstance(value, dict):
        return {key: to_json(item) for key, item in value.items()}
    if isinstance(value, (list, tuple)):
        return [to_json(item) for item in value]
    return value.value if isinstance(value, StrEnum) else value


@cache
def _field_names(kind: type) -> tuple[str, ...] | None:
    return tuple(field.name for field in fields(kind)) if is_dataclass(kind) else None


def canonical(value: object) -> str:
    """Return the canonical JSON text of a value: sorted keys, no blanks, no NaN."""
    return json.dumps(to_json(value), sort_keys=True, separators=(",", ":"), allow_nan=False, ensure_ascii=False)


def dumps(value: object) -> str:
    """Return readable JSON with a final newline. Raises `CodecError` for NaN or infinity."""
    try:
        text = _indented(value, "\n") + "\n"
    except ValueError as error:
        raise CodecError(f"a record contains NaN or infinity; a value not measured must be null ({error})") from error
    return text.encode("utf-8", "backslashreplace").decode()  # half a surrogate pair is valid as its escape sequence


def _indented(value: object, line_break: str) -> str:
    """Return what `json.dumps(to_json(value), indent=1)` returns, in half its time.

    `json` indents in Python: a generator for each container, through which every piece of the text passes.
    """
    kind: Any = type(value)
    if (write := _WRITERS.get(kind)) is not None:
        return write(value)
    deeper = line_break + " "
    if isinstance(value, (list, tuple)):
        items = [_indented(item, deeper) for item in value]
        return f"[{deeper}{f',{deeper}'.join(items)}{line_break}]" if items else "[]"
    if (names := _field_names(kind)) is not None:
        texts = [f'"{name}": {_indented(getattr(value, name), deeper)}' for name in names]
    elif isinstance(value, dict):
        texts = [f"{encode_basestring(key)}: {_indented(item, deeper)}" for key, item in value.items()]
    else:
        return json.dumps(value, allow_nan=False, ensure_ascii=False)
    return f"{{{deeper}{f',{deeper}'.join(texts)}{line_break}}}" if texts else "{}"


def _of_float(value: float) -> str:
    return float.__repr__(value) if math.isfinite(value) else json.dumps(value, allow_nan=False)


_WRITERS: dict[type, Callable[[Any], str]] = {
    str: encode_basestring,
    float: _of_float,
    int: int.__repr__,
    bool: {True: "true", False: "false"}.__getitem__,
    type(None): {None: "null"}.__getitem__,
}


def loads(text: str | bytes) -> Any:
    """Parse strict JSON. Raises `CodecError` for bytes that are not UTF-8, invalid JSON, NaN, Infinity, equal keys."""
    try:
        decoded = text if isinstance(text, str) else text.decode("utf-8")
        return json.loads(decoded, parse_constant=_refuse_constant, object_pairs_hook=_unique)
    except (ValueError, RecursionError) as error:
        raise CodecError(f"not strict JSON: {error}") from error


def may_have_surrogates(raw: bytes) -> bool:
    """Return whether JSON may contain half of a surrogate pair: in UTF-8 only as an escape. One search of the text."""
    return b"\\ud" in raw or b"\\uD" in raw


def without_surrogates(data: Any) -> Any:
    """Return plain JSON values with U+FFFD for each half of a surrogate pair, which no terminal or file can show."""
    try:
        return _replaced(data)
    except RecursionError as error:
        raise CodecError("not strict JSON: nested too deeply") from error


def _replaced(data: Any) -> Any:
    if isinstance(data, str):
        return SURROGATE.sub("\ufffd", data)
    if isinstance(data, list):
        return [_replaced(item) for item in data]
    if isinstance(data, dict):
        return _unique([(_replaced(key), _replaced(item)) for key, item in data.items()])
    return data


def decode(cls: type[T], data: object, where: str = "record") -> T:
    """Build `cls` from plain JSON values. Raises `CodecError` with the path of the first value that does not fit."""
    try:
        return cast(T, _decoder(cls)(data))
    except _Misfit as misfit:
        raise CodecError(f"{where}{misfit.path}: {misfit.text}") from None


def _refuse_constant(name: str) -> object:
    raise CodecError(f"{name} is not JSON")


def _unique(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    members = dict(pairs)
    if len(members) < len(pairs):
        names = [key for key, _ in pairs]
        repeated_key = next(key for index, key in enumerate(names) if key in names[:index])
        raise CodecError(f"key {repeated_key!r} appears twice")
    return members


# Decoding. A run of 1,000 cells has thousands of records of 250 values: what depends only on the types is computed once
# per class, and the path of a value only where it does not fit.

_Decoder = Callable[[Any], Any]


class _Misfit(Exception):
    """A value that does not fit; `path` grows while the error passes the containers of the value."""

    def __init__(self, text: str, path: str = "") -> None:
        super().__init__(text)
        self.text, self.path = text, path


def _decoder(kind: Any) -> _Decoder:
    """Return a function from a plain value to one of a type. Not cached by type: `int | float` equals `float | int`."""
    origin, arguments = typing.get_origin(kind), typing.get_args(kind)
    if origin in (typing.Union, types.UnionType):
        return _union(arguments)
    if origin in (list, tuple):  # a tuple of any number of equal items
        return partial(_decode_items, origin, _decoder(arguments[0]))
    if origin is dict:
        return partial(_decode_mapping, _decoder(arguments[1]))
    if is_dataclass(kind):
        return partial(_decode_dataclass, cast(type, kind))
    if isinstance(kind, type) and issubclass(kind, StrEnum):
        return partial(_decode_enum, kind)
    return _decode_null if kind is types.NoneType else partial(_decode_scalar, kind)


@cache
def _fields(cls: type) -> tuple[dict[str, _Decoder], dict[str, None]]:
    """Return the decoder of each field of a dataclass, and the fields without a default, in their order."""
    hints = typing.get_type_hints(cls)
    required = [f.name for f in fields(cls) if f.default is MISSING and f.default_factory is MISSING]
    return {f.name: _decoder(hints[f.name]) for f in fields(cls)}, dict.fromkeys(required)


def _union(kinds: tuple[Any, ...]) -> _Decoder:
    others = tuple(_decoder(kind) for kind in kinds if kind is not types.NoneType)
    decoder = others[0] if len(others) == 1 else partial(_decode_first, others)
    return partial(_decode_optional, decoder) if types.NoneType in kinds else decoder


def _decode_optional(decoder: _Decoder, data: Any) -> Any:
    return None if data is None else decoder(data)


def _decode_first(decoders: tuple[_Decoder, ...], data: Any) -> Any:
    """Return the value of the first decoder that accepts it; if none does, the first one's problem counts."""
    problem = None
    for decoder in decoders:
        try:
            return decoder(data)
        except _Misfit as misfit:
            problem = problem or misfit
    raise problem or _Misfit(f"got {_short(data)}")


def _decode_items(kind: type, decoder: _Decoder, data: Any) -> Any:
    decoded: list[Any] = []
    for index, item in enumerate(_is(list, data)):
        try:
            decoded.append(decoder(item))
        except _Misfit as misfit:
            raise _Misfit(misfit.text, f"[{index}]{misfit.path}") from None
    return decoded if kind is list else kind(decoded)


def _decode_mapping(decoder: _Decoder, data: Any) -> Any:
    decoded = {}
    for key, item in _is(dict, data).items():
        try:
            decoded[key] = decoder(item)
        except _Misfit as misfit:
            raise _Misfit(misfit.text, f".{key}{misfit.path}") from None
    return decoded


def _decode_dataclass(cls: type, data: Any) -> Any:
    members = _is(dict, data)
    decoders, required = _fields(cls)
    if not members.keys() <= decoders.keys():
        raise _Misfit(f"unknown field {min(members.keys() - decoders.keys())!r}")
    if not required.keys() <= members.keys():
        raise _Misfit(f"field {next(name for name in required if name not in members)!r} is missing")
    decoded = {}
    for name, item in members.items():
        try:
            decoded[name] = decoders[name](item)
        except _Misfit as misfit:
            raise _Misfit(misfit.text, f".{name}{misfit.path}") from None
    return cls(**decoded)


def _decode_enum(kind: type[StrEnum], data: Any) -> StrEnum:
    try:
        return kind(_is(str, data))
    except ValueError as error:
        raise _Misfit(f"must be one of {', '.join(kind)}, got {_short(data)}") from error


def _decode_null(data: Any) -> None:
    if data is not None:
        raise _Misfit(f"must be null, got {_short(data)}")


def _decode_scalar(kind: type, data: Any) -> Any:
    if kind is float and type(data) is int:
        try:
            return float(data)
        except OverflowError as error:
            raise _Misfit(f"must be float, got {_short(data)}") from error
    if type(data) is not kind or (isinstance(data, float) and not math.isfinite(data)) or _too_large(data):
        raise _Misfit(f"must be {kind.__name__}, got {_short(data)}")
    return data


def _too_large(data: object) -> bool:
    return type(data) is int and abs(data) > MOST_INT


def _is(kind: type[T], data: Any) -> T:
    if not isinstance(data, kind):
        raise _Misfit(f"must be {kind.__name__}, got {_short(data)}")
    return data


def _short(value: object) -> str:
    if type(value) is int and abs(value) > 1 << 64:
        return f"an integer of {value.bit_length()} bits"
    text = repr(value)
    return text if len(text) <= 80 else text[:77] + "..."

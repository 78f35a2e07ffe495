"""Converts dataclasses to JSON and back, strictly: no NaN, no unknown field, no missing field, no coercion.

Supported types: str, int, float, bool, None, lists, string-keyed dicts, enums, dataclasses and unions of these.
"""

from __future__ import annotations

import json
import math
import types
import typing
from dataclasses import MISSING, field, fields, is_dataclass
from enum import StrEnum
from functools import cache
from typing import Any, TypeVar, cast

T = TypeVar("T")


class CodecError(ValueError):
    """A value that does not fit the schema. The message states its path, the rule and the value received."""


def about(meaning: str, **kwargs: Any) -> Any:
    """Return a dataclass field with a description, from which documentation and the warehouse's columns are generated.

    The field is required unless a default is given.
    """
    return field(metadata={"meaning": meaning}, **kwargs)


def to_json(value: object) -> Any:
    """Convert a dataclass (or list, dict, scalar) to plain JSON values."""
    if is_dataclass(value):
        return {f.name: to_json(getattr(value, f.name)) for f in fields(value)}
    if isinstance(value, dict):
        return {key: to_json(item) for key, item in value.items()}
    if isinstance(value, (list, tuple)):
        return [to_json(item) for item in value]
    return value.value if isinstance(value, StrEnum) else value


def canonical(value: object) -> str:
    """Return the canonical JSON text of a value: sorted keys, no blanks, no NaN."""
    return json.dumps(to_json(value), sort_keys=True, separators=(",", ":"), allow_nan=False, ensure_ascii=False)


def dumps(value: object) -> str:
    """Return readable JSON with a final newline. Raises `CodecError` for NaN or infinity."""
    try:
        return json.dumps(to_json(value), indent=1, allow_nan=False, ensure_ascii=False) + "\n"
    except ValueError as error:
        raise CodecError(f"a record contains NaN or infinity; a value not measured must be null ({error})") from error


def loads(text: str | bytes) -> Any:
    """Parse strict JSON. Raises `CodecError` for invalid JSON, NaN, Infinity and duplicate keys."""
    try:
        return json.loads(text, parse_constant=_refuse_constant, object_pairs_hook=_unique)
    except (ValueError, RecursionError) as error:
        raise CodecError(f"not strict JSON: {error}") from error


def decode(cls: type[T], data: object, where: str = "record") -> T:
    """Build `cls` from plain JSON values. Raises `CodecError` with the path of the first value that does not fit."""
    return cast(T, _decode(cls, data, where))


def _refuse_constant(name: str) -> object:
    raise CodecError(f"{name} is not JSON")


def _unique(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    found: dict[str, Any] = {}
    for key, item in pairs:
        if key in found:
            raise CodecError(f"key {key!r} appears twice")
        found[key] = item
    return found


@cache
def _hints(cls: type) -> dict[str, Any]:
    return typing.get_type_hints(cls)


def _decode(kind: Any, data: object, where: str) -> object:
    origin = typing.get_origin(kind)
    if origin in (typing.Union, types.UnionType):
        return _decode_union(typing.get_args(kind), data, where)
    if origin in (list, tuple):  # a tuple of any number of equal items
        item = typing.get_args(kind)[0]
        return origin(_decode(item, x, f"{where}[{i}]") for i, x in enumerate(_is(list, data, where)))
    if origin is dict:
        item = typing.get_args(kind)[1]
        return {_is(str, k, where): _decode(item, x, f"{where}.{k}") for k, x in _is(dict, data, where).items()}
    if is_dataclass(kind):
        return _decode_dataclass(cast(type, kind), data, where)
    if isinstance(kind, type) and issubclass(kind, StrEnum):
        try:
            return kind(_is(str, data, where))
        except ValueError as error:
            raise CodecError(f"{where}: must be one of {', '.join(kind)}, got {_short(data)}") from error
    return _decode_scalar(kind, data, where)


def _is(kind: type[T], data: object, where: str) -> T:
    if not isinstance(data, kind):
        raise CodecError(f"{where}: must be {kind.__name__}, got {_short(data)}")
    return data


def _decode_union(kinds: tuple[Any, ...], data: object, where: str) -> object:
    if data is None and types.NoneType in kinds:
        return None
    problem = None
    for kind in kinds:
        try:
            return _decode(kind, data, where)
        except CodecError as error:
            problem = problem or error  # of "x or null", the problem of x is the useful one
    raise problem or CodecError(f"{where}: got {_short(data)}")


def _decode_dataclass(cls: type, data: object, where: str) -> object:
    given = _is(dict, data, where)
    known = {f.name: f for f in fields(cls)}
    if unknown := sorted(given.keys() - known.keys()):
        raise CodecError(f"{where}: unknown field {unknown[0]!r}")
    missing = [n for n, f in known.items() if n not in given and f.default is MISSING and f.default_factory is MISSING]
    if missing:
        raise CodecError(f"{where}: field {missing[0]!r} is missing")
    hints = _hints(cls)
    return cls(**{name: _decode(hints[name], item, f"{where}.{name}") for name, item in given.items()})


def _decode_scalar(kind: Any, data: object, where: str) -> object:
    if kind is type(None):
        if data is not None:
            raise CodecError(f"{where}: must be null, got {_short(data)}")
        return None
    if kind is float and isinstance(data, int) and not isinstance(data, bool):
        try:
            return float(data)
        except OverflowError as error:
            raise CodecError(f"{where}: must be float, got {_short(data)}") from error
    if type(data) is not kind or (isinstance(data, float) and not math.isfinite(data)):
        raise CodecError(f"{where}: must be {kind.__name__}, got {_short(data)}")
    return data


def _short(value: object) -> str:
    if type(value) is int and abs(value) > 1 << 64:
        return f"an integer of {value.bit_length()} bits"
    text = repr(value)
    return text if len(text) <= 80 else text[:77] + "..."

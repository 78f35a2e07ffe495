"""The names of settings and parameters as text: two name spaces, and values that no reader takes for another one.

A setting of a matrix and a parameter of a workload may have the same name. As a key, such a parameter is `params.feed`,
and any other has its own name: so the names of a cell are as many as its settings and parameters. Promise: two texts
of `assignment` are equal only if name and value are, types included: `a="1"` is text, `a=1` a number.
"""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from dataclasses import fields

from keras_matrix.records.settings import Scalar, Settings

PARAMS = "params."
"""What precedes the name of a parameter where a setting has the same name."""
SETTINGS = tuple(one.name for one in fields(Settings) if one.name != "params")
_PLAIN_NAME = re.compile(r"[^\W\d]\w*")
_WORDS = frozenset({"true", "false", "none", "null"})
_BLANKS = re.compile(r"(?<= ) | (?=\")|(?<=\") ")  # of a quoted text: a page shows several as one


def parameter_key(name: str) -> str:
    """Return the key of a parameter among those of the settings, as in `width` and `params.feed`."""
    return f"{PARAMS}{name}" if name in SETTINGS or name.startswith(PARAMS) else name


def parameter_of(key: str) -> str | None:
    """Return the name of the parameter that a key names; None for the key of a setting."""
    return None if key in SETTINGS else key.removeprefix(PARAMS)


def named(settings: Settings) -> dict[str, Scalar]:
    """Return the settings and then the parameters of a cell by their keys."""
    params = {parameter_key(name): value for name, value in settings.params.items()}
    return {**{name: getattr(settings, name) for name in SETTINGS}, **params}


def unnamed(values: Mapping[str, Scalar]) -> Settings:
    """Return the settings with these values by key: the reverse of `named`. Raises `KeyError` if one is missing."""
    params = {name: value for key, value in values.items() if (name := parameter_of(key)) is not None}
    return Settings(**{name: values[name] for name in SETTINGS}, params=params)  # type: ignore[arg-type]


def assignment(key: str, value: Scalar | None) -> str:
    """Return a setting or parameter with its value as text without blanks outside of quotes, as in `jit=True`."""
    return f"{'.'.join(map(_name, _parts(key)))}={value_as_text(value)}"


def value_as_text(value: Scalar | None) -> str:
    """Return a value as text: in quotes if it is text that contains a blank or reads like another value."""
    if not isinstance(value, str):
        return str(value)
    return value if _is_plain(value) else _quoted(value)


def _parts(key: str) -> tuple[str, ...]:
    return (PARAMS[:-1], key.removeprefix(PARAMS)) if key.startswith(PARAMS) else (key,)


def _name(name: str) -> str:
    return name if _PLAIN_NAME.fullmatch(name) else _quoted(name)


def _is_plain(text: str) -> bool:
    if not text or text.lower() in _WORDS or not text.isprintable() or any(sign in text for sign in " \"'"):
        return False
    try:
        float(text)
    except ValueError:
        return True
    return False


def _quoted(text: str) -> str:
    """Return a text in quotes; characters without a visible form are escaped."""
    return _BLANKS.sub(r"\\u0020", json.dumps(text, ensure_ascii=not text.isprintable()))

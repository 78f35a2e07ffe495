"""Identifiers of cells and runs, and names of settings as text: equal settings give equal texts on any machine.

A setting of a matrix and a parameter of a workload may have the same name. As a key, such a parameter is `params.feed`,
and any other has its own name: so the names of a cell are as many as its settings and parameters. Promise: two texts
of `assignment` are equal only if name and value are, types included: `a="1"` is text, `a=1` a number.
"""

from __future__ import annotations

import hashlib
import json
import re
from collections.abc import Mapping
from dataclasses import fields
from datetime import datetime

from keras_matrix.records.codec import canonical
from keras_matrix.records.settings import Scalar, Settings

CELL_ID = re.compile(r"[0-9a-f]{16}")
# In the names of files: what not every file system accepts, or means a folder.
UNFIT = re.compile(r"[^A-Za-z0-9_.-]", re.ASCII)
NAME_CHARACTERS = 60
RUN_ID = re.compile(r"[0-9]{8}T[0-9]{6}Z-[0-9a-f]{6}")
# Settings added later: at their defaults they are not part of the identifier, so that a new axis ends no history.
INPUT = ("page_cache", "input_timers")
NO_WORK = (
    *INPUT,
    "nodes",
    "devices",
    "distribution",
    "gradient_accumulation_steps",
    "remat",
    "implementation",
    "env",
    "call",
    "outputs",
    "torch_compile",
    "xla_flags",
    "matmul_precision",
)  # at their defaults not part of the identity of compared work either
LATER = ("freed_memory", "set_by_matrix", *NO_WORK)
DEFAULTS = {field.name: field.default for field in fields(Settings)}
PARAMS = "params."
"""What precedes the name of a parameter where a setting has the same name."""
SETTINGS = tuple(field.name for field in fields(Settings) if field.name != "params")
_PLAIN_NAME = re.compile(r"[^\W\d]\w*")
_WORDS = frozenset({"true", "false", "none", "null"})
_BLANKS = re.compile(r"(?<= ) | (?=\")|(?<=\") ")  # of a quoted text: a page shows several as one


def cell_id(settings: Settings) -> str:
    """Return the first 16 hex digits of the sha256 of the canonical settings, without later ones at their default."""
    values = {name: getattr(settings, name) for name in DEFAULTS}
    text = canonical({name: v for name, v in values.items() if name not in LATER or v != DEFAULTS[name]})
    return hashlib.sha256(text.encode(errors="surrogatepass")).hexdigest()[:16]


def work_values(settings: Settings) -> dict[str, object]:
    """Return the settings that compared cells share, the backend left empty, those of `NO_WORK` only if not default."""
    values = {name: getattr(settings, name) for name in DEFAULTS} | {"backend": ""}
    return {name: value for name, value in values.items() if name not in NO_WORK or value != DEFAULTS[name]}


def run_id(now: datetime, token: str) -> str:
    """Return a run's identifier: the UTC second of its start, five hex digits of the microsecond, and one of `token`.

    Identifiers sort by time. The last digit distinguishes most hosts that start in the same microsecond.
    """
    return f"{now:%Y%m%dT%H%M%SZ}-{now.microsecond:05x}{hashlib.sha256(token.encode()).hexdigest()[0]}"


def run_id_problem(name: str) -> str | None:
    """Return why a name of a run's form is no run's identifier, None if it is one: its time must exist."""
    try:
        datetime.fromisoformat(name[:16])
    except ValueError:
        return f"its name must begin with a time that exists, such as 20260131T235959Z, got {name[:16]}"
    return None


def file_name(name: str, identity: object) -> str:
    """Return a file's name, without ending, for any text: at most 60 of its characters, and 8 digits of a hash.

    Texts of the same form differ by the hash of `identity`, a value that can be written as JSON.
    """
    digest = hashlib.sha256(canonical(identity).encode(errors="surrogatepass")).hexdigest()[:8]
    return f"{UNFIT.sub('_', name)[:NAME_CHARACTERS]}.{digest}"


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

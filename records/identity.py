"""Identifiers of cells and runs: pure functions, so that equal settings have equal identifiers on any machine."""

from __future__ import annotations

import hashlib
import re
from dataclasses import fields
from datetime import datetime

from keras_matrix.records.codec import canonical
from keras_matrix.records.settings import Settings

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
)  # at their defaults not part of the identity of compared work either
LATER = ("freed_memory", "set_by_matrix", *NO_WORK)
DEFAULTS = {field.name: field.default for field in fields(Settings)}


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

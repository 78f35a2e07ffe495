"""Names that mean something: of a cell, of a run, of a history.

Promise: pure functions of their arguments; equal things get equal names on any machine.
"""

from __future__ import annotations

import hashlib
import re
from dataclasses import fields
from datetime import datetime

from keras_matrix.records.codec import canonical
from keras_matrix.records.settings import Settings

CELL_ID = re.compile(r"[0-9a-f]{16}")
RUN_ID = re.compile(r"[0-9]{8}T[0-9]{6}Z-[0-9a-f]{6}")


# Settings that came after the first names were given: at its default none of them is part of a name, so that a new
# axis ends no history.
LATER = ("freed_memory", "set_by_matrix")
DEFAULTS = {field.name: field.default for field in fields(Settings)}


def cell_id(settings: Settings) -> str:
    """Return the first 16 hex digits of the sha256 of the canonical settings, less later ones at their default."""
    told = {name: getattr(settings, name) for name in DEFAULTS}
    return _digest(canonical({k: v for k, v in told.items() if k not in LATER or v != DEFAULTS[k]}))


def run_id(now: datetime, token: str) -> str:
    """Return a run's name: the UTC second it began, five hex digits of its microsecond, and one of `token`.

    Names sort by time. The last digit keeps hosts apart that begin in the same microsecond, mostly.
    """
    return f"{now:%Y%m%dT%H%M%SZ}-{now.microsecond:05x}{hashlib.sha256(token.encode()).hexdigest()[0]}"


def _digest(text: str) -> str:
    return hashlib.sha256(text.encode(errors="surrogatepass")).hexdigest()[:16]

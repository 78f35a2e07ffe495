"""Descriptions of record fields, from which the documentation and the warehouse's columns are generated."""

from __future__ import annotations

from dataclasses import field
from typing import Any


def about(meaning: str, **kwargs: Any) -> Any:
    """Return a dataclass field with a description; it is required unless a default is given."""
    return field(metadata={"meaning": meaning}, **kwargs)

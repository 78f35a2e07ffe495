"""How a field of a record says what it means: the documentation and the warehouse's columns take it from there."""

from __future__ import annotations

from dataclasses import field
from typing import Any


def about(meaning: str, **kwargs: Any) -> Any:
    """Return a dataclass field that carries its meaning; required unless a default is given."""
    return field(metadata={"meaning": meaning}, **kwargs)

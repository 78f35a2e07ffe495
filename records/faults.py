"""The names of faults that can be planted in a workload, where the program is to be seen finding them.

    slower:SHARE     every step does SHARE more floating-point work than the model's own

What they do is in `models.faults`.
"""

from __future__ import annotations

import math

KINDS = ("slower",)


class UnknownFault(ValueError):
    """No fault has this name, or its share is not one."""


def parse(text: str) -> tuple[str, float]:
    """Return a fault's kind and share. Raises `UnknownFault`."""
    kind, _, written = text.partition(":")
    try:
        share = float(written)
    except ValueError:
        share = math.nan
    if kind not in KINDS or not 0 < share <= 10:
        raise UnknownFault(
            f"must be {' or '.join(KINDS)}, a colon and a share above 0 and up to 10, as in slower:0.05; got {text!r}"
        )
    return kind, share

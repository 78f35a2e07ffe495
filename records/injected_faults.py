"""The names of faults that can be injected into a workload to test that the program detects and identifies them.

    slower:SHARE        every step does SHARE more floating-point work than the model's own
    copy:MEBIBYTES      every step additionally copies a tensor of this size
    recompile:EVERY     every EVERY-th step the training function is created, traced and compiled again
    first-epoch:SHARE   the first epoch takes SHARE longer, by additional work; later ones do not
    variance:SHARE      the same work on average, but some processes do less and others more

`models.injected_faults` implements them. A fault may need a `counterpart` in the base: with variance:SHARE every
process of the base does SHARE more work, those of the other side 0 or (1 + SHARE)**2 - 1 more. Both sides then have
the same geometric mean, which is compared.
"""

from __future__ import annotations

import math
import random
from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class ParameterLimit:
    """The name and the largest value of a kind's parameter; it must be above 0, and an integer if `integer`."""

    value: str
    most: float
    integer: bool = False


KINDS = {
    "slower": ParameterLimit("SHARE", 10),
    "copy": ParameterLimit("MEBIBYTES", 4096),
    "recompile": ParameterLimit("EVERY", 1_000_000, integer=True),
    "first-epoch": ParameterLimit("SHARE", 10),
    "variance": ParameterLimit("SHARE", 10),
}
NAMES = ", ".join(f"{kind}:{rule.value}" for kind, rule in KINDS.items())


class UnknownFault(ValueError):
    """The name of a fault is unknown, or its value is out of range."""


def parse(text: str) -> tuple[str, float]:
    """Return a fault's kind and value. Raises `UnknownFault`."""
    kind, _, value_text = text.partition(":")
    rule = KINDS.get(kind)
    if rule is None:
        raise UnknownFault(f"must be {NAMES}, as in slower:0.05; got {text!r}")
    try:
        value = float(value_text)
    except ValueError:
        value = math.nan
    if not 0 < value <= rule.most or (rule.integer and value != int(value)):
        number_text = "an integer" if rule.integer else "a number"
        raise UnknownFault(f"{kind}: {rule.value} must be {number_text} above 0 and up to {rule.most:g}; got {text!r}")
    return kind, value


def counterpart(fault: str | None) -> str | None:
    """Return the fault to inject into the base, so that the sides differ only in what this fault names."""
    if fault is None:
        return None
    kind, value = parse(fault)
    return f"slower:{value:g}" if kind == "variance" else None


def scattered_share(share: float, repeat: int) -> float:
    """Return the share of additional work of a repeat under variance:SHARE: 0 for one of each two repeats.

    Which of the two is a random choice that depends only on the repeat's number.
    """
    pair, second = divmod(repeat, 2)
    is_heavy = random.Random(pair).random() < 0.5
    return (1 + share) ** 2 - 1 if is_heavy == bool(second) else 0.0

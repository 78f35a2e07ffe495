"""The names of faults that can be planted in a workload, where the program is to be seen finding and naming them.

    slower:SHARE        every step does SHARE more floating-point work than the model's own
    copy:MEBIBYTES      every step copies a tensor of so many mebibytes once more
    recompile:EVERY     every EVERY-th step the training function is made, traced and compiled anew
    first-epoch:SHARE   the first epoch takes SHARE longer, by work of its own; no later one does
    variance:SHARE      the same work on average, but some processes do less and others more

What they do is in `models.injected_faults`. A fault may ask for something in the base too (`counterpart`): with
variance:SHARE every process of the base does SHARE more work, those of the other side none or (1 + SHARE)**2 - 1. Both
sides then have the same geometric mean, which is what is compared.
"""

from __future__ import annotations

import math
import random
from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Rule:
    """What a kind's value is called, and the most it may be; it is above 0, and whole where `whole` says so."""

    value: str
    most: float
    whole: bool = False


KINDS = {
    "slower": Rule("SHARE", 10),
    "copy": Rule("MEBIBYTES", 4096),
    "recompile": Rule("EVERY", 1_000_000, whole=True),
    "first-epoch": Rule("SHARE", 10),
    "variance": Rule("SHARE", 10),
}
NAMES = ", ".join(f"{kind}:{rule.value}" for kind, rule in KINDS.items())


class UnknownFault(ValueError):
    """No fault has this name, or its value is none that it takes."""


def parse(text: str) -> tuple[str, float]:
    """Return a fault's kind and value. Raises `UnknownFault`."""
    kind, _, written = text.partition(":")
    rule = KINDS.get(kind)
    if rule is None:
        raise UnknownFault(f"must be {NAMES}, as in slower:0.05; got {text!r}")
    try:
        value = float(written)
    except ValueError:
        value = math.nan
    if not 0 < value <= rule.most or (rule.whole and value != int(value)):
        number = "a whole number" if rule.whole else "a number"
        raise UnknownFault(f"{kind}: {rule.value} must be {number} above 0 and up to {rule.most:g}; got {text!r}")
    return kind, value


def counterpart(fault: str | None) -> str | None:
    """Return what the base carries where the other side carries this fault, so that only what it names differs."""
    if fault is None:
        return None
    kind, value = parse(fault)
    return f"slower:{value:g}" if kind == "variance" else None


def scattered_share(share: float, repeat: int) -> float:
    """Return how much more work this repeat does under variance:SHARE: of each two repeats one does none.

    Which of the two is drawn, the same for the same repeat.
    """
    pair, second = divmod(repeat, 2)
    heavy = random.Random(pair).random() < 0.5
    return (1 + share) ** 2 - 1 if heavy == bool(second) else 0.0

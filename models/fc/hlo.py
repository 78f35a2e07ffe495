"""What a compiled XLA program communicates, read from its text: where XLA itself puts the collectives in.

Promise: every collective of the program is counted, once for each time that it stands there; one that it does not know,
or that is not among all workers, is refused. It does not know loops: the programs of this package have none.
"""

from __future__ import annotations

import math
import re
from dataclasses import replace

from records.traffic import Traffic

BYTES = {"f64": 8, "f32": 4, "bf16": 2, "f16": 2, "s32": 4, "u32": 4, "pred": 1}
ARRAY = re.compile(r"\b(\w+)\[([\d,]*)\]")
COLLECTIVE = re.compile(
    r"^\s*(?:ROOT )?%?(?P<name>[\w.-]+) = (?P<made>.+?) "
    r"(?P<kind>all-reduce|all-gather|reduce-scatter|all-to-all|collective-\w+|ragged-all-to-all)"
    r"(?P<phase>-start|-done)?\((?P<rest>.*)$",
    re.MULTILINE,
)
# A list of groups, groups by their number and size, or a mesh and those of its axes along which they lie.
GROUPS = re.compile(r"replica_groups=(?:\{(\{[\d,]*\})\}|\[1,(\d+)\]|mesh\[([^]]*)\] \{([^}]*)\})")

# On a CPU XLA sums bfloat16 in float32 (all_reduce_promotion.cc), and names the function that adds for it.
PROMOTED = re.compile(r"to_apply=%?[\w.-]*_promoted")


def traffic_of(text: str, workers: int) -> Traffic:
    """Return what each worker takes part in when a program runs once. Raises `ValueError` for what it cannot count."""
    found = Traffic()
    for match in COLLECTIVE.finditer(text):
        kind, phase = match["kind"], match["phase"]
        if phase == "-done":
            continue
        if phase or kind not in ("all-reduce", "all-gather", "reduce-scatter"):
            raise ValueError(f"a program with {kind}{phase or ''} cannot be counted")
        if _group_size(match["rest"]) != workers:
            raise ValueError(f"a program with {kind} among other than all {workers} workers cannot be counted")
        field = f"{kind.replace('-', '_')}_bytes"
        size = _bytes(match["made"]) * (workers if kind == "reduce-scatter" else 1)
        if PROMOTED.search(match["rest"]):
            size //= 2  # as elsewhere, what was asked for counts
        found = replace(found, calls=found.calls + 1, **{field: getattr(found, field) + size})
    return found


def collectives(text: str) -> set[str]:
    """Return the names of a program's collective instructions, as a profiler tells them."""
    return {match["name"] for match in COLLECTIVE.finditer(text)}


def _bytes(made: str) -> int:
    """Return the size of the array, or of all arrays of a tuple, that an instruction makes."""
    return sum(
        BYTES[kind] * math.prod(int(size) for size in sizes.split(",") if size) for kind, sizes in ARRAY.findall(made)
    )


def _group_size(rest: str) -> int | None:
    match = GROUPS.search(rest)
    if match is None:
        return None
    if match[3]:
        sizes = dict(axis.split("=") for axis in match[3].split(","))
        return math.prod(int(sizes[axis]) for axis in match[4].split(","))
    return int(match[2]) if match[2] else match[1].count(",") + 1

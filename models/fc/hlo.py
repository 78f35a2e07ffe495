"""Counts the communication of a compiled XLA program from its text, if XLA itself inserts the collectives.

Every occurrence of a collective in the program is counted once; an unknown one, or one that is not among all workers,
raises an error. Loops are not supported: the programs of this package have none.

XLA:GPU makes collectives asynchronous. In the text of a program a collective is then one of

    all-reduce-start          with the shape of the result, as in the synchronous form
    all-gather-start          with the shape (operands, results)
    collective-permute-start  with the shape (operand, result), on some devices followed by two u32[] of context
    reduce-scatter-start      and all-to-all-start, with the shape ((operands), results, context): short for
    async-start               with the same shape, whose `calls` names a computation that contains the synchronous form

each with a `-done` that takes the start as its operand (HloInstruction::CreateAsyncStart in
xla/hlo/ir/hlo_instruction.h and the texts of xla/hlo/parser/hlo_parser_test.cc in github.com/openxla/xla). The counts
are the same for all forms.
"""

from __future__ import annotations

import math
import re
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass, replace

from keras_matrix.records.dtypes import ELEMENT_BYTES
from keras_matrix.records.fc.communication import Traffic

TYPES = {"f64": "float64", "f32": "float32", "bf16": "bfloat16", "f16": "float16", "s32": "int32", "u32": "uint32",
         "pred": "bool"}  # fmt: skip
ARRAY = re.compile(r"\b(\w+)\[([\d,]*)\]")
COMPUTATION = re.compile(r"^(?:ENTRY )?%?(?P<name>[\w.-]+) \(.*\{\s*$")
COLLECTIVE = re.compile(
    r"^\s*(?:ROOT )?%?(?P<name>[\w.-]+) = (?P<shape>.+?) "
    r"(?P<kind>all-reduce|all-gather|reduce-scatter|all-to-all|collective-permute|collective-\w+|ragged-all-to-all)"
    r"(?P<phase>-start|-done)?\((?P<rest>.*)$"
)
WRAPPER = re.compile(
    r"^\s*(?:ROOT )?%?(?P<name>[\w.-]+) = .+? async-(?P<phase>start|update|done)\(%?(?P<operand>[\w.-]+)?(?P<rest>.*)$"
)
CALLS = re.compile(r"\bcalls=%?([\w.-]+)")
PAIRS = re.compile(r"source_target_pairs=\{(.*?\}|)\}")
# A list of groups, groups by number and size, or a mesh and the axes of the groups.
GROUPS = re.compile(r"replica_groups=(?:\{(\{[\d,]*\})\}|\[1,(\d+)\]|mesh\[([^]]*)\] \{([^}]*)\})")

# On a CPU XLA sums bfloat16 in float32 (all_reduce_promotion.cc), with a name for the function that adds.
PROMOTED = re.compile(r"to_apply=%?[\w.-]*_promoted")


@dataclass(frozen=True, slots=True)
class CollectiveInstruction:
    """An instruction that communicates, in the computation named `within`."""

    name: str
    kind: str
    shape: str
    phase: str
    rest: str
    within: str


def traffic_of(text: str, workers: int) -> Traffic:
    """Return the communication of each worker in one run of a program. Raises `ValueError` for unknown collectives."""
    times = Counter(
        called[1]
        for match in _matches(WRAPPER, text)
        if match["phase"] == "start" and (called := CALLS.search(match[0]))
    )
    found = Traffic()
    for one in _collectives(text):
        if one.phase != "-done":
            for _ in range(times.get(one.within, 1)):
                found = _with(found, one, workers)
    return found


def collectives(text: str) -> set[str]:
    """Return the names of a program's collective instructions, as a profiler reports them."""
    found = list(_collectives(text))
    names, within = {one.name for one in found}, {one.within for one in found}
    for match in _matches(WRAPPER, text):
        called = CALLS.search(match["rest"])
        if (called and called[1] in within) or match["operand"] in names:
            names.add(match["name"])
    return names


def _matches(pattern: re.Pattern[str], text: str) -> Iterator[re.Match[str]]:
    return (match for line in text.splitlines() if (match := pattern.match(line)))


def _collectives(text: str) -> Iterator[CollectiveInstruction]:
    within = ""
    for line in text.splitlines():
        if computation := COMPUTATION.match(line):
            within = computation["name"]
        elif match := COLLECTIVE.match(line):
            yield CollectiveInstruction(**match.groupdict(""), within=within)


def _with(found: Traffic, one: CollectiveInstruction, workers: int) -> Traffic:
    """Return the traffic with one collective more."""
    size = _bytes(_result(one))
    if one.kind == "collective-permute":
        pairs = _pairs(one.rest)
        return replace(found, handed_bytes=found.handed_bytes + pairs * size, hand_overs=found.hand_overs + pairs)
    if one.kind not in ("all-reduce", "all-gather", "reduce-scatter", "all-to-all"):
        raise ValueError(f"a program with {one.kind}{one.phase} cannot be counted")
    if _group_size(one.rest) != workers:
        raise ValueError(f"a program with {one.kind} among other than all {workers} workers cannot be counted")
    if one.kind == "all-to-all":
        # Each of n workers retains its own n-th part: together they send n (n - 1) / n of the size of one array.
        return replace(found, calls=found.calls + 1, group_sent_bytes=found.group_sent_bytes + (workers - 1) * size)
    field = f"{one.kind.replace('-', '_')}_bytes"
    size *= workers if one.kind == "reduce-scatter" else 1
    if PROMOTED.search(one.rest):
        size //= 2  # as elsewhere, the requested type counts
    return replace(found, calls=found.calls + 1, **{field: getattr(found, field) + size})


def _result(one: CollectiveInstruction) -> str:
    """Return the shape of what a collective gives, the same in its synchronous and its asynchronous form."""
    if one.phase != "-start" or one.kind == "all-reduce":
        return one.shape
    parts = _parts(one.shape)
    if len(parts) < 2:
        raise ValueError(f"{one.kind}-start: must have the shape (operands, results), got {one.shape}")
    return parts[1]


def _parts(shape: str) -> list[str]:
    """Return the parts of a tuple's shape, those of tuples within it together."""
    parts, depth = [""], 0
    for character in shape.strip().removeprefix("(").removesuffix(")"):
        depth += (character in "([{") - (character in ")]}")
        if character == "," and depth == 0:
            parts.append("")
        else:
            parts[-1] += character
    return parts


def _pairs(rest: str) -> int:
    match = PAIRS.search(rest)
    return match[1].count("{") if match else 0


def _bytes(shape: str) -> int:
    """Return the size of an array, or of all arrays of a tuple. Raises `ValueError` for an unknown element type."""
    size = 0
    for kind, lengths in ARRAY.findall(shape):
        if kind not in TYPES:
            raise ValueError(f"element type {kind} of {shape} cannot be counted; known are {', '.join(TYPES)}")
        size += ELEMENT_BYTES[TYPES[kind]] * math.prod(int(length) for length in lengths.split(",") if length)
    return size


def _group_size(rest: str) -> int | None:
    match = GROUPS.search(rest)
    if match is None:
        return None
    if match[3]:
        sizes = dict(axis.split("=") for axis in match[3].split(","))
        return math.prod(int(sizes[axis]) for axis in match[4].split(","))
    return int(match[2]) if match[2] else match[1].count(",") + 1

"""Measures the time of the collectives of a compiled step with the backend's own profiler, in separate epochs.

Collectives inside a compiled program cannot be timed from outside, so the profiler's events are read. The steps of
these epochs include the unknown cost of the profiler.

On a CPU a collective is an event of the host's threads. On a GPU the host only launches it: the time is that of a
kernel on a stream of a device plane, whose statistic `hlo_op` (JAX) or `tf_op` (TensorFlow) is the operation
(`StatType` in tsl/profiler/utils/xplane_schema.h). If an accelerator has events, those of the host are launches and are
not read. NCCL's kernels and copies from GPU to GPU are communication, whatever their operation. Copies between GPUs
without a direct connection, through the host's memory, are not detected.

Counts the communication of a compiled XLA program from its text, if XLA itself inserts the collectives.

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
import tempfile
from collections import Counter
from collections.abc import Callable, Container, Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from time import perf_counter

import numpy as np
from numpy.typing import NDArray

from keras_matrix.records.dtypes import ELEMENT_BYTES
from keras_matrix.records.fc.communication import Communication, TimingMethod, Traffic
from keras_matrix.records.traces.neutral import covered
from keras_matrix.records.traces.xspace.reader import DERIVED
from keras_matrix.records.traces.xspace.xplane import UNTOLD, Events, Places, Plane, PlaneLine, planes

InsideS = Callable[[Callable[[], None]], float]
"""Runs a function under the profiler; returns the seconds inside collectives, the mean over the workers."""
ACCELERATORS = ("/device:GPU:", "/device:TPU:")
# NCCL before 2.19 named its kernels ncclKernel_..., since then ncclDevKernel_... (src/device/generate.py).
COMMUNICATION_KERNEL = re.compile(r"^(?:void )?nccl\w*Kernel|^MemcpyP2P$")
# The name scope of the operations of TensorFlow's collectives; the number of workers that wait for one follows.
SCOPE = "collective_of_"
COLLECTIVE = re.compile(rf"{SCOPE}(\d+)")
TYPES = {"f64": "float64", "f32": "float32", "bf16": "bfloat16", "f16": "float16", "s32": "int32", "u32": "uint32",
         "pred": "bool"}  # fmt: skip
ARRAY = re.compile(r"\b(\w+)\[([\d,]*)\]")
COMPUTATION = re.compile(r"^(?:ENTRY )?%?(?P<name>[\w.-]+) \(.*\{\s*$")
XLA_COLLECTIVE = re.compile(
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


def by_profiling(inside_s: InsideS, run: Callable[[int], None], steps: int, epochs: int) -> Communication | None:
    """Return the times of a step over a number of epochs; None if the profiler recorded no collective.

    `run` takes the number of steps and returns with every device idle.
    """
    step_times_s: list[float] = []
    compute_times_s: list[float] = []

    def timed() -> None:
        begun_s = perf_counter()
        run(steps)
        step_times_s.append((perf_counter() - begun_s) / steps)

    for _ in range(epochs + 1):
        seen_s = inside_s(timed) / steps
        if not seen_s:
            return None
        compute_times_s.append(step_times_s[-1] - seen_s)
    # The first epoch includes the start of the profiler.
    return Communication(TimingMethod.PROFILED, step_times_s[1:], compute_times_s[1:])


def seen_by(backend: str, run: Callable[[], None]) -> list[Plane]:
    """Run a function under the profiler of JAX or TensorFlow; return the planes of its file."""
    from keras_matrix.models.profiling import load, recorded

    with tempfile.TemporaryDirectory(prefix="seen-") as folder:
        path = Path(folder) / "seen"
        with recorded(load(backend), path):
            run()
        return list(planes(path.read_bytes()))


def jax_collectives_s(planes: Sequence[Plane], names: Container[str]) -> float:
    """Return the seconds in instructions with these names, the mean over the devices."""
    spans: dict[str, list[tuple[float, float]]] = {}
    for plane, line in _lines(planes):
        events = line.events()
        ops, words = events.words("hlo_op")
        is_named = np.isin(ops, [index for index, word in enumerate(words) if word in names])
        kinds = _kinds(plane, names.__contains__)
        mask = is_named | (ops == UNTOLD) & np.isin(events.kinds, kinds) | _kernels(plane, events)
        ordinals, has_ordinal = events.numbers("device_ordinal")
        columns = (ordinals, has_ordinal, events.start_ns, events.end_ns)
        for ordinal, is_known, start_ns, end_ns in zip(*(column[mask].tolist() for column in columns), strict=True):
            device = str(ordinal) if is_known and not _is_accelerator(plane) else plane.name
            spans.setdefault(device, []).append((start_ns, end_ns))
    return sum(map(covered, spans.values())) / 1e9 / max(1, len(spans))


def tensorflow_collectives_s(planes: Sequence[Plane], workers: int) -> float:
    """Return the seconds in operations in the scope of a collective, the mean over the workers.

    An operation starts when its inputs are ready, so that waiting for another worker is not included.
    """
    inside_s = 0.0
    for plane, line in _lines(planes):
        events = line.events()
        waiting_ns = _waiting_by_operation(events) if _is_accelerator(plane) else _waiting_by_name(plane, events)
        waiting_ns = np.where(_kernels(plane, events) & (waiting_ns == 0), 1, waiting_ns)
        inside_s += float(((events.end_ns - events.start_ns) * waiting_ns).sum()) / 1e9 / workers
    return inside_s


def _lines(planes: Sequence[Plane]) -> Iterator[tuple[Plane, PlaneLine]]:
    """Yield the lines with work: streams of the accelerators, or without any the host's threads."""
    on_devices = [plane for plane in planes if _is_accelerator(plane) and any(line.begins.size for line in plane.lines)]
    for plane in on_devices or planes:
        for line in plane.lines:
            if not (on_devices and line.name.startswith(DERIVED)):
                yield plane, line


def _is_accelerator(plane: Plane) -> bool:
    return plane.name.startswith(ACCELERATORS)


def _kinds(plane: Plane, is_wanted: Callable[[str], object]) -> list[int]:
    return [kind for kind, name in plane.event_names.items() if is_wanted(name)]


def _kernels(plane: Plane, events: Events) -> NDArray[np.bool_]:
    """Return which events of a device are kernels that communicate, whatever operation launched them."""
    kinds = _kinds(plane, COMMUNICATION_KERNEL.search) if _is_accelerator(plane) else []
    return np.isin(events.kinds, kinds)


def _waiting_by_operation(events: Events) -> Places:
    """Return for each kernel how many workers wait for it, by the operation that it belongs to."""
    ops, words = events.words("tf_op")
    return np.array([*_waiting(words), 0], np.int64)[ops]  # UNTOLD is -1, the last


def _waiting_by_name(plane: Plane, events: Events) -> Places:
    """Return for each event of the host how many workers wait for it, by its name."""
    kinds, inverse = np.unique(events.kinds, return_inverse=True)
    return np.array([*_waiting(plane.event_names.get(kind, "") for kind in kinds.tolist()), 0], np.int64)[inverse]


def _waiting(names: Iterable[str]) -> list[int]:
    return [int(match[1]) if (match := COLLECTIVE.search(name)) else 0 for name in names]


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
    calls_by_computation = Counter(
        call_match[1]
        for match in _matches(WRAPPER, text)
        if match["phase"] == "start" and (call_match := CALLS.search(match[0]))
    )
    traffic = Traffic()
    for instruction in _collectives(text):
        if instruction.phase != "-done":
            for _ in range(calls_by_computation.get(instruction.within, 1)):
                traffic = _with(traffic, instruction, workers)
    return traffic


def collectives(text: str) -> set[str]:
    """Return the names of a program's collective instructions, as a profiler reports them."""
    instructions = list(_collectives(text))
    names, computations = (
        {instruction.name for instruction in instructions},
        {instruction.within for instruction in instructions},
    )
    for match in _matches(WRAPPER, text):
        call_match = CALLS.search(match["rest"])
        if (call_match and call_match[1] in computations) or match["operand"] in names:
            names.add(match["name"])
    return names


def _matches(pattern: re.Pattern[str], text: str) -> Iterator[re.Match[str]]:
    return (match for line in text.splitlines() if (match := pattern.match(line)))


def _collectives(text: str) -> Iterator[CollectiveInstruction]:
    computation_name = ""
    for line in text.splitlines():
        if header := COMPUTATION.match(line):
            computation_name = header["name"]
        elif match := XLA_COLLECTIVE.match(line):
            yield CollectiveInstruction(**match.groupdict(""), within=computation_name)


def _with(traffic: Traffic, instruction: CollectiveInstruction, workers: int) -> Traffic:
    """Return the traffic with one collective more."""
    result_bytes = _bytes(_result(instruction))
    if instruction.kind == "collective-permute":
        pairs = _pairs(instruction.rest)
        return replace(
            traffic, handed_bytes=traffic.handed_bytes + pairs * result_bytes, hand_overs=traffic.hand_overs + pairs
        )
    if instruction.kind not in ("all-reduce", "all-gather", "reduce-scatter", "all-to-all"):
        raise ValueError(f"a program with {instruction.kind}{instruction.phase} cannot be counted")
    if _group_size(instruction.rest) != workers:
        raise ValueError(f"a program with {instruction.kind} among other than all {workers} workers cannot be counted")
    if instruction.kind == "all-to-all":
        # Each of n workers retains its own n-th part: together they send n (n - 1) / n of the size of one array.
        return replace(
            traffic, calls=traffic.calls + 1, group_sent_bytes=traffic.group_sent_bytes + (workers - 1) * result_bytes
        )
    field = f"{instruction.kind.replace('-', '_')}_bytes"
    result_bytes *= workers if instruction.kind == "reduce-scatter" else 1
    if PROMOTED.search(instruction.rest):
        result_bytes //= 2  # as elsewhere, the requested type counts
    return replace(traffic, calls=traffic.calls + 1, **{field: getattr(traffic, field) + result_bytes})


def _result(instruction: CollectiveInstruction) -> str:
    """Return the shape of what a collective gives, the same in its synchronous and its asynchronous form."""
    if instruction.phase != "-start" or instruction.kind == "all-reduce":
        return instruction.shape
    parts = _parts(instruction.shape)
    if len(parts) < 2:
        raise ValueError(f"{instruction.kind}-start: must have the shape (operands, results), got {instruction.shape}")
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


def _pairs(attributes: str) -> int:
    match = PAIRS.search(attributes)
    return match[1].count("{") if match else 0


def _bytes(shape: str) -> int:
    """Return the size of an array, or of all arrays of a tuple. Raises `ValueError` for an unknown element type."""
    size_bytes = 0
    for kind, lengths in ARRAY.findall(shape):
        if kind not in TYPES:
            raise ValueError(f"element type {kind} of {shape} cannot be counted; known are {', '.join(TYPES)}")
        size_bytes += ELEMENT_BYTES[TYPES[kind]] * math.prod(int(length) for length in lengths.split(",") if length)
    return size_bytes


def _group_size(attributes: str) -> int | None:
    match = GROUPS.search(attributes)
    if match is None:
        return None
    if match[3]:
        size_by_axis = dict(axis.split("=") for axis in match[3].split(","))
        return math.prod(int(size_by_axis[axis]) for axis in match[4].split(","))
    return int(match[2]) if match[2] else match[1].count(",") + 1

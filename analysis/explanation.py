"""Explains the change of a step time: differences with their shares, facts, and what is unexplained.

The change is that of the cells' mean step times, measured without the profiler. Each part of the traced steps is in one
difference at most, and their times are those of a step: so the listed differences, the others and the unexplained rest
add up to the change. Each has the interval that follows from the scatter of the traced steps.

Guarantee: pure; nothing is explained where the interval of the ratio contains 1. Limits: one process of each side is
traced, so that the difference between processes is unexplained; parts of a step that overlap differently than before
change each other's share.

What the profilers added to the traced steps is removed first (`without_profiler`). Each kind of difference is a
function and a row of `KINDS`: `claims(pair, rows)` takes those rows of a pair that it explains, in groups; the next
kind gets the others.
"""

from __future__ import annotations

import re
import statistics
from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path

from keras_matrix.analysis.comparison.same_work import differing
from keras_matrix.analysis.stats.blocks import Estimate, median_of_known
from keras_matrix.analysis.step_parts import (
    WORKING,
    AlignedPart,
    Part,
    PartKey,
    StepParts,
    TrackPlace,
    aligned,
    half_width_s,
)
from keras_matrix.analysis.whatif.corrections import MOST_COST_NS
from keras_matrix.analysis.whatif.cost_operations import OperationKind, kind_of
from keras_matrix.records.identity import named, value_as_text
from keras_matrix.records.schema import MEASURED, Record
from keras_matrix.records.text import seconds
from keras_matrix.records.traces.neutral import Phase
from keras_matrix.records.traces.programs import ProgramSummary, stored_programs

SHOWN = 3
LEAST_SHARE = 0.01
LEAST_SLOWER = 0.2
MOST_COST_S = MOST_COST_NS / 1e9
HALVINGS = 40
MOST_NAMES = 3
LONGEST_NAME = 60
_FUSION = re.compile(r"fusion \((.*)\)")
LEAST_NAMED = 0.02  # of the change of all
NAMES = {Phase.UPDATE: "optimizer", None: "operations without layer and phase"}
SCATTER = {"page faults per step": 0.2, "memory": 0.05, "times": 0.2}
MOST_KINDS_SHOWN = 8
# Kinds of an XLA program of which a change is shown before that of others.
FIRST_KINDS = ("fusion", "copy", "transpose", "reduce")
Number = float | int | None
Values = Mapping[str, Callable[[Record], Number]]
TIMES: Values = {
    "import": lambda record: record.times.import_time_s,
    "build": lambda record: record.times.build_time_s,
    "trace": lambda record: record.times.trace_time_s,
    "compile": lambda record: record.times.compile_time_s,
    "first step": lambda record: record.times.first_step_time_s,
    "first epoch": lambda record: record.times.first_epoch_time_s,
}
MEMORY: Values = {
    "peak host memory": lambda record: record.memory.peak_host_memory_bytes,
    "peak device memory": lambda record: record.memory.peak_device_memory_bytes,
}
COUNTS: Values = {
    "recompilations in the measured epochs": lambda record: (
        record.resolved.recompiles_timed if record.resolved else None
    ),
    "graph breaks": lambda record: record.resolved.graph_breaks if record.resolved else None,
    "FLOPs of a forward pass": lambda record: record.resolved.forward_flops if record.resolved else None,
}


@dataclass(frozen=True, slots=True)
class Side:
    """One side: its measured records, and of the traced one of them the parts of its steps."""

    records: Sequence[Record]
    traced: Record
    parts: StepParts

    @property
    def step_time_s(self) -> float:
        """The mean step time over its processes."""
        return statistics.geometric_mean(time_s for record in self.records if (time_s := record.times.step_time_s))


@dataclass(frozen=True, slots=True)
class Difference:
    """A difference: seconds of a step on both sides, and its share of the change of the step time.

    `half_width_s` is that of the 95 % interval of its change, from the scatter of the traced steps.
    """

    kind: str
    title: str
    base_s: float
    new_s: float
    change_s: float
    share: float
    half_width_s: float | None
    details: tuple[str, ...] = ()

    @property
    def is_clear(self) -> bool:
        """Whether it is larger than the scatter of the traced steps."""
        return self.half_width_s is not None and abs(self.change_s) > self.half_width_s


@dataclass(frozen=True, slots=True)
class Explanation:
    """The change of a step time from base to new, and what explains it.

    `differences` are the largest ones, empty if there is `nothing` larger than the noise; `others_s` is the sum of
    `others` further ones. `profiler_costs_s` is what was removed of each operation of base and of new. `ratio` has no
    interval if it is not known.
    """

    base_s: float
    new_s: float
    ratio: Estimate
    nothing: bool
    differences: tuple[Difference, ...] = ()
    others: int = 0
    others_s: float = 0.0
    unexplained_s: float = 0.0
    profiler_costs_s: tuple[float, float] = (0.0, 0.0)
    same_backend: bool = True
    facts: tuple[Fact, ...] = ()
    caveats: tuple[str, ...] = field(default=())

    @property
    def change_s(self) -> float:
        """By how much a step became longer."""
        return self.new_s - self.base_s

    def share(self, time_s: float) -> float:
        """Return the share of a time in the change."""
        return time_s / self.change_s if self.change_s else 0.0


def explain(
    base: Side, new: Side, ratio: Estimate, facts: Sequence[Fact] = (), caveats: Sequence[str] = ()
) -> Explanation:
    """Return what explains the change from base to new; `ratio` is new / base."""
    same_backend = base.traced.settings.backend == new.traced.settings.backend
    is_noise = ratio.bounds is not None and not ratio.excludes(1.0)
    base_s, new_s = base.step_time_s, new.step_time_s
    if is_noise:
        return Explanation(
            base_s, new_s, ratio, True, same_backend=same_backend, facts=tuple(facts), caveats=tuple(caveats)
        )
    sides = (base, new)
    side_parts, costs_s = _without_profiler(base, new, alike=same_backend and mode(base.traced) == mode(new.traced))
    alignment = aligned(*side_parts, same_backend=same_backend)
    claims = claimed(ComparedSides(base.traced, new.traced, alignment.rows))
    change_s = new_s - base_s
    differences = sorted(
        (_difference(*named_claim, change_s) for named_claim in claims),
        key=lambda difference: -abs(difference.change_s),
    )
    shown_differences = [difference for difference in differences if abs(difference.share) >= LEAST_SHARE][:SHOWN]
    other_differences = [difference for difference in differences if difference not in shown_differences]
    others_s = sum(difference.change_s for difference in other_differences)
    renamed_texts = [
        f"layer {new_layer} of new is paired with {base_layer} of base by its position"
        for new_layer, base_layer in alignment.renamed.items()
    ]
    return Explanation(
        base_s,
        new_s,
        ratio,
        nothing=False,
        differences=tuple(shown_differences),
        others=len(other_differences),
        others_s=others_s,
        unexplained_s=change_s - others_s - sum(difference.change_s for difference in shown_differences),
        profiler_costs_s=costs_s,
        same_backend=same_backend,
        facts=tuple(facts),
        caveats=(
            *caveats,
            *_slower_traces(sides, side_parts),
            *renamed_texts,
            *_two_backends(base, new, same_backend=same_backend),
        ),
    )


def _without_profiler(base: Side, new: Side, *, alike: bool) -> tuple[list[StepParts], tuple[float, float]]:
    sides = [TracedSide(side.parts, side.traced.times.step_time_s) for side in (base, new)]
    if alike:
        side_parts, cost_s = without_profiler(sides)
        return side_parts, (cost_s, cost_s)
    (base_parts,), base_cost_s = without_profiler(sides[:1])
    (new_parts,), new_cost_s = without_profiler(sides[1:])
    return [base_parts, new_parts], (base_cost_s, new_cost_s)


def _slower_traces(sides: Sequence[Side], side_parts: Sequence[StepParts]) -> list[str]:
    """Return which traced steps took another time than measured, which the profiler's cost does not account for."""
    texts = []
    for name, side, step_parts in zip(("base", "new"), sides, side_parts, strict=True):
        measured_s = side.traced.times.step_time_s
        if measured_s and abs(step_parts.step_time_s / measured_s - 1) > LEAST_SLOWER:
            times_text = f"{step_parts.step_time_s / measured_s:.2f} times as long as"
            texts.append(
                f"the traced steps of {name} took {times_text} those that the same process measured: the machine was "
                "busier or quieter then"
            )
    return texts


def _difference(kind: str, claim: Claim, change_s: float) -> Difference:
    base_s, new_s = sum(row.base_s for row in claim.rows), sum(row.new_s for row in claim.rows)
    own_s = total_s(claim.rows)
    share = own_s / change_s if change_s else 0.0
    return Difference(kind, claim.title, base_s, new_s, own_s, share, half_width_s(claim.rows), claim.details)


def _two_backends(base: Side, new: Side, *, same_backend: bool) -> list[str]:
    if same_backend:
        return []
    names_text = f"{base.traced.settings.backend} and {new.traced.settings.backend}"
    return [
        f"{names_text} have different operations: compared by layer and phase only; what has neither is unexplained"
    ]


@dataclass(frozen=True, slots=True)
class TracedSide:
    """The parts of a traced step, and the step time of the same process without the profiler, None if unknown."""

    parts: StepParts
    measured_s: float | None


def without_profiler(sides: Sequence[TracedSide]) -> tuple[list[StepParts], float]:
    """Return the parts of these sides, whose events are alike, without the profiler's cost, and that of each event.

    A profiler costs about the same for each event, on the thread that records it (`analysis.whatif.corrections` does
    the same for replays). So each operation and each gap of a CPU's threads becomes shorter by the same time, but never
    negative, until the step is as long as the same process measured without the profiler. Two sides of one backend that
    compile the step alike have the smaller cost of both: what a busier machine added to the trace of one side is not
    the profiler's, and stays unexplained. Otherwise the events differ, and so do their costs. What runs on a device is
    unchanged.
    """
    cost_s = min(map(_needed_s, sides))
    return [_cheaper(side.parts, cost_s) if cost_s else side.parts for side in sides], cost_s


def _needed_s(side: TracedSide) -> float:
    """Return the cost of each event that makes a side as long as measured, at most `MOST_COST_S`."""
    added_s = side.parts.step_time_s - side.measured_s if side.measured_s else 0.0
    if added_s <= 0:
        return 0.0
    low_s, high_s = 0.0, MOST_COST_S
    for _ in range(HALVINGS):
        middle_s = (low_s + high_s) / 2
        low_s, high_s = (low_s, middle_s) if _removed_s(side.parts, middle_s) >= added_s else (middle_s, high_s)
    return high_s


def _removed_s(step_parts: StepParts, cost_s: float) -> float:
    return sum(min(part.mean_s, _cost_s(step_parts, key, part, cost_s)) for key, part in step_parts.parts.items())


def _cost_s(step_parts: StepParts, key: PartKey, part: Part, cost_s: float) -> float:
    """Return the cost of a part's events, of which those on a device have none."""
    return cost_s * part.count if step_parts.device == "cpu" or key.place not in WORKING else 0.0


def _cheaper(parts: StepParts, cost_s: float) -> StepParts:
    return replace(parts, parts={key: _shortened(parts, key, part, cost_s) for key, part in parts.parts.items()})


def _shortened(step_parts: StepParts, key: PartKey, part: Part, cost_s: float) -> Part:
    mean_s = part.mean_s
    return part.scaled(max(0.0, 1 - _cost_s(step_parts, key, part, cost_s) / mean_s)) if mean_s > 0 else part


@dataclass(frozen=True, slots=True)
class ComparedSides:
    """Both sides: a measured record of each, and all rows."""

    base: Record
    new: Record
    rows: tuple[AlignedPart, ...]

    @property
    def same_backend(self) -> bool:
        """Whether both sides have one backend, so that their operations can be compared."""
        return self.base.settings.backend == self.new.settings.backend


@dataclass(frozen=True, slots=True)
class Claim:
    """The rows that a kind explains together, under a title; `details` are further lines."""

    title: str
    rows: tuple[AlignedPart, ...]
    details: tuple[str, ...] = ()


def total_s(rows: Iterable[AlignedPart]) -> float:
    """Return by how much these rows became longer, in seconds."""
    return sum(row.change_s for row in rows)


def kind_of_row(row: AlignedPart) -> OperationKind:
    """Return the kind of a row's operation; of XLA's fusions, that of the operation that gives the fusion its name."""
    op = row.key.op or ""
    fusion_match = _FUSION.fullmatch(op)
    return kind_of(fusion_match[1] if fusion_match else op)


def both_times(base_s: float, new_s: float) -> str:
    """Return two times as `1.20 ms -> 3.40 ms`."""
    return f"{seconds(base_s)} -> {seconds(new_s)}"


def counted(rows: Iterable[AlignedPart]) -> str:
    """Return how often these operations run in a step: `2 -> 4 a step`, or `2 a step`."""
    pairs = [row.counts for row in rows]
    base, new = (f"{sum(counts):.3g}" for counts in zip(*pairs, strict=True))
    return f"{base} -> {new} a step" if base != new else f"{base} a step"


def named_rows(rows: Sequence[AlignedPart]) -> str:
    """Return the names of the operations that changed most."""
    changes: Counter[str] = Counter()
    for row in rows:
        if row.key.op:
            changes[_short(row.key.op)] += abs(row.change_s)  # type: ignore[assignment]
    names = [name for name, change in changes.most_common() if change >= LEAST_NAMED * changes.total()]
    return ", ".join(names[:MOST_NAMES]) + (", ..." if len(names) > MOST_NAMES else "")


def by_phase(rows: Sequence[AlignedPart]) -> tuple[str, ...]:
    """Return a line with the time of each phase on both sides."""
    phases = dict.fromkeys(row.key.phase for row in rows)
    if set(phases) == {None}:
        return ()
    texts = []
    for phase in phases:
        phase_rows = [row for row in rows if row.key.phase == phase]
        times = both_times(sum(row.base_s for row in phase_rows), sum(row.new_s for row in phase_rows))
        texts.append(f"{phase or 'phase not reported'} {times}")
    return ("; ".join(texts),)


def is_work(row: AlignedPart) -> bool:
    """Return whether a row is an operation, not a wait or a gap."""
    return row.key.place in WORKING


def _short(name: str) -> str:
    return name if len(name) <= LONGEST_NAME else f"{name[: LONGEST_NAME - 3]}..."


def input_wait(pair: ComparedSides, rows: Sequence[AlignedPart]) -> list[Claim]:
    """Return the fetches of batches: the device waits, or operations fetch."""
    input_rows = tuple(row for row in rows if row.key.place is TrackPlace.INPUT or row.key.phase == Phase.INPUT)
    return [Claim("input: fetching batches", input_rows)] if input_rows else []


def between_steps(pair: ComparedSides, rows: Sequence[AlignedPart]) -> list[Claim]:
    """Return the time between steps, in which no operation runs: the trace does not say what the program does."""
    between_rows = tuple(row for row in rows if row.key.place is TrackPlace.BETWEEN)
    return [Claim("between steps: callbacks, metrics and logging on the host", between_rows)] if between_rows else []


def compilation(pair: ComparedSides, rows: Sequence[AlignedPart]) -> list[Claim]:
    """Return everything within the step, if the two sides of a backend do not compile it alike.

    Its operations have no counterparts on the other side: another cause within the step cannot be separated from it.
    """
    base, new = mode(pair.base), mode(pair.new)
    if not pair.same_backend or base == new or "not known" in (base, new):
        return []
    compiled_rows = tuple(
        row for row in rows if row.key.place is TrackPlace.GAP or (is_work(row) and row.key.phase != Phase.INPUT)
    )
    if not compiled_rows:
        return []
    base_count, new_count = (sum(row.counts[side] for row in compiled_rows if is_work(row)) for side in (0, 1))
    lines = [f"{base_count:.0f} -> {new_count:.0f} operations a step", *by_phase(compiled_rows)]
    lines.append("a compiled operation has no counterpart in the other step: other causes within it are included")
    return [Claim(f"compilation of the step: {base} -> {new}", compiled_rows, tuple(lines))]


def mode(record: Record) -> str:
    """Return how the step of a cell runs."""
    resolved = record.resolved
    if resolved is None or (resolved.jit_compile is None and resolved.eager is None):
        return "not known"
    if resolved.eager:
        return "eager"
    return "jit" if resolved.jit_compile else "no jit"


def communication(pair: ComparedSides, rows: Sequence[AlignedPart]) -> list[Claim]:
    """Return the collectives of several workers, with the waiting inside them."""
    communication_rows = tuple(row for row in rows if row.key.place is TrackPlace.COMMUNICATION)
    return (
        [
            Claim(
                f"communication: {counted(communication_rows)}",
                communication_rows,
                tuple(filter(None, [named_rows(communication_rows)])),
            )
        ]
        if communication_rows
        else []
    )


def layers(pair: ComparedSides, rows: Sequence[AlignedPart]) -> list[Claim]:
    """Return a claim for each layer: all of its operations, titled by the kind of operation that changed most."""
    rows_by_layer: dict[str, list[AlignedPart]] = {}
    for row in rows:
        if row.key.layer is not None and is_work(row):
            rows_by_layer.setdefault(row.key.layer, []).append(row)
    return [_of_layer(pair, layer, layer_rows) for layer, layer_rows in rows_by_layer.items()]


def _of_layer(pair: ComparedSides, layer: str, rows: Sequence[AlignedPart]) -> Claim:
    times = both_times(sum(row.base_s for row in rows), sum(row.new_s for row in rows))
    if not pair.same_backend:
        return Claim(f"layer {layer}: {times}", tuple(rows), by_phase(rows))
    kinds = dict.fromkeys(map(kind_of_row, rows))
    most = max(kinds, key=lambda kind: abs(total_s(row for row in rows if kind_of_row(row) is kind)))
    kind_rows = [row for row in rows if kind_of_row(row) is most]
    return Claim(
        f"layer {layer}: {most} {counted(kind_rows)} ({named_rows(kind_rows)})", tuple(rows), (times, *by_phase(rows))
    )


def operations(pair: ComparedSides, rows: Sequence[AlignedPart]) -> list[Claim]:
    """Return a claim for each phase and kind of operation without a layer, such as those of the optimiser.

    By kind and not by name: a kernel that was renamed or replaced by another one of its kind is one difference.
    Between two backends what has neither layer nor phase has no counterpart, and stays unexplained.
    """
    groups: dict[tuple[str | None, str], list[AlignedPart]] = {}
    for row in rows:
        if is_work(row) and (pair.same_backend or row.key.phase is not None):
            kind = str(kind_of_row(row)) if pair.same_backend else ""
            groups.setdefault((row.key.phase, kind), []).append(row)
    return [_of_phase(*group, phase_rows) for group, phase_rows in groups.items()]


def _of_phase(phase: str | None, kind: str, rows: Sequence[AlignedPart]) -> Claim:
    place = NAMES.get(Phase(phase) if phase else None, f"{phase} pass, outside of layers")
    times = both_times(sum(row.base_s for row in rows), sum(row.new_s for row in rows))
    if not kind:
        return Claim(f"{place}: {times}", tuple(rows))
    return Claim(f"{place}: {kind} {counted(rows)} ({named_rows(rows)})", tuple(rows), (times,))


def gaps(pair: ComparedSides, rows: Sequence[AlignedPart]) -> list[Claim]:
    """Return the gaps within the step: the program dispatches the next operation, or waits."""
    gap_rows = tuple(row for row in rows if row.key.place is TrackPlace.GAP)
    return (
        [Claim(f"gaps between operations of a step, {counted(gap_rows)}: dispatch and waiting", gap_rows)]
        if gap_rows
        else []
    )


# In the order in which they claim rows: what explains more comes first.
KINDS: dict[str, Callable[[ComparedSides, Sequence[AlignedPart]], list[Claim]]] = {
    "input": input_wait,
    "between_steps": between_steps,
    "compilation": compilation,
    "communication": communication,
    "layer": layers,
    "operations": operations,
    "gaps": gaps,
}


def claimed(pair: ComparedSides) -> list[tuple[str, Claim]]:
    """Return every claim with the name of its kind; each row is in at most one."""
    unclaimed = list(pair.rows)
    named_claims = []
    for name, claims in KINDS.items():
        new_claims = claims(pair, unclaimed)
        named_claims += [(name, claim) for claim in new_claims]
        claimed_keys = {row.key for claim in new_claims for row in claim.rows}
        unclaimed = [row for row in unclaimed if row.key not in claimed_keys]
    return named_claims


@dataclass(frozen=True, slots=True)
class Fact:
    """A value that differs between base and new; `topic` is what it belongs to. None: not measured."""

    topic: str
    name: str
    base: str | float | None
    new: str | float | None


def differing_facts(
    base: Sequence[Record], new: Sequence[Record], folders: tuple[Path, Path] | None, operations: tuple[float, float]
) -> list[Fact]:
    """Return what differs between the records of two cells, and between their traces in these folders.

    `operations` are those of a traced step.

    Facts have no share: their effect on a step, if any, is in the differences. Those that scatter by themselves are
    listed only if they differ by more than `SCATTER` of the larger value.
    """
    facts = [*_settings(base[0], new[0]), *_versions(base, new), *_work(base, new)]
    facts += _numbers("start and first epoch", TIMES, base, new, SCATTER["times"])
    facts += _numbers("memory", MEMORY, base, new, SCATTER["memory"])
    facts += _numbers("counts", COUNTS, base, new, 0.0)
    if folders is None:
        return facts
    (base_program, base_facts), (new_program, new_facts) = map(stored_programs, folders)
    faults = base_facts.page_faults_per_step, new_facts.page_faults_per_step
    facts += _number("allocations", "page faults per step", *faults, SCATTER["page faults per step"])
    facts += _number("kernels", "operations in a traced step", *operations, 0.01)
    return facts + _programs(base_program, new_program)


def _settings(base: Record, new: Record) -> list[Fact]:
    before, after = named(base.settings), named(new.settings)
    pairs = [(name, value_as_text(before.get(name)), value_as_text(after.get(name))) for name in {**before, **after}]
    return [Fact("settings", name, base_text, new_text) for name, base_text, new_text in pairs if base_text != new_text]


def _versions(base: Sequence[Record], new: Sequence[Record]) -> list[Fact]:
    before, after = base[0].versions, new[0].versions
    if base[0].settings.backend != new[0].settings.backend:
        return []
    names = sorted({*before, *after})
    return [
        Fact("versions", name, before.get(name), after.get(name))
        for name in names
        if before.get(name) != after.get(name)
    ]


def _work(base: Sequence[Record], new: Sequence[Record]) -> list[Fact]:
    """Return the difference in work, which prevents a comparison but not an explanation."""
    sides = {
        name: [record for record in records if record.status in MEASURED]
        for name, records in (("base", base), ("new", new))
    }
    text = differing(sides, apart=True)
    return [Fact("work", text, None, None)] if text else []


def _numbers(
    topic: str, value_by_name: Values, base: Sequence[Record], new: Sequence[Record], least: float
) -> list[Fact]:
    return [
        fact
        for name, value in value_by_name.items()
        for fact in _number(topic, name, median_of_known(map(value, base)), median_of_known(map(value, new)), least)
    ]


def _number(topic: str, name: str, base: Number, new: Number, least: float) -> list[Fact]:
    if base == new or (base is not None and new is not None and abs(new - base) <= least * max(abs(base), abs(new))):
        return []
    return [Fact(topic, name, base, new)]


def _programs(base: ProgramSummary | None, new: ProgramSummary | None) -> list[Fact]:
    """Return the kinds of operations whose number differs between two programs of one source."""
    if base is None or new is None or base.source != new.source:
        return []
    topic = f"programs ({new.source})"
    facts = _number(topic, "programs", base.programs, new.programs, 0.0)
    facts += _number(topic, "operations", base.total, new.total, 0.0)
    facts += _number(topic, "bytes written", base.bytes_written, new.bytes_written, 0.0)
    for label, before, after in (("", base.operations, new.operations), (" inside fusions", base.fused, new.fused)):
        kinds = [kind for kind in {**before, **after} if before.get(kind, 0) != after.get(kind, 0)]
        kinds.sort(key=lambda kind: (kind not in FIRST_KINDS, -abs(after.get(kind, 0) - before.get(kind, 0)), kind))
        facts += [
            Fact(topic, kind + label, before.get(kind, 0), after.get(kind, 0)) for kind in kinds[:MOST_KINDS_SHOWN]
        ]
    return facts

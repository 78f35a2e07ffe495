"""The kinds of differences of two traced steps, each a function and a row of `KINDS`.

`claims(pair, rows)` of a kind takes those rows of a pair that it explains, in groups; the next kind gets the others.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass

from keras_matrix.analysis.explain.alignment import AlignedPart
from keras_matrix.analysis.explain.parts import WORKING, TrackPlace
from keras_matrix.analysis.whatif.cost.kinds import OperationKind, kind_of
from keras_matrix.records.schema import Record
from keras_matrix.records.text import seconds
from keras_matrix.records.traces.neutral import Phase

MOST_NAMES = 3
LONGEST_NAME = 60
_FUSION = re.compile(r"fusion \((.*)\)")
LEAST_NAMED = 0.02  # of the change of all
NAMES = {Phase.UPDATE: "optimizer", None: "operations without layer and phase"}


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
    named = _FUSION.fullmatch(op)
    return kind_of(named[1] if named else op)


def both_times(base_s: float, new_s: float) -> str:
    """Return two times as `1.20 ms -> 3.40 ms`."""
    return f"{seconds(base_s)} -> {seconds(new_s)}"


def counted(rows: Iterable[AlignedPart]) -> str:
    """Return how often these operations run in a step: `2 -> 4 a step`, or `2 a step`."""
    pairs = [row.counts for row in rows]
    base, new = (f"{sum(counts):.3g}" for counts in zip(*pairs, strict=True))
    return f"{base} -> {new} a step" if base != new else f"{base} a step"


def named(rows: Sequence[AlignedPart]) -> str:
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
        own = [row for row in rows if row.key.phase == phase]
        times = both_times(sum(row.base_s for row in own), sum(row.new_s for row in own))
        texts.append(f"{phase or 'phase not reported'} {times}")
    return ("; ".join(texts),)


def is_work(row: AlignedPart) -> bool:
    """Return whether a row is an operation, not a wait or a gap."""
    return row.key.place in WORKING


def _short(name: str) -> str:
    return name if len(name) <= LONGEST_NAME else f"{name[: LONGEST_NAME - 3]}..."


def input_wait(pair: ComparedSides, rows: Sequence[AlignedPart]) -> list[Claim]:
    """Return the fetches of batches: the device waits, or operations fetch."""
    own = tuple(row for row in rows if row.key.place is TrackPlace.INPUT or row.key.phase == Phase.INPUT)
    return [Claim("input: fetching batches", own)] if own else []


def between_steps(pair: ComparedSides, rows: Sequence[AlignedPart]) -> list[Claim]:
    """Return the time between steps, in which no operation runs: the trace does not say what the program does."""
    own = tuple(row for row in rows if row.key.place is TrackPlace.BETWEEN)
    return [Claim("between steps: callbacks, metrics and logging on the host", own)] if own else []


def compilation(pair: ComparedSides, rows: Sequence[AlignedPart]) -> list[Claim]:
    """Return everything within the step, if the two sides of a backend do not compile it alike.

    Its operations have no counterparts on the other side: another cause within the step cannot be separated from it.
    """
    base, new = mode(pair.base), mode(pair.new)
    if not pair.same_backend or base == new or "not known" in (base, new):
        return []
    own = tuple(
        row for row in rows if row.key.place is TrackPlace.GAP or (is_work(row) and row.key.phase != Phase.INPUT)
    )
    if not own:
        return []
    base_count, new_count = (sum(row.counts[side] for row in own if is_work(row)) for side in (0, 1))
    lines = [f"{base_count:.0f} -> {new_count:.0f} operations a step", *by_phase(own)]
    lines.append("a compiled operation has no counterpart in the other step: other causes within it are included")
    return [Claim(f"compilation of the step: {base} -> {new}", own, tuple(lines))]


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
    own = tuple(row for row in rows if row.key.place is TrackPlace.COMMUNICATION)
    return [Claim(f"communication: {counted(own)}", own, tuple(filter(None, [named(own)])))] if own else []


def layers(pair: ComparedSides, rows: Sequence[AlignedPart]) -> list[Claim]:
    """Return a claim for each layer: all of its operations, titled by the kind of operation that changed most."""
    by_layer: dict[str, list[AlignedPart]] = {}
    for row in rows:
        if row.key.layer is not None and is_work(row):
            by_layer.setdefault(row.key.layer, []).append(row)
    return [_of_layer(pair, layer, own) for layer, own in by_layer.items()]


def _of_layer(pair: ComparedSides, layer: str, rows: Sequence[AlignedPart]) -> Claim:
    times = both_times(sum(row.base_s for row in rows), sum(row.new_s for row in rows))
    if not pair.same_backend:
        return Claim(f"layer {layer}: {times}", tuple(rows), by_phase(rows))
    kinds = dict.fromkeys(map(kind_of_row, rows))
    most = max(kinds, key=lambda kind: abs(total_s(row for row in rows if kind_of_row(row) is kind)))
    own = [row for row in rows if kind_of_row(row) is most]
    return Claim(f"layer {layer}: {most} {counted(own)} ({named(own)})", tuple(rows), (times, *by_phase(rows)))


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
    return [_of_phase(*group, own) for group, own in groups.items()]


def _of_phase(phase: str | None, kind: str, rows: Sequence[AlignedPart]) -> Claim:
    place = NAMES.get(Phase(phase) if phase else None, f"{phase} pass, outside of layers")
    times = both_times(sum(row.base_s for row in rows), sum(row.new_s for row in rows))
    if not kind:
        return Claim(f"{place}: {times}", tuple(rows))
    return Claim(f"{place}: {kind} {counted(rows)} ({named(rows)})", tuple(rows), (times,))


def gaps(pair: ComparedSides, rows: Sequence[AlignedPart]) -> list[Claim]:
    """Return the gaps within the step: the program dispatches the next operation, or waits."""
    own = tuple(row for row in rows if row.key.place is TrackPlace.GAP)
    return [Claim(f"gaps between operations of a step, {counted(own)}: dispatch and waiting", own)] if own else []


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
    left = list(pair.rows)
    found = []
    for name, claims in KINDS.items():
        own = claims(pair, left)
        found += [(name, claim) for claim in own]
        taken = {row.key for claim in own for row in claim.rows}
        left = [row for row in left if row.key not in taken]
    return found

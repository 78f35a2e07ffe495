"""Divides the time of a thread into pieces of work.

A piece is an operator that no other one surrounds, or a call of the device's library outside of operators. It is
divided where something else begins or is waited for: where a call issues a device's work, where a collective has been
started, where a call has waited for a device. Time between operators belongs to no piece, except within the call of a
layer, an update and similar ranges: there it is Python that prepares the next operator, and a piece of its own.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field
from typing import NamedTuple

from keras_matrix.analysis.whatif.graph import NodeKind
from keras_matrix.analysis.whatif.reconstruct.kineto.reading import NOTHING, RUNTIME, Message, Operands, RankEvent
from keras_matrix.analysis.whatif.reconstruct.pieces import Piece, Window
from keras_matrix.records.traces.neutral import Phase
from keras_matrix.records.traces.request import LAYER, MARK, PHASE
from keras_matrix.records.traces.torch import (
    ANNOTATIONS,
    BACKWARD,
    COLLECTIVES,
    OPERATORS,
    OPTIMIZER,
    OUTSIDE,
    Context,
    Making,
    within,
)

ACCUMULATE = "AccumulateGrad"
REDUCER = ("torch.distributed.ddp.reducer", "torch::distributed::reducer")
DATA_LOADER = "enumerate(DataLoader)#"
# Ranges whose own time is Python of the named part of the program, as far as nothing is waited for.
RANGES = ("DistributedDataParallel.forward", "Optimizer.", OPTIMIZER, DATA_LOADER, LAYER)
# In these phases a thread may wait for another one, so that time without operators is unknown.
WAITING = frozenset({PHASE + Phase.BACKWARD, PHASE + Phase.COMMUNICATION})
BETWEEN = ": between operators"
# Annotations of users, such as `## forward ##`, that name a phase.
PHASES = {
    "forward": Phase.FORWARD,
    "distributeddataparallel.forward": Phase.FORWARD,
    "backward": Phase.BACKWARD,
    "optimizer": Phase.UPDATE,
    "optimizer step": Phase.UPDATE,
}
SLEEPS = ("LayerSleep",)
SYNCHRONISES = ("StreamSynchronize", "DeviceSynchronize", "CtxSynchronize", "EventSynchronize")


@dataclass(slots=True)
class IssuingCall:
    """A call that issues a device's work: when, in which context, and the piece that must have ended before."""

    at_ns: int
    step: int
    lane: str
    context: Context
    operands: Operands
    message: Message | None
    piece: Piece | None = None
    ends_gradient: bool = False


@dataclass(slots=True)
class Sync:
    """A call that waits for a device: the piece at which the wait ends, and the call."""

    piece: Piece
    event: RankEvent
    lane: str
    of_copy: bool = False


class StreamWait(NamedTuple):
    """A call that lets a stream wait; `in_collective`: it is part of starting a collective."""

    at_ns: int
    correlation: int
    lane: str
    in_collective: bool


@dataclass(slots=True)
class Launch:
    """A call that starts a collective of a library with own threads; `joined` has the collective's piece.

    `gradient`: the addition of a gradient that surrounds it, with which DDP closes a bucket. `resumes_ns`: the thread
    waits for the collective, and continues then.
    """

    event: RankEvent
    lane: str
    joined: Piece
    gradient: RankEvent | None
    resumes_ns: int | None = None


@dataclass(slots=True)
class HostWork:
    """What the threads of a rank did. `device` is a device's work by the number of the call that issued it.

    `orphans` are the external ids of a device's work whose call is not in the file: its operator issued it.
    """

    windows: Sequence[Window]
    making: Making
    device: Mapping[int, RankEvent]
    launches: Mapping[int, Launch]
    orphans: Collection[int] = ()
    issues: dict[int, IssuingCall] = field(default_factory=dict)
    by_external: dict[int, IssuingCall] = field(default_factory=dict)
    records: dict[int, int] = field(default_factory=dict)
    stream_waits: list[StreamWait] = field(default_factory=list)
    syncs: list[Sync] = field(default_factory=list)

    def step_at(self, at_ns: int) -> int | None:
        """Return the step of a time, None outside of all."""
        index = bisect_right(self.windows, at_ns, key=lambda window: window.begin_ns) - 1
        return index if index >= 0 and at_ns < self.windows[index].end_ns else None


class _Frame(NamedTuple):
    """An event around the current one; `label` names a range whose own time counts, "" one in which it does not.

    `starts`: it is part of the start of a collective.
    """

    end_ns: int
    context: Context
    label: str | None
    operands: Operands
    message: Message | None
    starts: bool


@dataclass(slots=True)
class _Unit:
    """An operator that no other one surrounds."""

    label: str
    depth: int
    context: Context
    kind: NodeKind
    ends_gradient: bool
    first: Operands = NOTHING
    products: list[Operands] = field(default_factory=list)
    pieces: list[Piece] = field(default_factory=list)
    issue: IssuingCall | None = None


class Sweep:
    """Divides one thread, whose events come in the order of their starts, the outer one of several first."""

    def __init__(self, work: HostWork, lane: str, phase: Phase | None = None) -> None:
        """`phase` is that of what no mark surrounds."""
        self._work, self._lane = work, lane
        self._stack = [_Frame(OUTSIDE.end_ns, OUTSIDE._replace(phase=phase), None, NOTHING, None, False)]
        self._free_ns = 0
        self._unit: _Unit | None = None
        self._step: int | None = None
        self._last: Piece | None = None
        self._pending: list[IssuingCall] = []
        self._after: list[Piece] = []
        self._layer: str | None = None
        self.pieces: list[Piece] = []

    def run(self, events: Sequence[RankEvent]) -> list[Piece]:
        """Return the pieces within steps."""
        stack, layers = self._stack, self._work.making.layers
        for event in events:
            if stack[-1].end_ns <= event.start_ns:
                self._close(event.start_ns)
            outer, unit = stack[-1], self._unit
            if unit is not None and event.category in RUNTIME:
                self._call(unit, event)  # nothing is within such a call
                continue
            end_ns = min(event.end_ns, outer.end_ns)
            if unit is not None and event.category in OPERATORS:
                context = outer.context  # what `within` would return, as far as it is used here
                if event.sequence >= 0 and context.phase is not Phase.BACKWARD:
                    layers[event.sequence] = context.layer
            else:
                context = _context(self._work.making, event, outer.context, end_ns)
                if unit is None:
                    unit = self._enter(event, context)
            label = _label(event.name) if unit is None else None
            operands = event.operands if event.operands is not NOTHING else outer.operands
            starts = outer.starts or event.name.startswith(COLLECTIVES)
            stack.append(_Frame(end_ns, context, label, operands, event.message or outer.message, starts))
            if unit is not None:
                self._inside(unit, event)
        self._close(OUTSIDE.end_ns - 1)
        return self.pieces

    def _enter(self, event: RankEvent, context: Context) -> _Unit | None:
        """Handle an event outside of all operators; return the unit if it is one."""
        self._own(event.start_ns)
        self._step = self._work.step_at(event.start_ns)
        if event.category not in ANNOTATIONS:
            self._begin(event, context)
        return self._unit

    def _close(self, at_ns: int) -> None:
        """Leave the events that have ended."""
        while self._stack[-1].end_ns <= at_ns:
            end_ns = self._stack[-1].end_ns
            if self._unit is not None and len(self._stack) == self._unit.depth:
                self._finish(self._unit, end_ns)
            elif self._unit is None:
                self._own(end_ns)
            self._stack.pop()

    def _own(self, until_ns: int) -> None:
        """Add the own time of the innermost range up to here."""
        label = next((frame.label for frame in reversed(self._stack) if frame.label is not None), "")
        if label and until_ns > self._free_ns:
            context = self._stack[-1].context
            kind = NodeKind.INPUT if context.phase is Phase.INPUT else NodeKind.HOST
            self._add(label + BETWEEN, kind, until_ns, context)
        self._free_ns = max(self._free_ns, until_ns)

    def _begin(self, event: RankEvent, context: Context) -> None:
        name = event.name.removeprefix(BACKWARD).removeprefix(": ")
        accumulates = name.endswith(ACCUMULATE)
        if event.name.startswith(BACKWARD) and not accumulates:
            self._layer = context.layer
        elif accumulates:
            context = context._replace(layer=context.layer or self._layer)
        if name.startswith(REDUCER):
            context = context._replace(phase=Phase.BACKWARD)
        starts_collective = name.startswith(COLLECTIVES)
        kind = _kind(self._work, event, context, starts_collective)
        self._unit = _Unit(name, len(self._stack) + 1, context, kind, accumulates)

    def _finish(self, unit: _Unit, end_ns: int) -> None:
        self._cut(unit, end_ns)
        if unit.ends_gradient:
            if unit.issue is not None:
                unit.issue.ends_gradient = True
            elif unit.pieces:
                unit.pieces[-1].ends_gradient = True
        _describe(unit)
        self._unit = None

    def _inside(self, unit: _Unit, event: RankEvent) -> None:
        """Handle an event within a unit, or the unit itself."""
        if event.category in RUNTIME:
            self._call(unit, event)
            return
        if event.operands is not NOTHING:
            if unit.first is NOTHING:
                unit.first = event.operands
            if event.operands.flops:
                unit.products.append(event.operands)
        if (launch := self._work.launches.get(id(event))) is not None:
            self._launch(unit, launch)
        if event.external in self._work.orphans:
            frame, step = self._stack[-1], self._step if self._step is not None else -1
            issue = IssuingCall(event.start_ns, step, self._lane, frame.context, event.operands, frame.message)
            self._pending.append(issue)
            self._work.by_external[event.external] = issue

    def _launch(self, unit: _Unit, launch: Launch) -> None:
        joined = launch.joined
        self._cut(unit, max(launch.event.start_ns, min(launch.event.end_ns, joined.start_ns)))
        if self._last is not None:
            joined.after.append(self._last)
        joined.step = self._step if self._step is not None else -1
        if unit.ends_gradient and unit.issue is None and unit.pieces:
            unit.pieces[-1].ends_gradient = True
            unit.ends_gradient = False
        unit.label = f"{unit.label.partition(' > ')[0]} > {launch.event.name}"
        if launch.resumes_ns is not None:
            self._free_ns = max(self._free_ns, launch.resumes_ns)
            self._after.append(joined)

    def _call(self, unit: _Unit, event: RankEvent) -> None:
        """Handle a call of the device's library."""
        work, frame = self._work, self._stack[-1]
        if (on_device := work.device.get(event.correlation)) is not None:
            self._cut(unit, event.start_ns)
            step = self._step if self._step is not None else -1
            context = frame.context._replace(layer=frame.context.layer or unit.context.layer)
            issue = IssuingCall(event.start_ns, step, self._lane, context, frame.operands, frame.message)
            if self._last is not None and self._last.end_ns == event.start_ns:
                issue.piece = self._last
            else:
                self._pending.append(issue)
            work.issues[event.correlation] = issue
            unit.issue = unit.issue if frame.starts else issue
            unit.label = f"{unit.label.partition(' > ')[0]} > {event.name}"
            if _blocks(event, on_device):
                self._wait(unit, event, True)
        elif event.name.endswith(SYNCHRONISES):
            self._wait(unit, event, False)
        elif "StreamWaitEvent" in event.name:
            work.stream_waits.append(StreamWait(event.start_ns, event.correlation, self._lane, frame.starts))
        elif "EventRecord" in event.name:
            work.records[event.correlation] = event.start_ns

    def _wait(self, unit: _Unit, event: RankEvent, of_copy: bool) -> None:
        self._cut(unit, event.start_ns)
        self._free_ns = event.end_ns
        self._add(event.name, NodeKind.WAIT, event.end_ns, unit.context)
        if self._step is not None and self._last is not None:
            self._work.syncs.append(Sync(self._last, event, self._lane, of_copy))

    def _cut(self, unit: _Unit, at_ns: int) -> None:
        """End the current piece of a unit."""
        if at_ns > self._free_ns:
            count = len(self.pieces)
            self._add(unit.label, unit.kind, at_ns, unit.context)
            unit.pieces += self.pieces[count:]

    def _add(self, name: str, kind: NodeKind, end_ns: int, context: Context) -> None:
        """Add a piece from where the last one ended."""
        start_ns, self._free_ns = self._free_ns, end_ns
        if self._step is None:
            self._pending.clear()
            self._last = None
            return
        piece = Piece(self._lane, name, kind, start_ns, end_ns, context.phase, context.layer, step=self._step)
        piece.after += self._after
        self._after = []
        for issue in self._pending:
            issue.piece = piece
        self._pending.clear()
        self._last = piece
        self.pieces.append(piece)


def _context(making: Making, event: RankEvent, outer: Context, end_ns: int) -> Context:
    context = within(making, event, outer, end_ns)
    if event.category in ANNOTATIONS and context.phase is outer.phase and not event.name.startswith(MARK):
        if (phase := PHASES.get(event.name.strip("# ").lower())) is not None:
            return context._replace(phase=phase)
        if event.name.startswith(DATA_LOADER):
            return context._replace(phase=Phase.INPUT)
    return context


def _label(name: str) -> str | None:
    """Return the name of a range whose own time counts, "" if it does not, None if an outer range decides."""
    if name in WAITING:
        return ""
    if name.startswith((*RANGES, PHASE)):
        return name.removeprefix(LAYER).removeprefix(PHASE)
    return None


def _kind(work: HostWork, event: RankEvent, context: Context, starts_collective: bool) -> NodeKind:
    if context.phase is Phase.INPUT:
        return NodeKind.INPUT
    return (
        NodeKind.HOST if work.making.gpu or starts_collective or event.category not in OPERATORS else NodeKind.COMPUTE
    )


def _blocks(event: RankEvent, on_device: RankEvent) -> bool:
    """Return whether a copy's call returns after the copy has ended."""
    if "emcpy" not in event.name:
        return False
    to_host = "DtoH" in on_device.name and "Pageable" in on_device.name
    return to_host or "Async" not in event.name


def _describe(unit: _Unit) -> None:
    """Add to the pieces of a unit what is known of its inputs; its operations count for the longest."""
    if not unit.pieces:
        return
    typical = unit.products[0] if unit.products else unit.first
    size = sum(product.bytes or 0 for product in unit.products) if unit.products else unit.first.bytes
    longest = max(unit.pieces, key=lambda piece: piece.duration_ns)
    for piece in unit.pieces:
        piece.dtype, piece.shape = typical.dtype, typical.shape
    longest.bytes = size
    longest.flops = sum(product.flops or 0.0 for product in unit.products) or None
    if unit.label.startswith(SLEEPS):
        for piece in unit.pieces:
            piece.cores = 0.0

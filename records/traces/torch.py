"""Converts PyTorch's own file to the neutral trace.

If kernels ran on a device, `compute` has these and `host` the operators that launched them; otherwise `compute` has the
operators. Phase and layer come from the events that surround an operator on its own thread: marks of a traced cell,
autograd's own events, `Optimizer.step`. An operator of the backward pass belongs to the layer of the forward operator
with the same sequence number, a kernel to the call that launched it (its correlation). Without marks an operator
belongs to the forward pass if autograd later has the same sequence number.

A thread without marks, such as autograd's if a device computes, belongs to the current step of the marked thread, which
waits for it. A kernel belongs to the step that launched it, whenever it runs.
"""

from __future__ import annotations

from bisect import bisect_right
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, NamedTuple, Protocol

from keras_matrix.records.traces import kineto
from keras_matrix.records.traces.kineto import category_of, unread
from keras_matrix.records.traces.neutral import (
    Flow,
    FlowEnd,
    Phase,
    Span,
    Track,
    TrackKind,
    copy_of,
    is_collective,
    is_unfinished,
)
from keras_matrix.records.traces.request import CLOCK, LAYER, MARK, PHASE, STEP

BACKWARD = "autograd::engine::evaluate_function"
OPTIMIZER = "Optimizer.step#"
PROFILER_STEP = "ProfilerStep#"
# Collectives of libraries whose work is that of a device; the range around the call is only its launch.
LAUNCHED = ("nccl:", "xccl:", "hccl:")
COLLECTIVES = ("gloo:", "mpi:", "ucc:", "c10d::", *LAUNCHED)
FLOWS = {"fwdbwd": "forward_backward", "ac2g": "launch"}

OPERATORS = frozenset({"cpu_op"})
ANNOTATIONS = frozenset({"user_annotation"})
RUNTIME = frozenset({"cuda_runtime", "cuda_driver", "python_function", "overhead"})
DEVICE = frozenset({"kernel", "gpu_memcpy", "gpu_memset"})
KEPT = OPERATORS | ANNOTATIONS | RUNTIME | DEVICE
_NO_NUMBER = -1

Place = tuple[Any, ...]  # a process and a thread, or a device and a stream
Step = tuple[int, int, int]  # begin, end, number


class KinetoEvent(NamedTuple):
    """One event: times in nanoseconds, its category, sequence number, correlation and external id, -1 if missing.

    What ran on a device has its stream, a copy its size, None if missing.
    """

    start_ns: int
    duration_ns: int
    name: str
    category: str
    sequence: int
    correlation: int
    external: int
    stream: int | None = None
    size_bytes: int | None = None


class NamedEvent(Protocol):
    """What the context within an event depends on."""

    @property
    def name(self) -> str: ...
    @property
    def category(self) -> str: ...
    @property
    def sequence(self) -> int: ...


class Context(NamedTuple):
    """The context within an event: its end, and the innermost surrounding phase, layer, step and operator."""

    end_ns: int
    phase: Phase | None = None
    layer: str | None = None
    step: int | None = None
    operator: str | None = None


OUTSIDE = Context(1 << 62)


@dataclass(slots=True)
class TorchRecording:
    """The content of a file: events by thread or stream, flows, and pairs of profiler time and machine time.

    `others` counts the events that are not read by category, `notes` are sentences about what the trace does not show.
    """

    threads: dict[Place, list[KinetoEvent]] = field(default_factory=dict)
    flows: dict[tuple[str, int], list[tuple[Place, int] | None]] = field(default_factory=dict)
    base_ns: int = 0
    clocks: list[tuple[int, int]] = field(default_factory=list)
    others: Counter[str] = field(default_factory=Counter)
    notes: list[str] = field(default_factory=list)

    @property
    def device(self) -> str:
        """Return gpu if any event ran on one, otherwise cpu."""
        return "gpu" if any(event.category in DEVICE for events in self.threads.values() for event in events) else "cpu"


def read(path: Path) -> TorchRecording:
    """Read a file. Raises `TraceError`."""
    recording = TorchRecording()
    names: dict[str, str] = {}
    number = 0
    for member, value in kineto.members(path):
        number += member == kineto.EVENTS
        try:
            if member == kineto.EVENTS:
                _take(recording, value, names)
            elif member == "baseTimeNanoseconds":
                recording.base_ns = int(value)
        except (AttributeError, LookupError, TypeError, ValueError, OverflowError) as error:
            raise kineto.invalid(path, member, value, number, error) from error
    return recording


def _take(recording: TorchRecording, event: dict[str, Any], names: dict[str, str]) -> None:
    """Add an event, if it is of a known kind."""
    phase = event.get("ph")
    if phase == "X":
        if (category := category_of(event)) in KEPT:
            _keep(recording, {**event, "cat": category}, names)
        else:
            recording.others[str(category)] += 1
    elif phase in ("s", "f") and event.get("cat") in FLOWS:
        ends = recording.flows.setdefault((event["cat"], event["id"]), [None, None])
        ends[phase == "f"] = ((event["pid"], event["tid"]), round(event["ts"] * 1000))


def _keep(recording: TorchRecording, event: dict[str, Any], names: dict[str, str]) -> None:
    args = event.get("args") or {}
    # One string object per distinct name.
    name = names.setdefault(event["name"], event["name"])
    start_ns = round(event["ts"] * 1000)
    if name.startswith(CLOCK):
        recording.clocks.append((start_ns, int(name.removeprefix(CLOCK))))
        return
    # The end is rounded, not the duration, so that nested events do not cross. By a device's clock, an event may end
    # before it began.
    duration_ns = max(0, round((event["ts"] + event["dur"]) * 1000) - start_ns)
    sequence, correlation = args.get("Sequence number", _NO_NUMBER), args.get("correlation", _NO_NUMBER)
    external, category = args.get("External id", _NO_NUMBER), names.setdefault(event["cat"], event["cat"])
    of_device = (_whole(args.get("stream")), _whole(args.get("bytes"))) if category in DEVICE else ()
    kineto_event = KinetoEvent(start_ns, duration_ns, name, category, sequence, correlation, external, *of_device)
    recording.threads.setdefault((event["pid"], event["tid"]), []).append(kineto_event)


def _whole(value: Any) -> int | None:
    return value if type(value) is int and value >= 0 else None


@dataclass(slots=True)
class Making:
    """State of the conversion of one worker's spans."""

    worker: int
    gpu: bool
    tracks: dict[tuple[Place, TrackKind], Track] = field(default_factory=dict)
    layers: dict[int, str | None] = field(default_factory=dict)
    gone_back: set[int] = field(default_factory=set)
    launched: dict[int, Context] = field(default_factory=dict)
    launched_ns: dict[int, int] = field(default_factory=dict)
    operators: dict[int, Context] = field(default_factory=dict)
    steps: list[Step] = field(default_factory=list)
    reached: dict[Place, int] = field(default_factory=dict)
    streams: dict[Place, Track] = field(default_factory=dict)
    elsewhere: dict[tuple[Place, int], Track] = field(default_factory=dict)

    def track(self, place: Place, kind: TrackKind) -> Track:
        """Return the track of a kind for a thread or stream; creates it if necessary."""
        if (place, kind) not in self.tracks:
            lane = sum(other_kind is kind for _, other_kind in self.tracks)
            self.tracks[place, kind] = Track(self.worker, kind, lane)
        return self.tracks[place, kind]

    def stream(self, place: Place, kind: TrackKind, event: KinetoEvent) -> Track:
        """Return the track of an event of a stream: a further one if it overlaps with the previous event.

        Kernels of a CUDA graph, and those of programmatic dependent launch, overlap.
        """
        extra_number = 0
        while self.reached.get((place, kind, extra_number), event.start_ns) > event.start_ns:
            extra_number += 1
        self.reached[place, kind, extra_number] = event.start_ns + event.duration_ns
        track = self.track((*place, extra_number) if extra_number else place, kind)
        if self.streams.setdefault(place, track) != track:
            self.elsewhere[place, event.start_ns] = track
        return track

    def step_at(self, at_ns: int) -> int | None:
        """Return the marked step at a time, None outside of all."""
        index = bisect_right(self.steps, at_ns, key=lambda step: step[0]) - 1
        return self.steps[index][2] if index >= 0 and at_ns < self.steps[index][1] else None

    def step_until(self, at_ns: int) -> int | None:
        """Return the marked step of a time, to which the time between it and the step before also belongs."""
        if not self.steps or at_ns < self.steps[0][0]:
            return None
        return next((number for _, end_ns, number in self.steps if at_ns < end_ns), None)


def spans(recording: TorchRecording, worker: int) -> tuple[list[Span], list[Flow]]:
    """Return the spans of one worker's file and the flows between them, in its own clock.

    Adds to the recording's notes what is left out.
    """
    unfinished = _leave_out_unfinished(recording)
    recording.notes += [*([unfinished] if unfinished else []), *_notes(recording)]
    making = Making(worker, recording.device == "gpu")
    if making.gpu:
        making.steps = sorted(_steps(recording))
    making.gone_back = {
        event.sequence
        for events in recording.threads.values()
        for event in events
        if event.sequence != _NO_NUMBER and event.name.startswith(BACKWARD)
    }
    all_spans: list[Span] = []
    for place in sorted(recording.threads, key=lambda thread: _order(recording.threads[thread])):
        events = recording.threads[place]
        # In the order of nesting: the event that begins first, or the longest of several, is the outer one.
        events.sort(key=lambda event: (event.start_ns, -event.duration_ns))
        all_spans += (
            _on_device(making, place, events) if events[0].category in DEVICE else _on_host(making, place, events)
        )
    return all_spans, list(_flows(recording, making))


def _order(events: list[KinetoEvent]) -> tuple[bool, bool, int]:
    """Sort streams after threads, and threads with only backward passes after those with their layers."""
    on_device = events[0].category in DEVICE
    only_back = not any(event.name.startswith(MARK) for event in events) and any(
        event.name.startswith(BACKWARD) for event in events
    )
    return on_device, only_back, min(event.start_ns for event in events)


def _on_host(making: Making, place: Place, events: list[KinetoEvent]) -> Iterator[Span]:
    stack = [OUTSIDE]
    follows = making.steps if not any(_step_of(event) for event in events) else []
    for event in events:
        while stack[-1].end_ns <= event.start_ns and len(stack) > 1:
            stack.pop()
        if follows and len(stack) == 1:
            stack[0] = OUTSIDE._replace(step=making.step_at(event.start_ns))
        # The clocks of two sources, such as a runtime's call and its operator, may differ slightly.
        end_ns = min(event.start_ns + event.duration_ns, stack[-1].end_ns)
        surrounding = within(making, event, stack[-1], end_ns)
        stack.append(surrounding)
        if event.correlation != _NO_NUMBER:
            making.launched[event.correlation] = surrounding
            making.launched_ns[event.correlation] = event.start_ns
        if making.gpu and event.external != _NO_NUMBER and event.category in OPERATORS:
            making.operators[event.external] = surrounding
        if kind := _kind(making, event):
            track = making.track(place, kind)
            name, layer = _shown(event.name), surrounding.layer
            yield Span(
                track, name, name, event.start_ns, end_ns - event.start_ns, surrounding.phase, layer, surrounding.step
            )


def within(making: Making, event: NamedEvent, outer: Context, end_ns: int) -> Context:
    """Return the context within an event."""
    if event.category in ANNOTATIONS:
        return _annotated(event.name, outer, end_ns)
    if event.category not in OPERATORS:
        return outer._replace(end_ns=end_ns)
    phase, layer = outer.phase, outer.layer
    if event.name.startswith(BACKWARD):
        phase, layer = Phase.BACKWARD, making.layers.get(event.sequence, outer.layer)
    elif event.name.startswith(COLLECTIVES):
        phase = Phase.COMMUNICATION
    elif event.sequence != _NO_NUMBER and phase is not Phase.BACKWARD:
        # The last operator that begins with a number is the one with that number in the backward pass.
        making.layers[event.sequence] = layer
        if phase is None and event.sequence in making.gone_back:
            phase = Phase.FORWARD
    return Context(end_ns, phase, layer, outer.step, event.name)


def _leave_out_unfinished(recording: TorchRecording) -> str | None:
    """Remove the mark of a last step in which the profiler stopped; return what to say about it, None without one."""
    launched = {
        event.correlation for events in recording.threads.values() for event in events if event.category in DEVICE
    }
    for events in recording.threads.values():
        marks = sorted((event for event in events if _step_of(event) is not None), key=lambda event: event.start_ns)
        operations: list[list[str]] = [[] for _ in marks]
        missing_counts = [0] * len(marks)
        for event in sorted(events, key=lambda event: event.start_ns) if len(marks) > 1 else ():
            index = bisect_right(marks, event.start_ns, key=lambda mark: mark.start_ns) - 1
            if index < 0 or event.start_ns >= marks[index].start_ns + marks[index].duration_ns:
                continue
            if event.category in OPERATORS:
                operations[index].append(event.name)
            elif launched and "LaunchKernel" in event.name:
                missing_counts[index] += event.correlation not in launched
        if is_unfinished(operations) or (missing_counts and missing_counts[-1] and not any(missing_counts[:-1])):
            last_mark = marks[-1]
            events.remove(last_mark)
            length_text = f"{last_mark.duration_ns / 1e6:.3f} ms"
            return (
                f"{_shown(last_mark.name)}, the last one ({length_text}), is left out: "
                "the profiler stopped before it ended"
            )
    return None


def _notes(recording: TorchRecording) -> Iterator[str]:
    """Yield sentences about what the file does not say, or what this program does not read."""
    if text := unread(recording.others, has_device=recording.device != "cpu"):
        yield text
    names = {event.name for events in recording.threads.values() for event in events}
    libraries = {name.partition(":")[0] for name in names if name.startswith(LAUNCHED)}
    if libraries and recording.device == "cpu":
        yield (
            f"how much of the communication by {', '.join(sorted(libraries))} was overlapped by compute is not known:"
            " the file has no work of a device, and these ranges only launch it"
        )


def _steps(recording: TorchRecording) -> Iterator[Step]:
    """Yield the marked steps of all threads."""
    for events in recording.threads.values():
        for event in events:
            if (number := _step_of(event)) is not None:
                yield event.start_ns, event.start_ns + event.duration_ns, number


def _step_of(event: KinetoEvent) -> int | None:
    """Return the number of the step that an event marks, None for other events; PyTorch's own count from 0."""
    return step_in(event.name) if event.category in ANNOTATIONS else None


def step_in(name: str) -> int | None:
    """Return the number of the step that an annotation of this name marks, None for another annotation."""
    if name.startswith(STEP):
        return int(name.removeprefix(STEP))
    return int(name.removeprefix(PROFILER_STEP)) + 1 if name.startswith(PROFILER_STEP) else None


def _annotated(name: str, outer: Context, end_ns: int) -> Context:
    """Return the context within an annotation: a mark of ours, one of PyTorch's own, or another one."""
    inner = outer._replace(end_ns=end_ns)
    if (step := step_in(name)) is not None:
        return inner._replace(step=step)
    if name.startswith(PHASE):
        return inner._replace(phase=Phase(name.removeprefix(PHASE)))
    if name.startswith(LAYER):
        layer_name = name.removeprefix(LAYER)
        # A layer that is called again in the backward pass, to recompute its output, still belongs to that pass.
        return inner._replace(
            phase=inner.phase or Phase.FORWARD, layer=f"{inner.layer}/{layer_name}" if inner.layer else layer_name
        )
    if name.startswith(OPTIMIZER):
        return inner._replace(phase=Phase.UPDATE)
    if name.startswith(COLLECTIVES):
        return inner._replace(phase=Phase.COMMUNICATION)
    return inner


def _kind(making: Making, event: KinetoEvent) -> TrackKind | None:
    """Return the kind of track that shows an event of a thread."""
    if event.category in OPERATORS:
        return TrackKind.HOST if making.gpu else TrackKind.COMPUTE
    if event.category in RUNTIME:
        return TrackKind.HOST
    if event.name.startswith((STEP, PROFILER_STEP)):
        return TrackKind.STEPS
    if event.name.startswith(f"{PHASE}{Phase.INPUT}"):
        return TrackKind.INPUT
    if event.name.startswith(COLLECTIVES):
        return TrackKind.HOST if making.gpu or event.name.startswith(LAUNCHED) else TrackKind.COMMUNICATION
    return TrackKind.LAYERS


def _shown(name: str) -> str:
    """Return the displayed name of an event; for a mark, its value."""
    if not name.startswith(MARK):
        return name
    kind, _, value = name.removeprefix(MARK).partition(":")
    return f"step {value}" if kind == "step" else value


def _on_device(making: Making, place: Place, events: list[KinetoEvent]) -> Iterator[Span]:
    """Return a stream's spans."""
    for event in events:
        surrounding = making.launched.get(event.correlation) or making.operators.get(event.external, OUTSIDE)
        kind, operator, phase = TrackKind.COMPUTE, surrounding.operator or event.name, surrounding.phase
        if is_collective(event.name):
            kind, operator, phase = TrackKind.COMMUNICATION, event.name, Phase.COMMUNICATION
        elif copy := copy_of(event.name):
            kind, operator = TrackKind.COPY, copy
        if making.steps and surrounding.step is None and making.launched:
            launched_ns = making.launched_ns.get(event.correlation)
            step = None if launched_ns is None else making.step_until(launched_ns)
            surrounding = surrounding._replace(step=step)
            kind = TrackKind.OUTSIDE if step is None else kind
        track = making.stream(place, kind, event)
        yield Span(
            *(
                track,
                event.name,
                operator,
                event.start_ns,
                event.duration_ns,
                phase,
                surrounding.layer,
                surrounding.step,
            ),
            *(event.stream, event.size_bytes, _whole(event.correlation)),
        )


def _flows(recording: TorchRecording, making: Making) -> Iterator[Flow]:
    """Yield the flows with both ends on a track of work."""
    kinds = (TrackKind.HOST, TrackKind.COMPUTE, TrackKind.COMMUNICATION)
    tracks = {place: track for (place, kind), track in making.tracks.items() if kind in kinds} | making.streams
    for (category, _), (source, target) in recording.flows.items():
        if source is None or target is None or source[0] not in tracks or target[0] not in tracks:
            continue
        points = (FlowEnd(making.elsewhere.get(point, tracks[point[0]]), point[1]) for point in (source, target))
        yield Flow(FLOWS[category], *points)

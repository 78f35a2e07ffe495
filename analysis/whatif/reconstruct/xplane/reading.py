"""Reads a file of JAX or TensorFlow: its steps, what each device did in them, and each operation as a row.

Steps follow one another without a gap: a step lasts from the end of the one before, or from its own mark for the first
step of a file, to the end of its mark or of its last operation, whichever is later. So fetching a batch, which happens
before the mark, belongs to the step, and steps that a program only dispatches last as long as their work.

Threads race: operations that do not depend on each other end in another order in each step. Here all steps have one
order, that of the median times of the ends, which keeps the order of dependencies.

The event of the end of an asynchronous operation waits for a thread: in XLA up to the whole time of a following
all-reduce, in TensorFlow some milliseconds after a collective. What needs the result cannot have begun before.
"""

from __future__ import annotations

from bisect import bisect_right
from collections import Counter, defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import pairwise
from pathlib import Path
from statistics import median
from typing import NamedTuple

from keras_matrix.analysis.whatif.graph import GraphError
from keras_matrix.analysis.whatif.reconstruct.pieces import TOLERANCE_NS, Window
from keras_matrix.records.codec import decode
from keras_matrix.records.files import read_json
from keras_matrix.records.traces.conversion import worker_of
from keras_matrix.records.traces.neutral import WORKING, Phase, Span, TrackKind, is_collective
from keras_matrix.records.traces.request import MARK, NAMES_NAME, Names, TraceError
from keras_matrix.records.traces.xspace import hlo_program, reader, tracks
from keras_matrix.records.traces.xspace.hlo_program import HloProgram
from keras_matrix.records.traces.xspace.tracks import COLLECTIVE

Interval = tuple[int, int]
# Events of the program's thread in which it only waits for a device.
WAITS = ("Wait", "CommonPjRtBuffer::Await", "BlockHostUntilReady")
COMPUTE, LINK, STREAM = "compute", "link", "stream"
# A device that did nothing during so much of a collective, and begins to work in the rest of it, had waited for it.
IDLE, REST = 0.5, 0.1


class Identity(NamedTuple):
    """What is the same for all runs of an operation. `program` is empty for one of TensorFlow's graph."""

    name: str
    op: str
    kind: TrackKind
    phase: Phase | None
    layer: str | None
    program: str
    stream: int | None


Key = tuple[Identity, int]


class OperationRun(NamedTuple):
    """One execution: the operation, how often it ran before in this step, and its time."""

    identity: Identity
    occurrence: int
    start_ns: int
    end_ns: int


@dataclass(slots=True)
class Profile:
    """A file. Times are of the machine's monotonic clock if the file has marks of it (`is_aligned`).

    `runs` are those of each device, for each step in the order of their starts. `host` is when the program's own thread
    worked, `inputs` when a batch was fetched; both sorted, without overlap.
    """

    path: Path
    worker: int
    device: str
    windows: list[Window]
    runs: dict[int, list[list[OperationRun]]]
    host: list[Interval]
    inputs: list[Interval]
    programs: dict[str, HloProgram] = field(default_factory=dict)
    is_aligned: bool = False
    caveats: list[str] = field(default_factory=list)


def read(path: Path, position: int) -> Profile:
    """Read a file; without a worker in its name it is that of the rank at this position.

    Raises `TraceError` for a file that cannot be read, and `GraphError` for one without steps or their work.
    """
    recording = reader.read(path)
    worker = worker_of(path)
    spans = tracks.spans(recording, 0, _names(path))
    work_spans = spans[len(spans) - recording.worked.whats.size :]
    step_spans = sorted((span for span in spans if span.track.kind is TrackKind.STEPS), key=lambda span: span.step or 0)
    _check_steps(path, step_spans)
    shift_ns = -min((own_ns - machine_ns for own_ns, machine_ns in recording.clocks), default=0)
    runs, caveats = _runs(
        path, step_spans, work_spans, [operation.program for operation in tracks.operations(recording)]
    )
    windows = _windows(step_spans, runs.values())
    profile = Profile(
        path=path,
        worker=position if worker is None else worker,
        device=recording.device,
        windows=windows,
        runs=dict(enumerate(runs[device] for device in sorted(runs))),
        host=union((mark.start_ns, mark.end_ns) for mark in recording.marks if _is_work(mark.name)),
        inputs=union((span.start_ns, span.end_ns) for span in spans if span.track.kind is TrackKind.INPUT),
        programs=_programs(path, recording.programs, runs.values()),
        is_aligned=bool(recording.clocks),
        caveats=[*caveats, *(f"{path}: the profiler says: {text}" for text in recording.warnings)],
    )
    _begin_with_input(profile)
    _shift(profile, shift_ns)
    return profile


def union(intervals: Iterable[Interval]) -> list[Interval]:
    """Return the intervals without overlap, sorted."""
    merged: list[Interval] = []
    for begin, end in sorted(intervals):
        if merged and begin <= merged[-1][1]:
            merged[-1] = merged[-1][0], max(end, merged[-1][1])
        else:
            merged.append((begin, end))
    return merged


def _names(path: Path) -> Names:
    """Return the names of layers, which the runner stores next to the profiler's files."""
    names_path = path.parent / NAMES_NAME
    try:
        return decode(Names, read_json(names_path))
    except FileNotFoundError:
        return Names()
    except (OSError, ValueError) as error:
        raise TraceError(f"{names_path}: is damaged ({error}); record the trace again") from error


def _programs(
    path: Path, stored_programs: Mapping[str, bytes], devices: Iterable[list[list[OperationRun]]]
) -> dict[str, HloProgram]:
    """Read the programs that the steps have run. Raises `TraceError`."""
    used_programs = {run.identity.program for steps in devices for runs in steps for run in runs}
    try:
        return {
            name: hlo_program.read(memoryview(data)) for name, data in stored_programs.items() if name in used_programs
        }
    except (LookupError, TypeError, ValueError, OverflowError) as error:
        raise TraceError(f"{path}: contains an invalid program: {error}; record it again") from error


def _is_work(name: str) -> bool:
    """Return whether an event of the program's thread is work: not a mark of a step, and not a wait."""
    return not name.startswith((MARK, *WAITS)) and name != "train"


def _check_steps(path: Path, step_spans: Sequence[Span]) -> None:
    """Raise `GraphError` if there is no step, or if the clock ran backwards between two."""
    if not step_spans:
        raise GraphError(
            f"{path}: contains no step; mark steps with jax.profiler.StepTraceAnnotation or"
            " tf.profiler.experimental.Trace(..., step_num=N), or record the trace with runner trace"
        )
    for before, after in pairwise(step_spans):
        if after.start_ns < before.end_ns - TOLERANCE_NS:
            raise GraphError(
                f"{path}: {after.name!r} begins at {after.start_ns} ns, before {before.name!r} ends at"
                f" {before.end_ns} ns: the clock ran backwards, or steps overlap"
            )


def _runs(
    path: Path, step_spans: list[Span], work_spans: Sequence[Span], programs: Sequence[str]
) -> tuple[dict[int, list[list[OperationRun]]], list[str]]:
    """Return the runs of each device in each step, and caveats. Raises `GraphError` if a step has no work.

    A last step without work, in which the profiler stopped, is removed from the marks.
    """
    index_by_step = {step_span.step: index for index, step_span in enumerate(step_spans)}
    counts: Counter[tuple[int, int, Identity]] = Counter()
    runs: dict[int, list[list[OperationRun]]] = defaultdict(lambda: [[] for _ in index_by_step])
    outside_ns: Counter[str] = Counter()
    for span, program in zip(work_spans, programs, strict=True):
        if span.track.kind is TrackKind.OUTSIDE and step_spans[0].start_ns <= span.start_ns <= step_spans[-1].end_ns:
            outside_ns[span.name] += span.duration_ns
        if span.track.kind not in WORKING:
            continue
        index = index_by_step.get(span.step)
        if index is None and not program:
            index = _step_at(step_spans, span.start_ns)
        if index is None or span.start_ns < step_spans[index].start_ns - TOLERANCE_NS:
            if step_spans[0].start_ns <= span.start_ns <= step_spans[-1].end_ns:
                outside_ns[span.name] += span.duration_ns
            continue
        identity = Identity(*(span.name, span.op, span.track.kind, span.phase, span.layer, program, span.stream))
        occurrence = counts[span.track.worker, index, identity]
        counts[span.track.worker, index, identity] += 1
        runs[span.track.worker][index].append(OperationRun(identity, occurrence, span.start_ns, span.end_ns))
    caveats = []
    for index, step_span in enumerate([*step_spans]):
        step_runs = [run for steps in runs.values() for run in steps[index]]
        if not step_runs and 0 < index == len(step_spans) - 1 and not outside_ns:
            caveats.append(
                f"step {index + 1} is left out: the profiler stopped before it ended, without an operation of it"
            )
            step_spans.pop()
            runs = {device: steps[:-1] for device, steps in runs.items()}
            break
        if not step_runs:
            outside_text = (
                f" {len(outside_ns)} operations belong to no step, such as {next(iter(outside_ns))!r};"
                if outside_ns
                else ""
            )
            raise GraphError(f"{path}: {step_span.name!r} contains no operation;{outside_text} record the trace again")
        if not any(run.end_ns > run.start_ns for run in step_runs):
            raise GraphError(
                f"{path}: the operations of {step_span.name!r}, such as {step_runs[0].identity.name!r}, have no "
                "duration; record the trace again"
            )
    return runs, [*caveats, *_outside(path, outside_ns, len(step_spans))]


def _step_at(step_spans: Sequence[Span], at_ns: int) -> int | None:
    """Return the step within which an operation of a graph began; the event of its end may be later than the step's."""
    index = bisect_right(step_spans, at_ns, key=lambda step_span: step_span.start_ns) - 1
    return index if index >= 0 and at_ns <= step_spans[index].end_ns else None


def _outside(path: Path, outside_ns: Counter[str], step_count: int) -> list[str]:
    if not outside_ns:
        return []
    names_text = ", ".join(repr(name) for name, _ in outside_ns.most_common(3))
    return [
        f"{path}: {len(outside_ns)} operations ({outside_ns.total() / 1e6 / step_count:.3f} ms a step) belong to no "
        f"step and are left out: {names_text}"
    ]


def _windows(step_spans: Sequence[Span], devices: Iterable[list[list[OperationRun]]]) -> list[Window]:
    ends_ns = [step_span.end_ns for step_span in step_spans]
    for steps in devices:
        for index, runs in enumerate(steps):
            ends_ns[index] = max(ends_ns[index], max((run.end_ns for run in runs), default=0))
    windows: list[Window] = []
    for step_span, end_ns in zip(step_spans, ends_ns, strict=True):
        begin_ns = windows[-1].end_ns if windows else step_span.start_ns
        windows.append(Window(begin_ns, max(begin_ns, end_ns)))
    return windows


def _begin_with_input(profile: Profile) -> None:
    """Let the first step begin with the fetch of its batch, if that ended just before its mark."""
    first_window = profile.windows[0]
    longest = max(window.time_ns for window in profile.windows)
    for begin_ns, end_ns in reversed(profile.inputs):
        if end_ns <= first_window.begin_ns:
            if first_window.begin_ns - begin_ns < longest:
                first_window.begin_ns = begin_ns
            return


def _shift(profile: Profile, shift_ns: int) -> None:
    """Add a time to all times."""
    if not shift_ns:
        return
    for window in profile.windows:
        window.begin_ns += shift_ns
        window.end_ns += shift_ns
    profile.host = [(begin + shift_ns, end + shift_ns) for begin, end in profile.host]
    profile.inputs = [(begin + shift_ns, end + shift_ns) for begin, end in profile.inputs]
    for steps in profile.runs.values():
        for index, runs in enumerate(steps):
            steps[index] = [
                run._replace(start_ns=run.start_ns + shift_ns, end_ns=run.end_ns + shift_ns) for run in runs
            ]


@dataclass(slots=True)
class OperationRow:
    """An operation of a rank: its lane, a name that no other has there, and its runs, None in a step without it.

    `position` is the median of its ends, from the beginning of the step.
    """

    identity: Identity
    occurrence: int
    lane: str
    runs: list[OperationRun | None]
    position: float = 0.0
    name: str = ""

    @property
    def is_collective(self) -> bool:
        """Whether all ranks of a group run it together."""
        return is_symmetric(self.identity)


@dataclass(slots=True)
class Rows:
    """The rows of a rank by their lane, in order, and the time of operations that few steps have."""

    lanes: dict[str, list[OperationRow]] = field(default_factory=dict)
    rare_ns: Counter[str] = field(default_factory=Counter)


def is_symmetric(identity: Identity) -> bool:
    """Return whether each rank of a group has its own event of this collective.

    TensorFlow's workers in one process have not: one of them sums the parts of all.
    """
    return identity.kind is TrackKind.COMMUNICATION and bool(
        COLLECTIVE.match(identity.op) or is_collective(identity.name)
    )


def lane_of(identity: Identity) -> str:
    """Return the lane of an operation: a device's stream, the link, or the pool of threads."""
    if identity.stream is not None:
        return f"{STREAM} {identity.stream}"
    return LINK if is_symmetric(identity) else COMPUTE


def rows_of(steps: Sequence[Sequence[OperationRun]]) -> Rows:
    """Return the rows of a rank, of the operations that at least half of its steps have, in no order yet."""
    runs: dict[Key, dict[int, OperationRun]] = defaultdict(dict)
    for step, step_runs in enumerate(steps):
        for run in step_runs:
            runs[run.identity, run.occurrence][step] = run
    rows = Rows()
    for (identity, occurrence), run_by_step in runs.items():
        if 2 * len(run_by_step) < len(steps):
            rows.rare_ns[identity.name] += sum(run.end_ns - run.start_ns for run in run_by_step.values())
            continue
        row = OperationRow(
            identity, occurrence, lane_of(identity), [run_by_step.get(step) for step in range(len(steps))]
        )
        rows.lanes.setdefault(row.lane, []).append(row)
    return rows


def put_in_order(rows: Rows, windows: Sequence[Window]) -> None:
    """Sort the rows of each lane by the median of their ends, and name them."""
    names: Counter[tuple[str, str]] = Counter()
    for lane, lane_rows in rows.lanes.items():
        for row in lane_rows:
            ends = (run.end_ns - window.begin_ns for run, window in zip(row.runs, windows, strict=True) if run)
            row.position = median(ends)
        lane_rows.sort(key=lambda row: row.position)
        for row in lane_rows:
            names[lane, row.identity.name] += 1
            number = names[lane, row.identity.name]
            row.name = row.identity.name if number == 1 else f"{row.identity.name} #{number}"


def end_before_use(befores: Iterable[tuple[OperationRow, OperationRow]]) -> None:
    """Let an operation end before what depends on it begins; `befores` are pairs of an operation and an earlier one."""
    for row, other in befores:
        for step, (run, run_before) in enumerate(zip(row.runs, other.runs, strict=True)):
            if run and run_before and run_before.start_ns <= run.start_ns < run_before.end_ns:
                other.runs[step] = run_before._replace(end_ns=run.start_ns)


def end_before_work(rows: Rows, profiles: Iterable[Profile], lanes: Iterable[str]) -> None:
    """Let collectives that no program describes end when the device begins to work again, on these lanes."""
    described = {name for profile in profiles for name in profile.programs}
    collectives = [
        row
        for lane_rows in rows.lanes.values()
        for row in lane_rows
        if row.is_collective and row.identity.program not in described
    ]
    if not collectives:
        return
    busy_intervals = union(
        (run.start_ns, run.end_ns)
        for lane in lanes
        for row in rows.lanes[lane]
        for run in row.runs
        if run and not row.is_collective
    )
    for row in collectives:
        for step, run in enumerate(row.runs):
            if run and (end_ns := _work_after(busy_intervals, (run.start_ns, run.end_ns))):
                row.runs[step] = run._replace(end_ns=end_ns)


def _work_after(busy_intervals: list[Interval], collective: Interval) -> int | None:
    """Return when work begins near the end of a collective, after the device did nothing for most of it."""
    begin_ns, end_ns = collective
    length_ns = end_ns - begin_ns
    index = bisect_right(busy_intervals, (end_ns, 0)) - 1
    while index >= 0 and busy_intervals[index][0] > end_ns - REST * length_ns:
        idle_ns = busy_intervals[index][0] - max(begin_ns, busy_intervals[index - 1][1] if index else begin_ns)
        if idle_ns > IDLE * length_ns:
            return busy_intervals[index][0]
        index -= 1
    return None

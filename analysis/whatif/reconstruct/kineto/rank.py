"""One Kineto file as the pieces of a rank: its threads, its device's streams, its collectives, and their order.

A trace has no event of a thread's wait for a collective of gloo or for another thread, but what the libraries do is
known: a call that is not made within a backward pass returns when its collective has ended; DistributedDataParallel
waits for a bucket before it copies the bucket's sums, after the last gradient. Otherwise a thread waits for what
ended while it did nothing, if this is so in most of the steps.

A module of its own: it knows one file of one rank, and `graph` what the ranks share.
"""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from collections import Counter, defaultdict
from collections.abc import Iterable, Mapping, Sequence
from itertools import pairwise

from keras_matrix.analysis.whatif.graph import GraphError, NodeKind
from keras_matrix.analysis.whatif.reconstruct.kineto.device import (
    THREADS,
    TRANSFERS_AT_A_TIME,
    DevicePieces,
    cut_by_size,
    fill_buckets,
    is_transfer,
    joined_piece,
    launches_of,
    number_calls,
    size_of,
)
from keras_matrix.analysis.whatif.reconstruct.kineto.host import ACCUMULATE, REDUCER, HostWork, Launch, Sweep
from keras_matrix.analysis.whatif.reconstruct.kineto.reading import RUNTIME, Place, RankEvent, RankRecording
from keras_matrix.analysis.whatif.reconstruct.pieces import TOLERANCE_NS, Lane, Piece, RankTrace, Window, by_step
from keras_matrix.records.traces.kineto import unread
from keras_matrix.records.traces.neutral import Phase, is_unfinished
from keras_matrix.records.traces.request import STEP
from keras_matrix.records.traces.torch import OPERATORS, Making

MAIN, AUTOGRAD = "host", "autograd"
BEGIN = "step"
# Steps overlap by less than this only because their times were rounded.
ROUNDING_NS = 1_000
# A thread that does nothing for less than this does not wait for another thread: it is between operators.
LEAST_WAIT_NS = 50_000
# A hook of DDP in Python takes a fraction of this to start a collective.
LEAST_HOOK_WAIT_NS = 1_000_000


def trace_of(recording: RankRecording, rank: int) -> RankTrace:
    """Return the pieces of a rank's file. Raises `GraphError`."""
    for events in recording.threads.values():
        events.sort(key=lambda event: (event.start_ns, -event.end_ns))
    windows, main = _steps(recording)
    if recording.streams:
        # What a device does follows one upon another; the time before a mark, such as fetching a batch, is the step's.
        windows = windows[:1] + [Window(before.end_ns, window.end_ns) for before, window in pairwise(windows)]
    caveats = []
    if not windows:
        windows, main = _whole(recording)
        caveats.append(f"rank {rank}: no step is marked, so that the whole file counts as one step")
    if text := unread(recording.others, has_device=recording.on_device):
        caveats.append(f"rank {rank}: {text}")
    recording.threads.setdefault(main, [])
    lanes = _lanes(recording, main)
    making = Making(rank, bool(recording.streams), gone_back=recording.gone_back)
    work = HostWork(windows, making, _issued(recording), launches_of(recording, lanes))
    work.orphans = _orphans(recording)
    find_returns(work, recording.threads, lanes)
    trace = RankTrace(str(recording.path), rank, windows, {}, lanes[main], caveats=caveats)
    for place, lane in lanes.items():
        phase = Phase.BACKWARD if lane.startswith(AUTOGRAD) else None
        trace.lanes[lane] = by_step(Sweep(work, lane, phase).run(recording.threads[place]), len(windows))
    device = DevicePieces(recording, work)
    device.connect()
    for lane, pieces in device.lanes.items():
        trace.lanes[lane] = by_step(pieces, len(windows))
    trace.streams = frozenset(device.lanes)
    trace.unfinished = _unfinished(trace, work, recording)
    trace.caveats += [f"rank {rank}: {text}" for text in device.caveats]
    _add_collectives(recording, work, trace)
    hand_over(trace, [lane for lane in lanes.values() if lane != trace.main])
    _tie_to_steps(trace)
    return trace


def _unfinished(trace: RankTrace, work: HostWork, recording: RankRecording) -> str | None:
    """Return why the last step is unfinished, None if it is not."""
    names = [[piece.name for piece in pieces] for pieces in trace.lanes[trace.main]]
    launched = [0] * len(names)
    missing_counts = [0] * len(names)
    for events in recording.threads.values() if recording.streams else ():
        for event in events:
            if event.category in RUNTIME and "LaunchKernel" in event.name:
                step = work.step_at(event.start_ns)
                if step is not None:
                    launched[step] += 1
                    missing_counts[step] += event.correlation not in work.device
    if len(missing_counts) > 1 and missing_counts[-1] and not any(missing_counts[:-1]):
        return f"{missing_counts[-1]} of its {launched[-1]} launches have no kernel"
    if is_unfinished(names):
        return f"it has {len(names[-1])} operations, the step before has {len(names[-2])}"
    return None


def _tie_to_steps(trace: RankTrace) -> None:
    """Let work that waits for nothing known start at the same time of each step: after a mark of the step's begin."""
    for step, window in enumerate(trace.windows):
        mark = Piece(trace.main, BEGIN, NodeKind.WAIT, window.begin_ns, window.begin_ns, step=step)
        free_pieces = [
            piece
            for lane, steps in trace.lanes.items()
            for index, piece in enumerate(steps[step])
            if lane != trace.main and not piece.after and (index == 0 or lane in trace.parallel)
        ]
        for piece in free_pieces:
            piece.after.append(mark)
        if free_pieces or not trace.lanes[trace.main][step]:
            trace.lanes[trace.main][step].insert(0, mark)


def _steps(recording: RankRecording) -> tuple[list[Window], Place]:
    """Return the marked steps and their thread, the one with the most; this project's own marks are preferred."""
    candidates: list[tuple[bool, int, Place, list[RankEvent]]] = []
    for place, marks in recording.steps.items():
        step_marks = [event for event in marks if event.name.startswith(STEP)]
        candidates.append((bool(step_marks), len(step_marks or marks), place, step_marks or marks))
    _, _, place, marks = max(candidates, key=lambda candidate: candidate[:2], default=(False, 0, (None, None), []))
    marks = sorted(marks, key=lambda event: event.start_ns)
    for before, event in pairwise(marks):
        if event.start_ns < before.end_ns - ROUNDING_NS:
            raise GraphError(
                f"{recording.path}: {event.name!r} begins {(before.end_ns - event.start_ns) / 1e6:.3f} ms before the"
                f" end of {before.name!r}: the clock ran backwards, or steps were marked twice; record the trace again"
            )
    return [Window(event.start_ns, event.end_ns) for event in marks if event.end_ns > event.start_ns], place


def _whole(recording: RankRecording) -> tuple[list[Window], Place]:
    """Return the time of all operators as one step, and the thread with the most of them."""
    counts = {
        place: sum(event.category in OPERATORS for event in events) for place, events in recording.threads.items()
    }
    place = max(counts, key=lambda place: counts[place], default=None)
    if place is None or not counts[place]:
        raise GraphError(f"{recording.path}: has no step and no operator of a thread; record steps with torch.profiler")
    on_threads = OPERATORS | RUNTIME
    events = [event for events in recording.threads.values() for event in events if event.category in on_threads]
    events += [event for events in recording.streams.values() for event in events]
    begin_ns = min(event.start_ns for event in events)
    return [Window(begin_ns, max(*(event.end_ns for event in events), begin_ns + 1))], place


def _lanes(recording: RankRecording, main: Place) -> dict[Place, str]:
    """Return the names of the program's threads, the main one first.

    Left out are threads of libraries: those of gloo, and those that only ask a device for its state.
    """
    lanes = {main: MAIN}
    counts = {AUTOGRAD: 0, MAIN: 1}
    for place, events in recording.threads.items():
        if (
            place == main
            or _has_collectives(recording, place)
            or not any(event.category in OPERATORS for event in events)
        ):
            continue
        kind = AUTOGRAD if place in recording.backward and place not in recording.marked else MAIN
        counts[kind] += 1
        lanes[place] = kind if counts[kind] == 1 else f"{kind} {counts[kind]}"
    return lanes


def _has_collectives(recording: RankRecording, place: Place) -> bool:
    """Return whether a thread runs collectives of gloo."""
    return any(not is_transfer(event) for event in recording.gloo.get(place, ()))


def _issued(recording: RankRecording) -> dict[int, RankEvent]:
    """Return a device's work by the number of the call that issued it."""
    return {
        event.correlation: event
        for events in recording.streams.values()
        for event in events
        if event.wait is None and event.correlation >= 0
    }


def _orphans(recording: RankRecording) -> frozenset[int]:
    """Return the external ids of a device's work whose call is not in the file."""
    calls = {
        event.correlation for events in recording.threads.values() for event in events if event.category in RUNTIME
    }
    return frozenset(
        event.external
        for events in recording.streams.values()
        for event in events
        if event.wait is None and event.correlation not in calls and event.external >= 0
    )


def _add_collectives(recording: RankRecording, work: HostWork, trace: RankTrace) -> None:
    """Add the collectives of gloo as lanes, number all, and add the gradients in them and what waits for them."""
    step_count = len(trace.windows)
    joined = sorted(work.launches.values(), key=lambda launch: launch.event.start_ns)
    pieces = [launch.joined for launch in joined if launch.joined.step >= 0]
    pieces += _without_start(recording, work, trace)
    for lane in dict.fromkeys(piece.lane for piece in pieces):
        trace.lanes[lane] = by_step([piece for piece in pieces if piece.lane == lane], step_count)
        at_a_time = TRANSFERS_AT_A_TIME if lane != "gloo" else _threads(recording)
        trace.parallel[lane] = at_a_time
    gloo = by_step(pieces, step_count)
    unknown_pieces: list[list[Piece]] = []
    for step in range(step_count):
        on_device = [piece for lane in trace.lanes.values() for piece in lane[step] if piece.issued_ns and piece.call]
        calls = [*gloo[step], *sorted(on_device, key=lambda piece: piece.issued_ns)]
        buckets = [call for call in calls if any(ACCUMULATE in piece_before.name for piece_before in call.after)]
        copies: Sequence[Piece] = _copies(trace, step)
        if buckets and not on_device:
            copies = wait_for_buckets(_lane_of(trace, buckets[0], step), buckets)
        fill_buckets(buckets, _gradients(trace, step), copies)
        number_calls([calls])
        return_ids = {id(launch.joined) for launch in joined if launch.resumes_ns is not None or launch.gradient}
        unknown_pieces.append([piece for piece in gloo[step] if id(piece) not in return_ids and piece.lane == "gloo"])
    wait_for_others(trace, unknown_pieces)


def _without_start(recording: RankRecording, work: HostWork, trace: RankTrace) -> list[Piece]:
    """Return the collectives within steps of which no call is known that started them."""
    joined_marks = {(launch.joined.start_ns, launch.joined.name) for launch in work.launches.values()}
    pieces = []
    for events in recording.gloo.values():
        for event in events:
            step = work.step_at(event.start_ns)
            if step is not None and (event.start_ns, event.name) not in joined_marks:
                piece = joined_piece(recording, event, event)
                piece.step = step
                pieces.append(piece)
    if pieces:
        trace.caveats.append(f"rank {trace.rank}: {len(pieces)} collectives were started by no operator of the trace")
    return sorted(pieces, key=lambda piece: piece.start_ns)


def _threads(recording: RankRecording) -> int:
    """Return how many collectives of gloo run at a time."""
    with_collectives = sum(_has_collectives(recording, place) for place in recording.gloo)
    return max(THREADS, with_collectives)


def _lane_of(trace: RankTrace, call: Piece, step: int) -> Lane:
    return trace.lanes[call.after[0].lane][step]


def _gradients(trace: RankTrace, step: int) -> list[Piece]:
    """Return the pieces that complete gradients, in their order."""
    gradients = [piece for piece in trace.pieces(step) if piece.ends_gradient]
    return sorted(gradients, key=lambda piece: piece.issued_ns or piece.end_ns)


def _copies(trace: RankTrace, step: int) -> list[Piece]:
    """Return a device's copies of summed gradients out of DDP's buckets, in their order."""
    copies = [
        piece
        for piece in trace.pieces(step)
        if piece.issued_ns and piece.after and piece.after[0].name.startswith(REDUCER) and piece.bytes
    ]
    return sorted(copies, key=lambda piece: piece.issued_ns)


def find_returns(work: HostWork, threads: Mapping[Place, Sequence[RankEvent]], lanes: Mapping[Place, str]) -> None:
    """Note when each call that waits for its collective returns.

    A call is judged by all steps: its thread does nothing until the collective has ended in most of them. In a few, the
    event of the collective may end late, because its thread has to wait for a core.
    """
    starts = {lanes[place]: [event.start_ns for event in threads[place]] for place in lanes}
    launches_by_position: dict[tuple[str, int], list[tuple[Launch, int]]] = defaultdict(list)
    counts: Counter[tuple[int | None, str]] = Counter()
    for launch in work.launches.values():
        step = work.step_at(launch.event.start_ns)
        launches_by_position[launch.lane, counts[step, launch.lane]].append(
            (launch, _next_ns(launch, starts[launch.lane]))
        )
        counts[step, launch.lane] += 1
    for calls in launches_by_position.values():
        if 2 * sum(_waits_until(launch, next_ns) for launch, next_ns in calls) > len(calls):
            for launch, next_ns in calls:
                launch.joined.end_ns = max(launch.joined.start_ns, min(launch.joined.end_ns, next_ns))
                launch.resumes_ns = max(launch.event.end_ns, launch.joined.end_ns)


def _next_ns(launch: Launch, starts: Sequence[int]) -> int:
    """Return when the thread of a call does something after it: another event, or the end of the gradient around."""
    index = bisect_left(starts, launch.event.end_ns)
    following = starts[index] if index < len(starts) else launch.joined.end_ns
    return following if launch.gradient is None else min(following, launch.gradient.end_ns)


def _waits_until(launch: Launch, next_ns: int) -> bool:
    """Return whether a call seems to wait for its collective: its thread does nothing for most of the time.

    Not for all of it, because the event of a collective ends after those that wait for it have been told. DDP does not
    wait in the backward pass, unless a hook of the program does. So a collective that ends within the usual time of
    such a hook proves nothing.
    """
    lasts_ns = launch.joined.end_ns - launch.event.end_ns
    idle_ns = next_ns - launch.event.end_ns
    return 2 * idle_ns >= lasts_ns and (launch.gradient is None or lasts_ns >= LEAST_HOOK_WAIT_NS)


def wait_for_buckets(lane: Lane, calls: Sequence[Piece]) -> list[Piece]:
    """Let a thread wait for the buckets of a step's backward pass; return the copies out of them.

    DDP first takes views of a bucket's sums, if it has several gradients: these wait, and the copies follow them.
    """
    last_index = max((index for index, piece in enumerate(lane) if ACCUMULATE in piece.name), default=-1)
    later_pieces = lane[last_index + 1 :]
    copies = [piece for piece in later_pieces if piece.name.startswith(REDUCER) and "copy_bucket_to_grad" in piece.name]
    sizes = [call.call.bytes for call in calls if call.call is not None]
    groups = cut_by_size([size_of(piece) for piece in copies], sizes) if copies else None
    first_piece = _first_of_bucket(later_pieces, copies[0]) if copies else next(iter(later_pieces), None)
    for index, call in enumerate(calls):
        waiting_piece = (
            _first_of_bucket(later_pieces, copies[groups[index].start]) if groups and groups[index] else first_piece
        )
        if waiting_piece is not None:
            waiting_piece.after.append(call)
            call.end_ns = max(call.start_ns, min(call.end_ns, waiting_piece.start_ns))
    return copies


def _first_of_bucket(pieces: Sequence[Piece], copy: Piece) -> Piece:
    """Return the first of the pieces that prepare a copy: those between it and the copy before it."""
    index = next(number for number, piece in enumerate(pieces) if piece is copy)
    while index > 0 and "copy_bucket_to_grad" not in pieces[index - 1].name:
        index -= 1
    return pieces[index]


def wait_for_others(trace: RankTrace, calls: Sequence[Sequence[Piece]]) -> None:
    """Let threads wait for collectives that end while they are idle: `calls` of each step.

    Nothing waits for these yet. For each of them, the first piece of its own thread that begins after it in most steps
    and before which the thread was idle when it ended.
    """
    counts = Counter(len(step_calls) for step_calls in calls)
    usual = counts.most_common(1)[0][0] if counts else 0
    for number in range(usual):
        matching = [(step, step_calls[number]) for step, step_calls in enumerate(calls) if len(step_calls) == usual]
        waits = [(call, _idle_until(trace, step, call)) for step, call in matching]
        waiting_pairs = [(call, piece) for call, piece in waits if piece is not None]
        if 2 * len(waiting_pairs) > len(matching):
            for call, piece in waiting_pairs:
                piece.after.append(call)
        else:
            name = matching[0][1].name
            trace.caveats.append(f"rank {trace.rank}: no operation is known to wait for collective {number}, {name}")


def _idle_until(trace: RankTrace, step: int, call: Piece) -> Piece | None:
    """Return the piece before which its thread was idle when a collective ended."""
    lane = trace.lanes[call.after[0].lane if call.after else trace.main][step]
    index = bisect_left(lane, call.end_ns, key=lambda piece: piece.start_ns)
    if not 0 < index < len(lane):
        return None
    piece_before, following = lane[index - 1], lane[index]
    is_idle = following.start_ns - piece_before.end_ns >= LEAST_WAIT_NS and piece_before.end_ns <= call.end_ns
    return following if is_idle else None


def hand_over(trace: RankTrace, threads: Iterable[str]) -> None:
    """Let other threads start after the main one, and the main one wait for them.

    A thread that begins to work while the main one is idle, such as autograd's, was asked to by the last piece of the
    main one, which waits for it.
    """
    for lane in threads:
        for step, pieces in enumerate(trace.lanes[lane]):
            _hand_over(trace.lanes[trace.main][step], pieces)


def _hand_over(main: Lane, pieces: Lane) -> None:
    ends = [piece.end_ns for piece in main]
    group: int | None = None
    free_ns = 0
    for index, piece in enumerate(pieces):
        # The last piece of the main thread that has ended, and the one after it.
        last_index = bisect_right(ends, piece.start_ns + TOLERANCE_NS) - 1
        following = main[last_index + 1] if last_index + 1 < len(main) else None
        is_inside = following is None or following.start_ns >= piece.end_ns - TOLERANCE_NS
        if last_index >= 0 and last_index != group and (main[last_index].end_ns > free_ns or index == 0):
            piece.after.append(main[last_index])
        is_ending = index + 1 == len(pieces) or (
            following is not None and pieces[index + 1].start_ns >= following.start_ns
        )
        if (
            is_inside
            and is_ending
            and following is not None
            and _waits(main[last_index] if last_index >= 0 else None, following)
        ):
            following.after.append(piece)
        group, free_ns = last_index, piece.end_ns


def _waits(piece_before: Piece | None, following: Piece) -> bool:
    return piece_before is not None and following.start_ns - piece_before.end_ns >= LEAST_WAIT_NS

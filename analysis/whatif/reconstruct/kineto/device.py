"""What ran on a device's streams, and what waits for what there.

A kernel follows the call that issued it and the previous one of its stream. A stream waits for another one where the
file says so (`cuda_sync`); without such events NCCL's rules apply: a collective waits for what its thread has issued
before, and each later `cudaStreamWaitEvent` of the program lets its stream wait for one collective, in their order.

The collectives of a rank: their size and group, what starts them on a CPU, and the gradients in them.

With gloo a collective runs on a thread of the library (`gloo:all_reduce`) after an operator (`c10d::allreduce_`) has
started it; a transfer between two ranks has its event on the thread that asks for it. With NCCL it is a kernel.
"""

from __future__ import annotations

import re
from bisect import bisect_left
from collections import Counter, defaultdict, deque
from collections.abc import Iterable, Iterator, Mapping, Sequence
from math import prod

from keras_matrix.analysis.whatif.graph import GraphError, NodeKind
from keras_matrix.analysis.whatif.reconstruct.kineto.host import (
    ACCUMULATE,
    HostWork,
    IssuingCall,
    Launch,
    StreamWait,
    Sync,
)
from keras_matrix.analysis.whatif.reconstruct.kineto.reading import (
    GLOO,
    NO_NUMBER,
    NOTHING,
    RUNTIME,
    SYNC,
    Message,
    Place,
    RankEvent,
    RankRecording,
    Wait,
    dtype_of,
)
from keras_matrix.analysis.whatif.reconstruct.pieces import CollectiveCall, Piece
from keras_matrix.records.dtypes import ELEMENT_BYTES
from keras_matrix.records.traces.neutral import Phase, copy_of, is_collective
from keras_matrix.records.traces.torch import BACKWARD

# A call that waits this long, for an event that the file does not name, has waited for the device's latest work.
LONG_WAIT_NS = 100_000
# Work that begins this long before the call that issues it was not converted to the same clock.
MOST_LEAD_NS = 1_000_000
STARTERS = ("c10d::", "_c10d_functional::", "c10d_functional::")
TRANSFERS = ("send", "recv")
COMMUNICATION = str(Phase.COMMUNICATION)
# gloo's default number of threads per process group.
THREADS = 2
TRANSFERS_AT_A_TIME = 64
# The first that occurs in a name without its signs. What has no cost formula counts as what moves the same bytes.
OPERATIONS = {
    "allreduce": "all_reduce",
    "reducescatter": "reduce_scatter",
    "allgather": "all_gather",
    "alltoall": "all_to_all",
    "broadcast": "broadcast",
    "barrier": "all_reduce",
    "send": "send",
    "recv": "send",
    "gather": "all_gather",
    "scatter": "broadcast",
    "reduce": "broadcast",
}


class DevicePieces:
    """The pieces of a rank's streams. `lanes` has those of each stream, in their order."""

    def __init__(self, recording: RankRecording, work: HostWork) -> None:
        self._recording, self._work = recording, work
        self.lanes: dict[str, list[Piece]] = {}
        self.caveats: list[str] = []
        self._by_stream: dict[object, list[Piece]] = {}
        self._issuers: dict[int, str] = {}  # the thread that issued a piece, by the identity of the piece
        self._by_correlation: dict[int, Piece] = {}
        self._waits: dict[int, tuple[Wait, object]] = {}
        self._calls = _calls(recording)
        self._foreign: Counter[str] = Counter()  # the time of work that no step has launched, by its name
        has_several_devices = len({place[0] for place in recording.streams}) > 1
        for place, events in sorted(recording.streams.items(), key=lambda item: str(item[0])):
            self._take(place, events, has_several_devices)
        if self._foreign:
            self.caveats.append(_outside(self._foreign))

    def _take(self, place: Place, events: list[RankEvent], several_devices: bool) -> None:
        name = f"device {place[0]} stream {place[1]}" if several_devices else f"stream {place[1]}"
        lane_ends_ns: list[int] = []
        for event in sorted(events, key=lambda event: (event.start_ns, event.end_ns)):
            if event.category in SYNC:
                if event.wait is not None:
                    self._waits[event.correlation] = event.wait, place[1]
                continue
            issue = self._work.issues.get(event.correlation) or self._work.by_external.get(event.external)
            step = issue.step if issue else self._step_of(event)
            if step is None or step < 0:
                if self._work.step_at(event.start_ns) is not None:
                    self._foreign[_short(event.name)] += event.end_ns - event.start_ns
                continue
            # Kernels of a graph overlap on one stream.
            lane_index = next(
                (index for index, end_ns in enumerate(lane_ends_ns) if end_ns <= event.start_ns), len(lane_ends_ns)
            )
            lane_ends_ns[lane_index : lane_index + 1] = [event.end_ns]
            piece = self._piece(f"{name} ({lane_index + 1})" if lane_index else name, event, issue, step)
            self.lanes.setdefault(piece.lane, []).append(piece)
            self._by_stream.setdefault(place[1], []).append(piece)
            self._by_correlation[event.correlation] = piece
        for pieces in self._by_stream.values():
            pieces.sort(key=lambda piece: piece.issued_ns)

    def _step_of(self, event: RankEvent) -> int | None:
        """Return the step of work whose call belongs to no operator: of the call or, in a file without calls, its own.

        None if calls are in the file, and its own is not: it was launched before the recording began.
        """
        if not self._calls:
            return self._work.step_at(event.start_ns)
        at_ns = self._calls.get(event.correlation)
        return None if at_ns is None else self._work.step_at(at_ns)

    def _piece(self, lane: str, event: RankEvent, issue: IssuingCall | None, step: int) -> Piece:
        piece = Piece(lane, _short(event.name), NodeKind.COMPUTE, event.start_ns, event.end_ns, step=step, cores=0.0)
        piece.issued_ns = event.start_ns
        piece.bytes = event.operands.bytes
        if issue is not None:
            if event.start_ns < issue.at_ns - MOST_LEAD_NS:
                raise GraphError(
                    f"{self._recording.path}: {event.name!r} begins {(issue.at_ns - event.start_ns) / 1e6:.3f} ms"
                    " before the call that issues it: the clock ran backwards; record the trace again"
                )
            piece.issued_ns = issue.at_ns
            piece.phase, piece.layer = issue.context.phase, issue.context.layer
            piece.ends_gradient = issue.ends_gradient
            if issue.operands is not NOTHING and piece.bytes is None:
                piece.bytes, piece.dtype, piece.shape, piece.flops = issue.operands
            self._issuers[id(piece)] = issue.lane
            if issue.piece is not None:
                piece.after.append(issue.piece)
        if is_collective(event.name):
            message = event.message or (issue.message if issue else None)
            piece.kind, piece.phase, piece.flops = NodeKind.COMMUNICATION, COMMUNICATION, None
            piece.call = call_of(message, event.name, self._recording)
            piece.bytes, piece.dtype = piece.call.bytes, piece.call.dtype
        elif copy := copy_of(event.name):
            piece.name, piece.flops = copy, None
        return piece

    def connect(self) -> None:
        """Add what streams and threads wait for."""
        if self._waits:
            self._explicit()
        else:
            self._before_collectives()
            self._after_collectives()
        for sync in self._work.syncs:
            sync.piece.after += self._awaited(sync)

    def _before(self, stream: object, at_ns: int) -> Piece | None:
        """Return the last work that was issued to a stream before a time."""
        pieces = self._by_stream.get(stream, [])
        index = bisect_left(pieces, at_ns, key=lambda piece: piece.issued_ns)
        return pieces[index - 1] if index else None

    def _from(self, stream: object, at_ns: int) -> Piece | None:
        """Return the first work that was issued to a stream from a time on."""
        pieces = self._by_stream.get(stream, [])
        index = bisect_left(pieces, at_ns, key=lambda piece: piece.issued_ns)
        return pieces[index] if index < len(pieces) else None

    def _explicit(self) -> None:
        for wait in self._work.stream_waits:
            if wait.correlation not in self._waits:
                continue
            (source, record), stream = self._waits[wait.correlation]
            piece_before = self._before(source, self._work.records.get(record, wait.at_ns))
            following = self._from(stream, wait.at_ns)
            if piece_before is not None and following is not None and piece_before is not following:
                following.after.append(piece_before)

    def _before_collectives(self) -> None:
        """Let each collective wait for what its thread has issued before to the stream that it computes on."""
        latest: dict[str, Piece] = {}
        anybody: Piece | None = None
        for piece in self._issued():
            issuer = self._issuers.get(id(piece), "")
            if piece.call is None:
                latest[issuer] = anybody = piece
            elif (piece_before := latest.get(issuer) or anybody) is not None:
                piece.after.append(piece_before)

    def _after_collectives(self) -> None:
        waits: dict[int, list[StreamWait]] = defaultdict(list)
        calls: dict[int, deque[Piece]] = defaultdict(deque)
        for wait in self._work.stream_waits:
            if not wait.in_collective and (step := self._work.step_at(wait.at_ns)) is not None:
                waits[step].append(wait)
        for piece in self._issued():
            if piece.call is not None:
                calls[piece.step].append(piece)
        differ = {step for step in calls if len(calls[step]) != len(waits[step])}
        for step, pending_calls in calls.items():
            started_calls: list[Piece] = []
            for wait in sorted(waits[step]):
                while (
                    pending_calls and pending_calls[0].issued_ns < wait.at_ns and (step in differ or not started_calls)
                ):
                    started_calls.append(pending_calls.popleft())
                following = self._next_compute(wait)
                if following is not None:
                    following.after += started_calls
                started_calls = []
        if differ:
            numbers_text = ", ".join(str(step + 1) for step in sorted(differ)[:5])
            self.caveats.append(
                f"waits of streams and collectives differ in number in step {numbers_text}: each wait is for all "
                "collectives that were started before it"
            )

    def _next_compute(self, wait: StreamWait) -> Piece | None:
        """Return the first work that the thread of a wait issued after it to a stream without collectives."""
        candidates = [
            piece
            for stream, pieces in self._by_stream.items()
            if not any(stream_piece.call is not None for stream_piece in pieces[:1])
            and (piece := self._from(stream, wait.at_ns)) is not None
            and self._issuers.get(id(piece)) == wait.lane
        ]
        return min(candidates, key=lambda piece: piece.issued_ns, default=None)

    def _issued(self) -> list[Piece]:
        pieces = (piece for pieces in self.lanes.values() for piece in pieces)
        return sorted(pieces, key=lambda piece: piece.issued_ns)

    def _awaited(self, sync: Sync) -> list[Piece]:
        """Return the work that a call of a thread waits for."""
        event = sync.event
        if sync.of_copy:
            copied = self._by_correlation.get(event.correlation)
            return [copied] if copied is not None else []
        streams: Iterable[object] = self._by_stream
        until_ns = event.start_ns
        if (waits := self._waits.get(event.correlation)) is not None:
            wait = waits[0]
            streams = self._by_stream if wait.stream is None else [wait.stream]
            until_ns = self._work.records.get(wait.record, until_ns) if wait.record != NO_NUMBER else until_ns
        elif "EventSync" in event.name and event.end_ns - event.start_ns < LONG_WAIT_NS:
            return []
        elif "StreamSync" in event.name:
            last_stream = self._last_stream(sync)
            streams = [last_stream] if last_stream is not None else streams
        pieces_before = (self._before(stream, until_ns) for stream in streams)
        return [piece for piece in pieces_before if piece is not None]

    def _last_stream(self, sync: Sync) -> object | None:
        """Return the stream to which the thread of a call issued work last."""
        last_pieces: Mapping[object, Piece | None] = {
            stream: self._before(stream, sync.event.start_ns) for stream in self._by_stream
        }
        issued_ns = {
            stream: piece.issued_ns
            for stream, piece in last_pieces.items()
            if piece is not None and self._issuers.get(id(piece)) == sync.lane
        }
        return max(issued_ns, key=lambda stream: issued_ns[stream], default=None)


def _calls(recording: RankRecording) -> dict[int, int]:
    """Return when each call of the device's library began, by its number."""
    return {
        event.correlation: event.start_ns
        for events in recording.threads.values()
        for event in events
        if event.category in RUNTIME and event.correlation != NO_NUMBER
    }


def _outside(foreign: Counter[str]) -> str:
    """Return a sentence about a device's work that no traced step has launched."""
    names_text = ", ".join(name for name, _ in foreign.most_common(3))
    return (
        f"work of the device that was launched outside of the traced steps ({foreign.total() / 1e6:.3f} ms in all) is"
        f" left out: {names_text}"
    )


def _short(name: str) -> str:
    """Return the name of a kernel without the arguments of its templates, which have thousands of characters."""
    return name.removeprefix("void ").partition("<")[0].partition("(ncclDev")[0]


def sort_of(name: str) -> str | None:
    """Return which collective a name of c10d, gloo or NCCL means, a key of `OPERATIONS`; None for another name."""
    plain_name = re.sub("[^a-z]", "", name.lower())
    return next((key for key in OPERATIONS if key in plain_name), None)


def is_transfer(event: RankEvent) -> bool:
    """Return whether this is gloo's event of a transfer between two ranks."""
    return event.name.removeprefix(GLOO) in TRANSFERS


def launches_of(recording: RankRecording, lanes: Mapping[Place, str]) -> dict[int, Launch]:
    """Return the start of each collective of gloo, by the identity of the event that starts it.

    `lanes` are the threads of the program. A collective belongs to the first call of its sort before it that has none.
    """
    waiting: dict[str, deque[RankEvent]] = defaultdict(deque)
    running = sorted(
        (event for events in recording.gloo.values() for event in events), key=lambda event: event.start_ns
    )
    for event in running:
        if (sort := sort_of(event.name)) is not None:
            waiting[sort].append(event)
    if not running:
        return {}
    launches: dict[int, Launch] = {}
    for event, place in sorted(_starters(recording, lanes), key=lambda entry: entry[0].start_ns):
        queue = waiting[sort_of(event.name) or ""]
        while queue and queue[0].start_ns < event.start_ns:
            queue.popleft()  # started before the recording
        if queue:
            piece = joined_piece(recording, queue.popleft(), event)
            gradient = _gradient_around(recording.threads[place], event)
            launches[id(event)] = Launch(event, lanes[place], piece, gradient)
    return launches


def _starters(recording: RankRecording, lanes: Mapping[Place, str]) -> Iterator[tuple[RankEvent, Place]]:
    """Yield the outermost operators that start collectives, and their threads."""
    for place in lanes:
        end_ns = 0
        for event in recording.threads[place]:
            if event.start_ns >= end_ns and event.name.startswith(STARTERS) and sort_of(event.name):
                end_ns = event.end_ns
                yield event, place


def _gradient_around(events: Sequence[RankEvent], event: RankEvent) -> RankEvent | None:
    """Return the addition of a gradient that surrounds an event of a thread, None if there is none."""
    index = bisect_left(events, event.start_ns, key=lambda gradient: gradient.start_ns)
    while index > 0:
        index -= 1
        event_before = events[index]
        if event_before.name.startswith(BACKWARD):
            return (
                event_before if event_before.name.endswith(ACCUMULATE) and event_before.end_ns >= event.end_ns else None
            )
    return None


def joined_piece(recording: RankRecording, event: RankEvent, starter: RankEvent) -> Piece:
    """Return the piece of a collective of gloo. Bytes are those of the complete array."""
    sort = sort_of(event.name) or ""
    operation = OPERATIONS[sort]
    group, ranks = _only_group(recording)
    size = event.operands.bytes or 0
    if operation == "all_gather":
        size *= max(1, len(ranks))
    if sort == "barrier":
        size = 0
    peer = starter.peer
    if operation == "send":
        own_rank, other_rank = recording.rank or 0, peer if peer != NO_NUMBER else 1 - (recording.rank or 0)
        source, target = (own_rank, other_rank) if sort == "send" else (other_rank, own_rank)
        group, ranks = f"{source} to {target}", (source, target)
    call = CollectiveCall(operation, group, ranks, size, event.operands.dtype, peer)
    lane = "gloo transfers" if operation == "send" else "gloo"
    return Piece(
        *(lane, event.name, NodeKind.COMMUNICATION, event.start_ns, event.end_ns),
        phase=COMMUNICATION,
        bytes=size,
        dtype=event.operands.dtype,
        shape=event.operands.shape,
        cores=0.0,
        call=call,
        step=-1,
    )


def _only_group(recording: RankRecording) -> tuple[str, tuple[int, ...]]:
    """Return the group of collectives whose event names none: that of all ranks, if it is the only one, else ""."""
    all_ranks = tuple(range(recording.world_size or 1))
    shared_groups = {name: ranks for name, ranks in recording.groups.items() if len(ranks) > 1}
    if len(set(shared_groups.values())) > 1:
        return "", all_ranks
    return next(iter(shared_groups.items()), ("0", all_ranks))


def call_of(message: Message | None, name: str, recording: RankRecording) -> CollectiveCall:
    """Return the collective of a kernel of NCCL, from what its event or the operator that started it says."""
    sort = sort_of(message.operation if message else name.partition("Kernel")[2]) or "allreduce"
    operation = OPERATIONS[sort]
    if message is None:
        group, ranks = _only_group(recording)
        return CollectiveCall(operation, group or "0", ranks, 0)
    dtype = dtype_of(message.dtype)
    elements = max(message.elements_in, message.elements_out)
    ranks = message.ranks or recording.groups.get(message.group) or tuple(range(recording.world_size or 1))
    return CollectiveCall(
        operation, message.group or "0", ranks, elements * (ELEMENT_BYTES[dtype] if dtype else 1), dtype
    )


def number_calls(steps: Sequence[Sequence[Piece]]) -> None:
    """Number the collectives of each step within their group, in the order in which they were started."""
    for pieces in steps:
        counts: dict[str, int] = defaultdict(int)
        for piece in pieces:
            if piece.call is not None:
                piece.call.ordinal = counts[piece.call.group]
                counts[piece.call.group] += 1


def fill_buckets(calls: Sequence[Piece], gradients: Sequence[Piece], copies: Sequence[Piece]) -> None:
    """Name the gradients of a step, and add to DDP's all-reduces (`calls`) the ones in them.

    `gradients` are in the order in which they were completed, `copies` those out of the buckets, in the buckets' own
    order. Both are cut where the bytes are those of a bucket; if they never are, the contents stay unknown. Gradients
    that were completed before, and are not in a bucket, are only parts of one (gradient accumulation).
    """
    for early_gradient in gradients[: max(0, len(gradients) - len(copies))] if copies else ():
        early_gradient.ends_gradient = False
    gradients = gradients[-len(copies) :] if copies else gradients
    for index, piece in enumerate(gradients):
        piece.gradient_of = piece.layer or f"gradient {index + 1}"
    sizes = [call.call.bytes for call in calls if call.call is not None]
    for pieces in (copies, gradients):
        piece_sizes = [size_of(piece) for piece in pieces]
        groups = cut_by_size(piece_sizes, sizes)
        if groups is None:
            continue
        names = [piece.gradient_of or "" for piece in gradients]
        for piece, group in zip(calls, groups, strict=True):
            if piece.call is not None:
                piece.call.tensors = tuple(piece_sizes[index] for index in group)
                piece.call.tensor_layers = (
                    tuple(names[index] for index in group) if len(names) == len(piece_sizes) else ()
                )
        return


def size_of(piece: Piece) -> int:
    """Return the bytes of a piece's first input, or those that it copies; 0 if unknown."""
    if piece.shape is not None:
        return prod(piece.shape) * ELEMENT_BYTES.get(piece.dtype or "", 0)
    return piece.bytes or 0


def cut_by_size(tensor_sizes: Sequence[int], sizes: Sequence[int]) -> list[range] | None:
    """Return successive ranges whose sums are these sizes, None if there are none that use everything."""
    index, ranges = 0, []
    for size in sizes:
        begin, total = index, 0
        while index < len(tensor_sizes) and total < size:
            total += tensor_sizes[index]
            index += 1
        if total != size:
            return None
        ranges.append(range(begin, index))
    return ranges if index == len(tensor_sizes) else None

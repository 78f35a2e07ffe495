"""The collectives of a rank: their size and group, what starts them on a CPU, and the gradients in them.

With gloo a collective runs on a thread of the library (`gloo:all_reduce`) after an operator (`c10d::allreduce_`) has
started it; a transfer between two ranks has its event on the thread that asks for it. With NCCL it is a kernel.
"""

from __future__ import annotations

import re
from bisect import bisect_left
from collections import defaultdict, deque
from collections.abc import Iterator, Mapping, Sequence
from math import prod

from keras_matrix.analysis.whatif.graph import NodeKind
from keras_matrix.analysis.whatif.reconstruct.kineto.host import ACCUMULATE, Launch
from keras_matrix.analysis.whatif.reconstruct.kineto.reading import (
    GLOO,
    NO_NUMBER,
    Message,
    Place,
    RankEvent,
    RankRecording,
)
from keras_matrix.analysis.whatif.reconstruct.kineto.shapes import dtype_of
from keras_matrix.analysis.whatif.reconstruct.pieces import CollectiveCall, Piece
from keras_matrix.records.dtypes import ELEMENT_BYTES
from keras_matrix.records.traces.neutral import Phase
from keras_matrix.records.traces.torch import BACKWARD

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


def sort_of(name: str) -> str | None:
    """Return which collective a name of c10d, gloo or NCCL means, a key of `OPERATIONS`; None for another name."""
    plain = re.sub("[^a-z]", "", name.lower())
    return next((key for key in OPERATIONS if key in plain), None)


def is_transfer(event: RankEvent) -> bool:
    """Return whether this is gloo's event of a transfer between two ranks."""
    return event.name.removeprefix(GLOO) in TRANSFERS


def launches_of(recording: RankRecording, lanes: Mapping[Place, str]) -> dict[int, Launch]:
    """Return the start of each collective of gloo, by the identity of the event that starts it.

    `lanes` are the threads of the program. A collective belongs to the first call of its sort before it that has none.
    """
    waiting: dict[str, deque[RankEvent]] = defaultdict(deque)
    running = sorted((event for events in recording.gloo.values() for event in events), key=lambda one: one.start_ns)
    for event in running:
        if (sort := sort_of(event.name)) is not None:
            waiting[sort].append(event)
    if not running:
        return {}
    found: dict[int, Launch] = {}
    for event, place in sorted(_starters(recording, lanes), key=lambda one: one[0].start_ns):
        queue = waiting[sort_of(event.name) or ""]
        while queue and queue[0].start_ns < event.start_ns:
            queue.popleft()  # started before the recording
        if queue:
            piece = joined(recording, queue.popleft(), event)
            around = _gradient_around(recording.threads[place], event)
            found[id(event)] = Launch(event, lanes[place], piece, around)
    return found


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
    at = bisect_left(events, event.start_ns, key=lambda one: one.start_ns)
    while at > 0:
        at -= 1
        before = events[at]
        if before.name.startswith(BACKWARD):
            return before if before.name.endswith(ACCUMULATE) and before.end_ns >= event.end_ns else None
    return None


def joined(recording: RankRecording, event: RankEvent, starter: RankEvent) -> Piece:
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
        own, other = recording.rank or 0, peer if peer != NO_NUMBER else 1 - (recording.rank or 0)
        source, target = (own, other) if sort == "send" else (other, own)
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
    everyone = tuple(range(recording.world_size or 1))
    own = {name: ranks for name, ranks in recording.groups.items() if len(ranks) > 1}
    if len(set(own.values())) > 1:
        return "", everyone
    return next(iter(own.items()), ("0", everyone))


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


def number(steps: Sequence[Sequence[Piece]]) -> None:
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
    for early in gradients[: max(0, len(gradients) - len(copies))] if copies else ():
        early.ends_gradient = False
    gradients = gradients[-len(copies) :] if copies else gradients
    for at, piece in enumerate(gradients):
        piece.gradient_of = piece.layer or f"gradient {at + 1}"
    sizes = [call.call.bytes for call in calls if call.call is not None]
    for pieces in (copies, gradients):
        known = [size_of(piece) for piece in pieces]
        groups = cut_by_size(known, sizes)
        if groups is None:
            continue
        names = [piece.gradient_of or "" for piece in gradients]
        for piece, group in zip(calls, groups, strict=True):
            if piece.call is not None:
                piece.call.tensors = tuple(known[at] for at in group)
                piece.call.tensor_layers = tuple(names[at] for at in group) if len(names) == len(known) else ()
        return


def size_of(piece: Piece) -> int:
    """Return the bytes of a piece's first input, or those that it copies; 0 if unknown."""
    if piece.shape is not None:
        return prod(piece.shape) * ELEMENT_BYTES.get(piece.dtype or "", 0)
    return piece.bytes or 0


def cut_by_size(known: Sequence[int], sizes: Sequence[int]) -> list[range] | None:
    """Return successive ranges whose sums are these sizes, None if there are none that use everything."""
    at, found = 0, []
    for size in sizes:
        begin, total = at, 0
        while at < len(known) and total < size:
            total += known[at]
            at += 1
        if total != size:
            return None
        found.append(range(begin, at))
    return found if at == len(known) else None

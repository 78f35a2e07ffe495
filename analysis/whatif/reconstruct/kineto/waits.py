"""Which piece of a thread waits for a collective of gloo, or for another thread. A trace has no event of such a wait.

What the libraries do is known: a call that is not made within a backward pass returns when its collective has ended;
DistributedDataParallel waits for a bucket before it copies the bucket's sums, after the last gradient. Otherwise a
thread waits for what ended while it did nothing, if this is so in most of the steps.
"""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from collections import Counter, defaultdict
from collections.abc import Iterable, Mapping, Sequence

from keras_matrix.analysis.whatif.reconstruct.kineto.collectives import cut_by_size, size_of
from keras_matrix.analysis.whatif.reconstruct.kineto.host import ACCUMULATE, REDUCER, HostWork, Launch
from keras_matrix.analysis.whatif.reconstruct.kineto.reading import Event, Place
from keras_matrix.analysis.whatif.reconstruct.pieces import TOLERANCE_NS, Lane, Piece, RankTrace

# A thread that does nothing for less than this does not wait for another thread: it is between operators.
LEAST_WAIT_NS = 50_000
# A hook of DDP in Python takes a fraction of this to start a collective.
LEAST_HOOK_WAIT_NS = 1_000_000


def find_returns(work: HostWork, threads: Mapping[Place, Sequence[Event]], lanes: Mapping[Place, str]) -> None:
    """Note when each call that waits for its collective returns.

    A call is judged by all steps: its thread does nothing until the collective has ended in most of them. In a few, the
    event of the collective may end late, because its thread has to wait for a core.
    """
    starts = {lanes[place]: [event.start_ns for event in threads[place]] for place in lanes}
    same: dict[tuple[str, int], list[tuple[Launch, int]]] = defaultdict(list)
    counts: Counter[tuple[int | None, str]] = Counter()
    for launch in work.launches.values():
        step = work.step_at(launch.event.start_ns)
        same[launch.lane, counts[step, launch.lane]].append((launch, _next_ns(launch, starts[launch.lane])))
        counts[step, launch.lane] += 1
    for calls in same.values():
        if 2 * sum(_waits_until(launch, next_ns) for launch, next_ns in calls) > len(calls):
            for launch, next_ns in calls:
                launch.joined.end_ns = max(launch.joined.start_ns, min(launch.joined.end_ns, next_ns))
                launch.resumes_ns = max(launch.event.end_ns, launch.joined.end_ns)


def _next_ns(launch: Launch, starts: Sequence[int]) -> int:
    """Return when the thread of a call does something after it: another event, or the end of the gradient around."""
    at = bisect_left(starts, launch.event.end_ns)
    following = starts[at] if at < len(starts) else launch.joined.end_ns
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
    last = max((at for at, piece in enumerate(lane) if ACCUMULATE in piece.name), default=-1)
    after = lane[last + 1 :]
    copies = [piece for piece in after if piece.name.startswith(REDUCER) and "copy_bucket_to_grad" in piece.name]
    sizes = [call.call.bytes for call in calls if call.call is not None]
    groups = cut_by_size([size_of(piece) for piece in copies], sizes) if copies else None
    first = _first_of_bucket(after, copies[0]) if copies else next(iter(after), None)
    for at, call in enumerate(calls):
        waiting = _first_of_bucket(after, copies[groups[at].start]) if groups and groups[at] else first
        if waiting is not None:
            waiting.after.append(call)
            call.end_ns = max(call.start_ns, min(call.end_ns, waiting.start_ns))
    return copies


def _first_of_bucket(after: Sequence[Piece], copy: Piece) -> Piece:
    """Return the first of the pieces that prepare a copy: those between it and the copy before it."""
    at = next(number for number, piece in enumerate(after) if piece is copy)
    while at > 0 and "copy_bucket_to_grad" not in after[at - 1].name:
        at -= 1
    return after[at]


def wait_for_others(trace: RankTrace, calls: Sequence[Sequence[Piece]]) -> None:
    """Let threads wait for collectives that end while they are idle: `calls` of each step.

    Nothing waits for these yet. For each of them, the first piece of its own thread that begins after it in most steps
    and before which the thread was idle when it ended.
    """
    counts = Counter(len(one) for one in calls)
    usual = counts.most_common(1)[0][0] if counts else 0
    for number in range(usual):
        same = [(step, one[number]) for step, one in enumerate(calls) if len(one) == usual]
        found = [(call, _idle_until(trace, step, call)) for step, call in same]
        waiting = [(call, piece) for call, piece in found if piece is not None]
        if 2 * len(waiting) > len(same):
            for call, piece in waiting:
                piece.after.append(call)
        else:
            name = same[0][1].name
            trace.caveats.append(f"rank {trace.rank}: no operation is known to wait for collective {number}, {name}")


def _idle_until(trace: RankTrace, step: int, call: Piece) -> Piece | None:
    """Return the piece before which its thread was idle when a collective ended."""
    lane = trace.lanes[call.after[0].lane if call.after else trace.main][step]
    at = bisect_left(lane, call.end_ns, key=lambda piece: piece.start_ns)
    if not 0 < at < len(lane):
        return None
    before, following = lane[at - 1], lane[at]
    idle = following.start_ns - before.end_ns >= LEAST_WAIT_NS and before.end_ns <= call.end_ns
    return following if idle else None


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
    for at, piece in enumerate(pieces):
        # The last piece of the main thread that has ended, and the one after it.
        last = bisect_right(ends, piece.start_ns + TOLERANCE_NS) - 1
        following = main[last + 1] if last + 1 < len(main) else None
        inside = following is None or following.start_ns >= piece.end_ns - TOLERANCE_NS
        if last >= 0 and last != group and (main[last].end_ns > free_ns or at == 0):
            piece.after.append(main[last])
        ending = at + 1 == len(pieces) or (following is not None and pieces[at + 1].start_ns >= following.start_ns)
        if inside and ending and following is not None and _waits(main[last] if last >= 0 else None, following):
            following.after.append(piece)
        group, free_ns = last, piece.end_ns


def _waits(before: Piece | None, following: Piece) -> bool:
    return before is not None and following.start_ns - before.end_ns >= LEAST_WAIT_NS

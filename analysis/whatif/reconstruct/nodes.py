"""Makes nodes from the pieces of all ranks: the same operation in all steps, matched per lane by name and order, is one
node with its dependencies and gaps.

A dependency is that of most steps. One that a trace contradicts, because the operation begins clearly before the end of
what it should wait for in most steps, is left out and reported.
"""

from __future__ import annotations

from bisect import insort
from collections import Counter, defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from difflib import SequenceMatcher
from statistics import median
from typing import NamedTuple

from keras_matrix.analysis.whatif.graph import Collective, GraphError, Node, NodeKind
from keras_matrix.analysis.whatif.reconstruct.pieces import TOLERANCE_NS, Lane, Piece, RankTrace

Row = tuple[Piece, ...]
LARGE_ELEMENTS = 32_768  # torch divides operations from this size between threads
# A step that shares fewer of its operations with the others does something else, such as to start the program.
LEAST_SHARED = 0.8


@dataclass(slots=True)
class Made:
    """Nodes, in the order of their numbers, with the number of the node that ends each rank's step."""

    nodes: list[Node] = field(default_factory=list)
    last: dict[int, int] = field(default_factory=dict)
    caveats: list[str] = field(default_factory=list)


@dataclass(slots=True)
class Joint:
    """A collective of all ranks in one step: when the last rank joined and when it ended, on the common clock."""

    begin_ns: int
    end_ns: int


def make(traces: Sequence[RankTrace], offsets_ns: Sequence[int], threads: int) -> Made:
    """Return the nodes. `offsets_ns` added to a rank's clock is the common one, `threads` are those of an operator."""
    made_nodes = Made()
    joints = _joints(traces, offsets_ns)
    begin = 0
    for trace, offset_ns in zip(traces, offsets_ns, strict=True):
        rank = _Rank(trace, offset_ns, joints, threads, begin)
        made_nodes.nodes += rank.nodes()
        made_nodes.last[trace.rank] = rank.last
        made_nodes.caveats += rank.caveats
        begin = len(made_nodes.nodes)
    return made_nodes


def _joints(traces: Sequence[RankTrace], offsets_ns: Sequence[int]) -> dict[tuple[str, int, int], Joint]:
    """Return each collective, by its group, its ordinal and its step.

    All ranks end at the same time; the event of one may end late, because its thread has to wait for a core. A rank
    that only sends a broadcast ends early.
    """
    joints: dict[tuple[str, int, int], Joint] = {}
    for trace, offset_ns in zip(traces, offsets_ns, strict=True):
        for step in range(len(trace.windows)):
            for piece in trace.pieces(step):
                if (call := piece.call) is None:
                    continue
                key = call.group, call.ordinal, step
                begin_ns, end_ns = piece.start_ns + offset_ns, piece.end_ns + offset_ns
                if (joint := joints.get(key)) is None:
                    joints[key] = Joint(begin_ns, end_ns)
                    continue
                latest = max if call.operation == "broadcast" else min
                joint.begin_ns = max(joint.begin_ns, begin_ns)
                joint.end_ns = latest(joint.end_ns, end_ns)
    return joints


class _Rank:
    """Makes the nodes of one rank."""

    def __init__(
        self,
        trace: RankTrace,
        offset_ns: int,
        joints: dict[tuple[str, int, int], Joint],
        threads: int,
        first_number: int,
    ) -> None:
        self._trace, self._offset_ns, self._joints = trace, offset_ns, joints
        self._threads, self._first = threads, first_number
        self.caveats: list[str] = []
        self.last = first_number
        self._rows: list[Row] = []
        self._lane_before: list[int] = []  # of each row the previous one of its lane, -1 for the first
        self._lane_last: dict[str, int] = {}
        self._numbers: dict[int, int] = {}  # row of a piece, by the piece's identity
        self._previous: dict[int, int] = {}  # of a piece that has no row: the row before it in its lane
        self._inherited: dict[int, list[Piece]] = {}  # what pieces without a row, just before a piece, wait for

    def nodes(self) -> list[Node]:
        """Return the nodes of the rank; their numbers begin with `first`."""
        self._match()
        step_count = len(self._trace.windows)
        depends = [self._depends(index, row) for index, row in enumerate(self._rows)]
        times = [[self._times(piece) for piece in row] for row in self._rows]
        self._drop_contradicted(depends, times)
        gaps = [[0] * step_count for _ in self._rows]
        for step in range(step_count):
            self._gaps(step, depends, times, gaps)
        self.last = self._first + self._ending(times)
        return [self._node(index, depends[index], times[index], gaps[index]) for index in range(len(self._rows))]

    def _ending(self, times: list[list[tuple[int, int, int]]]) -> int:
        """Return the row that ends the steps: the last of the main lane, or of the device whose clock they have."""
        if self._trace.periods == self._trace.windows:
            return self._lane_last.get(self._trace.main, len(self._rows) - 1)
        rows = [row for lane, row in self._lane_last.items() if lane in self._trace.streams]
        counts = Counter(max(rows, key=lambda row: times[row][step][2]) for step in range(len(self._trace.windows)))
        return counts.most_common(1)[0][0]

    def _match(self) -> None:
        """Set the rows of all lanes, in the order of their starts in the last step."""
        keyed: list[tuple[int, int, str, Row]] = []
        unmatched_ns: Counter[str] = Counter()
        for number, (lane, steps) in enumerate(self._trace.lanes.items()):
            matched = match(steps)
            unmatched_ns += matched.others_ns
            reached_ns = 0
            for row in matched.rows:
                reached_ns = max(reached_ns, row[-1].start_ns)
                keyed.append((reached_ns, number, lane, row))
        keyed.sort(key=lambda keyed_row: keyed_row[:2])
        for index, (_, _, lane, row) in enumerate(keyed):
            self._rows.append(row)
            self._lane_before.append(self._lane_last.get(lane, -1))
            self._lane_last[lane] = index
            self._numbers |= {id(piece): index for piece in row}
        for steps in self._trace.lanes.values():
            for pieces in steps:
                row_before = -1
                waiting_pieces: list[Piece] = []
                for piece in pieces:
                    if (row_number := self._numbers.get(id(piece))) is None:
                        waiting_pieces += piece.after
                    else:
                        row_before = row_number
                        if waiting_pieces:
                            self._inherited[id(piece)], waiting_pieces = waiting_pieces, []
                    self._previous[id(piece)] = row_before
        if unmatched_ns:
            self.caveats.append(_report(self._trace, unmatched_ns))

    def _depends(self, index: int, row: Row) -> tuple[list[int], list[int]]:
        """Return the rows that a row waits for in most steps, in the same step and in the one before."""
        if not any(piece.after or id(piece) in self._inherited for piece in row):
            return [], []
        same_step: Counter[int] = Counter()
        earlier_counts: Counter[int] = Counter()
        for piece in row:
            targets: set[tuple[bool, int]] = set()
            for piece_before in (*piece.after, *self._inherited.get(id(piece), ())):
                target = self._previous.get(id(piece_before), -1)
                if target >= 0 and piece_before.step in (piece.step, piece.step - 1):
                    targets.add((piece_before.step == piece.step, target))
            for is_same_step, target in targets:
                (same_step if is_same_step else earlier_counts)[target] += 1
        kept_targets = [target for target, count in same_step.items() if 2 * count > len(row) and target != index]
        earlier_targets = [target for target, count in earlier_counts.items() if 2 * count > len(row) - 1 > 0]
        return sorted(kept_targets), sorted(earlier_targets)

    def _times(self, piece: Piece) -> tuple[int, int, int]:
        """Return when a piece could start, when it did and when it ended, on the clock of the rank."""
        ready_ns, start_ns, end_ns = piece.start_ns, piece.start_ns, piece.end_ns
        if (call := piece.call) is not None:
            joint = self._joints[call.group, call.ordinal, piece.step]
            start_ns = max(ready_ns, joint.begin_ns - self._offset_ns)
            end_ns = max(start_ns, joint.end_ns - self._offset_ns)
        return ready_ns, start_ns, end_ns

    def _drop_contradicted(
        self, depends: list[tuple[list[int], list[int]]], times: list[list[tuple[int, int, int]]]
    ) -> None:
        dropped: Counter[str] = Counter()
        for index, (targets, _) in enumerate(depends):
            for target in list(targets):
                contradictions = sum(
                    times[target][step][2] > times[index][step][0] + TOLERANCE_NS for step in range(len(times[index]))
                )
                if 2 * contradictions > len(times[index]):
                    targets.remove(target)
                    dropped[f"{self._rows[index][-1].name} after {self._rows[target][-1].name}"] += 1
        if dropped:
            (example, _), *_ = dropped.most_common(1)
            self.caveats.append(
                f"rank {self._trace.rank}: {dropped.total()} expected dependencies contradict the measured times and"
                f" are left out, such as {example}"
            )

    def _gaps(
        self,
        step: int,
        depends: list[tuple[list[int], list[int]]],
        times: list[list[tuple[int, int, int]]],
        gaps: list[list[int]],
    ) -> None:
        """Set the gap before each row in one step: from the end of what it waited for last, in any step."""
        busy: dict[str, list[int]] = defaultdict(list)  # of lanes that run several: the ends of what runs, sorted
        for index, row in enumerate(self._rows):
            lane = row[0].lane
            ready = times[index][step][0]
            ends_before = [times[target][step][2] for target in depends[index][0]]
            at_a_time = self._trace.parallel.get(lane, 1)
            is_first = at_a_time == 1 and self._lane_before[index] < 0
            if at_a_time > 1:
                running_ends = busy[lane]
                if len(running_ends) >= at_a_time:
                    ends_before.append(running_ends[-at_a_time])
                insort(running_ends, times[index][step][2])
            elif not is_first:
                ends_before.append(times[self._lane_before[index]][step][2])
            if is_first and lane == self._trace.main and not ends_before:
                gaps[index][step] = self._first_gap(index, step, times)
                continue
            earlier_targets = (
                [*depends[index][1], self._lane_last[lane]] if is_first or not ends_before else depends[index][1]
            )
            if ends_before or lane in self._trace.streams:
                # Of work of unknown cause nothing is known but how it lies in its own step.
                ends = [
                    self._earlier_end(times[target], step, step_known=bool(ends_before)) for target in earlier_targets
                ]
                gaps[index][step] = max(0, ready - max([*ends_before, *ends]))
            else:
                gaps[index][step] = self._gap_between(times[index], [times[target] for target in earlier_targets], step)

    def _earlier_end(self, times: list[tuple[int, int, int]], step: int, *, step_known: bool) -> int:
        """Return when an operation ended in the step before: the traced one if it is known, else an equal one."""
        is_traced = step_known and self._trace.follows(step)
        return times[step - 1][2] if is_traced else times[step][2] - self._trace.periods[step].time_ns

    def _gap_between(
        self, times: list[tuple[int, int, int]], target_times: list[list[tuple[int, int, int]]], step: int
    ) -> int:
        """Return the gap before a row that waits only for the step before, the usual one if that was not traced."""
        steps = [traced_step for traced_step in range(len(times)) if self._trace.follows(traced_step)]
        if step in steps or not steps:
            ends = [self._earlier_end(earlier_times, step, step_known=True) for earlier_times in target_times]
            return max(0, times[step][0] - max(ends))
        gaps = [
            max(0, times[traced_step][0] - max(other[traced_step - 1][2] for other in target_times))
            for traced_step in steps
        ]
        return round(median(gaps))

    def _first_gap(self, index: int, step: int, times: list[list[tuple[int, int, int]]]) -> int:
        """Return the gap before the first row of the main lane.

        The time after the last row of a step is in the gap of the next step's first row, and counts for its own step.
        """
        window = self._trace.windows[step]
        end_ns = times[self._lane_last[self._trace.main]][step][2]
        return max(0, times[index][step][0] - window.begin_ns) + max(0, window.end_ns - end_ns)

    def _node(
        self, index: int, depends: tuple[list[int], list[int]], times: list[tuple[int, int, int]], gaps: list[int]
    ) -> Node:
        piece = self._rows[index][-1]
        is_large = piece.flops is not None or (piece.shape is not None and _elements(piece.shape) >= LARGE_ELEMENTS)
        cores = piece.cores * (self._threads if is_large and piece.kind is NodeKind.COMPUTE else 1)
        return Node(
            number=self._first + index,
            rank=self._trace.rank,
            lane=piece.lane,
            kind=piece.kind,
            name=piece.name,
            durations_ns=tuple(end - start for _, start, end in times),
            gaps_ns=tuple(gaps),
            starts_ns=tuple(
                start - period.begin_ns for (_, start, _), period in zip(times, self._trace.periods, strict=True)
            ),
            depends=tuple(self._first + target for target in depends[0]),
            depends_before=tuple(self._first + target for target in depends[1]),
            phase=piece.phase and str(piece.phase),
            layer=piece.layer,
            bytes=piece.bytes,
            flops=piece.flops,
            dtype=piece.dtype,
            shape=piece.shape,
            cores=cores,
            gradient_of=piece.gradient_of,
            collective=_collective(piece),
        )


def _elements(shape: Sequence[int]) -> int:
    count = 1
    for side in shape:
        count *= side
    return count


def _collective(piece: Piece) -> Collective | None:
    if (call := piece.call) is None:
        return None
    return Collective(
        *(call.group, call.ordinal, call.operation, call.ranks, call.bytes), call.tensors, call.tensor_layers
    )


def _report(trace: RankTrace, unmatched_ns: Counter[str]) -> str:
    """Return a sentence about operations that are not in all steps."""
    total_ms = unmatched_ns.total() / 1e6 / len(trace.windows)
    names_text = ", ".join(name for name, _ in unmatched_ns.most_common(3))
    return (
        f"rank {trace.rank}: {len(unmatched_ns)} operations ({total_ms:.3f} ms a step) are only in some steps, or in "
        f"another order, and are left out: {names_text}"
    )


class Matched(NamedTuple):
    """The pieces of each operation that all steps have, one for each step, and the time of others by their name."""

    rows: list[tuple[Piece, ...]]
    others_ns: Counter[str]


def match(steps: Sequence[Lane]) -> Matched:
    """Match the pieces of a lane. An operation that a step lacks, or has in another order, is one of the others."""
    names = [[piece.name for piece in lane] for lane in steps]
    reference = _usual(names)
    positions = [list(range(len(names[reference]))) if lane_names is names[reference] else None for lane_names in names]
    kept_indices = set(range(len(names[reference])))
    aligned: list[dict[int, int]] = []
    for lane_names, lane_positions in zip(names, positions, strict=True):
        pairs = (
            dict(enumerate(lane_positions)) if lane_positions is not None else _aligned(names[reference], lane_names)
        )
        aligned.append(pairs)
        kept_indices &= pairs.keys()
    rows = [
        tuple(lane[pairs[index]] for lane, pairs in zip(steps, aligned, strict=True)) for index in sorted(kept_indices)
    ]
    unmatched_ns: Counter[str] = Counter()
    for lane, pairs in zip(steps, aligned, strict=True):
        used_indices = {pairs[index] for index in kept_indices}
        for index, piece in enumerate(lane):
            if index not in used_indices:
                unmatched_ns[piece.name] += piece.duration_ns
    return Matched(rows, unmatched_ns)


def unusual(steps: Sequence[Lane]) -> set[int]:
    """Return the steps of a lane that do something else than most, never all of them."""
    names = [[piece.name for piece in lane] for lane in steps]
    reference = _usual(names)
    usual = Counter(names[reference])
    unusual_steps = set()
    for step, step_names in enumerate(names):
        shared_count = (usual & Counter(step_names)).total()
        if shared_count < LEAST_SHARED * max(len(step_names), usual.total()):
            unusual_steps.add(step)
    return unusual_steps


def _usual(names: Sequence[Sequence[str]]) -> int:
    """Return the step whose operations most steps have exactly; of several the last, which is the most settled."""
    counts = Counter(tuple(step_names) for step_names in names)
    return max(range(len(names)), key=lambda step: (counts[tuple(names[step])], step))


def _aligned(reference: Sequence[str], names: Sequence[str]) -> dict[int, int]:
    """Return the positions in a step by those in the reference, of the operations that both have in the same order."""
    if list(reference) == list(names):
        return {index: index for index in range(len(names))}
    least = min(len(reference), len(names))
    begin = next((index for index in range(least) if reference[index] != names[index]), least)
    end = next((index for index in range(least - begin) if reference[-1 - index] != names[-1 - index]), least - begin)
    pairs = {index: index for index in range(begin)}
    pairs |= {len(reference) - 1 - index: len(names) - 1 - index for index in range(end)}
    middle = SequenceMatcher(
        None, reference[begin : len(reference) - end], names[begin : len(names) - end], autojunk=False
    )
    for block in middle.get_matching_blocks():
        pairs |= {begin + block.a + index: begin + block.b + index for index in range(block.size)}
    return pairs


def assign_groups(
    traces: Sequence[RankTrace], groups: Mapping[str, tuple[int, ...]], offsets_ns: Sequence[int]
) -> None:
    """Set the group of each collective that has none. Raises `GraphError` if ranks call different collectives.

    The events of these collectives name no group, and a rank is in several.

    A collective runs when all ranks of its group have come to it. So a group is found by following all ranks from their
    first collective on: the next of all members of a group must be the same operation with the same bytes. Of several
    such groups it is the one whose ranks were in the collective at the same time, over all steps.
    """
    larger_groups = {name: ranks for name, ranks in groups.items() if len(ranks) > 1}
    queues = {trace.rank: _unknown(trace) for trace in traces}
    shifts = {trace.rank: offset_ns for trace, offset_ns in zip(traces, offsets_ns, strict=True)}
    while any(queues.values()):
        group = _next(queues, larger_groups, shifts)
        if group is None:
            trace = next(trace for trace in traces if queues[trace.rank])
            raise GraphError(
                f"{trace.source}: {queues[trace.rank][0][0].name!r} of rank {trace.rank} belongs to no process group"
                " whose other ranks call it, too; give the files of all ranks of the groups"
            )
        for rank in larger_groups[group]:
            for piece in queues[rank].pop(0) if rank in queues else ():
                if piece.call is not None:
                    piece.call.group, piece.call.ranks = group, larger_groups[group]


def _unknown(trace: RankTrace) -> list[Row]:
    """Return the collectives without a group, in the order in which they were started. Raises `GraphError`."""
    steps = []
    for step in range(len(trace.windows)):
        unnamed = [piece for piece in trace.pieces(step) if piece.call is not None and not piece.call.group]
        steps.append(
            sorted(
                unnamed,
                key=lambda piece: max((piece_before.end_ns for piece_before in piece.after), default=piece.start_ns),
            )
        )
    counts = [len(pieces) for pieces in steps]
    if len(set(counts)) > 1:
        step = next(step for step, count in enumerate(counts) if count != counts[0])
        raise GraphError(
            f"{trace.source}: rank {trace.rank} has {counts[step]} collectives in step {step + 1}, {counts[0]} in the"
            " first; record steps that do the same"
        )
    return list(zip(*steps, strict=True))


def _next(
    queues: Mapping[int, Sequence[Row]], groups: Mapping[str, tuple[int, ...]], shifts: Mapping[int, int]
) -> str | None:
    """Return a group whose members all come to the same collective next: of several the one that fits the times."""
    candidates = []
    for name, ranks in groups.items():
        waiting_ranks = [rank for rank in ranks if rank in queues]
        heads = [(queues[rank][0], shifts[rank]) for rank in waiting_ranks if queues[rank]]
        kinds = {(row[0].name, row[0].call.bytes if row[0].call else 0) for row, _ in heads}
        if heads and len(heads) == len(waiting_ranks) and len(kinds) == 1:
            candidates.append((*_apart(heads), name))
    return min(candidates)[2] if candidates else None


def _apart(heads: Sequence[tuple[Row, int]]) -> tuple[int, int]:
    """Return for how long ranks were not in a collective at the same time, over all steps, and when it ended."""
    apart_ns = ended_ns = 0
    for step in range(len(heads[0][0])):
        begins = [row[step].start_ns + shift for row, shift in heads]
        ends = [row[step].end_ns + shift for row, shift in heads]
        apart_ns += max(0, max(begins) - min(ends))
        ended_ns += max(ends)
    return apart_ns, ended_ns

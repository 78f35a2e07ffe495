"""Makes one trace graph from the files of JAX or TensorFlow of one or all ranks.

Collectives are numbered so that all ranks of a group agree which is which. All ranks must have the same steps; those
that do something else than most are left out. Operations of a rank whose own times are not needed, or cannot be
separated, become segments.

What the files do not say follows from others: what a rank waits for on ranks of the same process besides collectives
(`links_between`), and the gradients that TensorFlow's collectives sum (`add_sizes`).
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import replace
from itertools import accumulate
from pathlib import Path
from statistics import fmean
from typing import Any, TypeVar

import numpy as np

from keras_matrix.analysis.whatif.graph import Graph, GraphError, Header, Node, NodeKind, checked
from keras_matrix.analysis.whatif.reconstruct import nodes
from keras_matrix.analysis.whatif.reconstruct.coverage import HeaderFacts, coverage_of, same_rank
from keras_matrix.analysis.whatif.reconstruct.nodes import LEAST_SHARED
from keras_matrix.analysis.whatif.reconstruct.pieces import Clock, Lane, Piece, RankTrace, align
from keras_matrix.analysis.whatif.reconstruct.xplane import chain
from keras_matrix.analysis.whatif.reconstruct.xplane.chain import Link, NodePlace, between_ranks, lay_out
from keras_matrix.analysis.whatif.reconstruct.xplane.rank import Rank, fill, mark_gradients
from keras_matrix.analysis.whatif.reconstruct.xplane.reading import OperationRow, Profile, read
from keras_matrix.records.fc import spec
from keras_matrix.records.traces.neutral import Phase, is_part

OPERATIONS, SEGMENTS = "operations", "segments"
SEQUENCE = (
    "operations of a device overlap on its pool of threads: the duration of one is the part of the device's time that"
    " belongs to it, not the time of its event"
)
INFERRED = "the files have no program: what collectives wait for, and what waits for them, follows from the times"
Name = tuple[str, str, str, int]  # group, program, operation and occurrence: equal on all ranks of the group
Number = TypeVar("Number", int, float)


def graph_of(paths: Sequence[Path], facts: HeaderFacts) -> Graph:
    """Return the graph of these files, one for each worker and traced epoch. Raises `TraceError` or `GraphError`.

    A file of several devices has as many ranks, beginning with its worker. At the level "segments" a node is a run of
    operations with the same phase and layer.
    """
    level = facts.get("level", OPERATIONS)
    workers: dict[int, list[Profile]] = defaultdict(list)
    for position, path in enumerate(sorted(paths)):
        profile = read(path, position)
        workers[profile.worker].append(profile)
    check_steps(workers)
    caveats = leave_out_unusual(workers)
    ranks = _ranks(workers, facts)
    for rank in ranks:
        fill(rank)
        mark_gradients(rank)
        lay_out(rank)
        if not rank.returns:
            path = rank.profiles[0].path
            raise GraphError(f"{path}: a device ran no operation that each step has; record the trace again")
        chain.add_to_collectives(rank)
    number(ranks)
    caveats += add_sizes(ranks, facts.get("gradient_bytes", {}))
    links = links_between(ranks)
    parallel = concurrent(ranks)
    traces = [rank.trace(parallel) for rank in ranks]
    if level == SEGMENTS:
        links = merge(traces, links)
    alignment = align(traces, [_clock(rank.profiles[0], len(workers)) for rank in ranks])
    made_nodes = nodes.make(traces, alignment.offsets_ns, threads=1)
    made_nodes.nodes = connected(made_nodes.nodes, links)
    caveats += [*alignment.caveats, *(text for trace in traces for text in trace.caveats), *made_nodes.caveats]
    header = replace(
        _header(paths, ranks, facts),
        step_times_s=_step_times_s(traces),
        clock_offsets_ns=alignment.offsets_ns,
        caveats=tuple(dict.fromkeys([*caveats, *_caveats(ranks)])),
        level=level,
        parallel_lanes=parallel,
    )
    graph = checked(Graph(header, tuple(made_nodes.nodes)))
    # Only of a graph without a circle: the path of a step would have no end.
    return replace(graph, header=replace(header, coverage=min(_share(trace, made_nodes) for trace in traces)))


def _header(paths: Sequence[Path], ranks: Sequence[Rank], facts: HeaderFacts) -> Header:
    """Return what is known before the nodes are made."""
    return Header(
        source=", ".join(map(str, paths[:3])) + (", ..." if len(paths) > 3 else ""),
        backend=_backend(ranks),
        device=next((rank.profiles[0].device for rank in ranks if rank.profiles[0].device != "cpu"), "cpu"),
        world_size=len(ranks[0].ranks),
        step_times_s=(),
        coverage=0.0,
        machine=facts.get("machine", {}),
        versions=facts.get("versions", {}),
        settings=facts.get("settings", {}),
        link=facts.get("link"),
        cores=facts.get("cores"),
        missing_ranks=tuple(sorted(set(ranks[0].ranks) - {rank.number for rank in ranks})),
    )


def _ranks(workers: Mapping[int, list[Profile]], facts: HeaderFacts) -> list[Rank]:
    """Return the ranks: the devices of each worker's files. Raises `GraphError` if two files have the same one."""
    devices: dict[int, tuple[list[Profile], int]] = {}
    for worker in sorted(workers):
        for device in workers[worker][0].runs:
            rank = worker + device
            if rank in devices:
                raise same_rank(rank, devices[rank][0][0].path, workers[worker][0].path)
            devices[rank] = workers[worker], device
    settings: Mapping[str, Any] = facts.get("settings", {})
    stated_workers = spec.parameter(settings, "workers", 1)
    world = max(max(devices) + 1, stated_workers if isinstance(stated_workers, int) else 1)
    core_count = facts.get("cores")
    own_cores = core_count / world if core_count else float(facts.get("threads", 1))
    ranks = tuple(range(world))
    return [Rank(rank, profiles, device, ranks, own_cores) for rank, (profiles, device) in devices.items()]


def _clock(profile: Profile, file_count: int) -> Clock:
    """Return the clock of a rank; the ranks of one file have the same, as have files with marks of the machine's."""
    is_common = profile.is_aligned or file_count == 1
    return Clock([(0, 0)] if is_common else [], None, 0)


def _step_times_s(traces: Sequence[RankTrace]) -> tuple[float, ...]:
    steps = range(len(traces[0].windows))
    return tuple(max(trace.windows[step].time_ns for trace in traces) / 1e9 for step in steps)


def _share(trace: RankTrace, made_nodes: nodes.Made) -> float:
    times_ns = [window.time_ns for window in trace.windows]
    return coverage_of(made_nodes.nodes, trace.rank, made_nodes.last[trace.rank], times_ns, trace.parallel).share


def _backend(ranks: Sequence[Rank]) -> str:
    """Return the backend: TensorFlow's operations belong to no program."""
    names = {row.identity.program for rank in ranks for rows in rank.rows.lanes.values() for row in rows}
    return "tensorflow" if "" in names else "jax"


def _caveats(ranks: Sequence[Rank]) -> list[str]:
    caveats = []
    world_size = len(ranks[0].ranks)
    if len(ranks) < world_size:
        caveats.append(
            f"{world_size - len(ranks)} of {world_size} ranks have no file: collectives keep their measured times, "
            "which include waiting for those ranks"
        )
    if world_size > 1 and _backend(ranks) == "tensorflow":
        caveats.append(INFERRED)
    if all(rank.profiles[0].device == "cpu" for rank in ranks):
        caveats.append(SEQUENCE)
    return caveats


def number(ranks: Sequence[Rank]) -> None:
    """Number the collectives of each group in the order of their ends. Raises `GraphError` if a rank lacks one."""
    members: dict[Name, dict[int, OperationRow]] = defaultdict(dict)
    for rank in ranks:
        for row, pieces in _collectives(rank):
            call = pieces[0].call
            identity = row.identity
            if call is not None:
                program = identity.program.partition("(")[0]
                members[call.group, program, identity.name, row.occurrence][rank.number] = row
    _check(ranks, members)
    order = sorted(members, key=lambda name: fmean(row.position for row in members[name].values()))
    ordinals: dict[str, int] = defaultdict(int)
    places: dict[int, int] = {}
    for position, name in enumerate(order):
        for rank in ranks:
            if (rank_row := members[name].get(rank.number)) is not None:
                places[id(rank_row)] = position
                for piece in rank.pieces[id(rank_row)]:
                    if piece.call is not None:
                        piece.call.ordinal = ordinals[name[0]]
        ordinals[name[0]] += 1
    for rank in ranks:
        _sort(rank, places)


def _collectives(rank: Rank) -> list[tuple[OperationRow, list[Piece]]]:
    return [(row, rank.pieces[id(row)]) for rows in rank.rows.lanes.values() for row in rows if row.is_collective]


def _check(ranks: Sequence[Rank], members: dict[Name, dict[int, OperationRow]]) -> None:
    rank_by_number = {rank.number: rank for rank in ranks}
    for (group, _, name, _), rows in members.items():
        first_rank = next(iter(rows))
        call = rank_by_number[first_rank].pieces[id(rows[first_rank])][0].call
        expected_ranks = set(call.ranks if call else ()) & set(rank_by_number)
        for lacking in sorted(expected_ranks - set(rows)):
            path = rank_by_number[lacking].profiles[0].path
            raise GraphError(
                f"{path}: rank {lacking} has no collective {name!r} of group {group!r}, which rank {first_rank} has; "
                "record all ranks at the same time"
            )


def _sort(rank: Rank, places: dict[int, int]) -> None:
    """Bring lanes of collectives alone into the order that all ranks have."""
    for lane, rows in rank.rows.lanes.items():
        if lane not in rank.chains and all(id(row) in places for row in rows):
            rows.sort(key=lambda row: places[id(row)])
            for step in range(len(rank.lanes[lane])):
                rank.lanes[lane][step] = [rank.pieces[id(row)][step] for row in rows]


def concurrent(ranks: Sequence[Rank]) -> dict[str, int]:
    """Return the lanes that run several collectives at a time, and how many.

    A collective runs from when the last rank has come to it.
    """
    calls = [
        (rank.number, piece, piece.call)
        for rank in ranks
        for row, pieces in _collectives(rank)
        if row.lane not in rank.chains
        for piece in pieces
        if piece.call is not None
    ]
    begins: dict[tuple[str, int, int], int] = defaultdict(int)
    for _, piece, call in calls:
        key = call.group, call.ordinal, piece.step
        begins[key] = max(begins[key], piece.start_ns)
    intervals_by_lane: dict[tuple[int, str], list[tuple[int, int]]] = defaultdict(list)
    for number_of_rank, piece, call in calls:
        begin_ns = begins[call.group, call.ordinal, piece.step]
        if piece.end_ns > begin_ns:
            intervals_by_lane[number_of_rank, piece.lane] += [(begin_ns, 1), (piece.end_ns, -1)]
    most_by_lane: dict[str, int] = {}
    for (_, lane), changes in intervals_by_lane.items():
        most = max(accumulate(change for _, change in sorted(changes)))
        if most > 1:
            most_by_lane[lane] = max(most, most_by_lane.get(lane, 1))
    return most_by_lane


def check_steps(workers: Mapping[int, Sequence[Profile]]) -> None:
    """Raise `GraphError` if two workers have other numbers of steps, or two files of a worker of devices."""
    (first_worker, profiles_of_first), *other_workers = workers.items()
    expected_steps = _steps(profiles_of_first)
    for worker, profiles in other_workers:
        if (worker_steps := _steps(profiles)) != expected_steps:
            raise GraphError(
                f"{profiles[0].path}: worker {worker} has {worker_steps} steps, worker {first_worker} in "
                f"{profiles_of_first[0].path} has {expected_steps}; record the same steps on all ranks"
            )
    for profiles in workers.values():
        for profile in profiles:
            if len(profile.runs) != len(profiles[0].runs):
                raise GraphError(
                    f"{profile.path}: has operations of {len(profile.runs)} devices, {profiles[0].path} of"
                    f" {len(profiles[0].runs)}; give the files of one run"
                )


def _steps(profiles: Sequence[Profile]) -> int:
    return sum(len(profile.windows) for profile in profiles)


def leave_out_unusual(workers: Mapping[int, Sequence[Profile]]) -> list[str]:
    """Leave out steps in which a profiler stopped, or that share less than 80 % of their operations with the others.

    Returns what to say about them.
    """
    unfinished, unusual = set[int](), set[int]()
    for profiles in workers.values():
        first_step = 0
        for profile in profiles:
            first_step += len(profile.windows)
            if is_part([Counter(run.identity for run in runs) for runs in _all_runs(profile)]):
                unfinished.add(first_step - 1)
    for profiles in workers.values():
        counts = [Counter(run.identity for run in runs) for profile in profiles for runs in _all_runs(profile)]
        usual = _usual([step_counts for step, step_counts in enumerate(counts) if step not in unfinished])
        for step, step_counts in enumerate(counts):
            if (usual & step_counts).total() < LEAST_SHARED * max(step_counts.total(), usual.total()):
                unusual.add(step)
    total = _steps(next(iter(workers.values())))
    remark_texts = [
        f"step {step + 1} is left out: the profiler stopped before it ended, with a part of its operations"
        for step in sorted(unfinished)
    ]
    unusual -= unfinished
    if len(unusual) + len(unfinished) == total:
        unusual.clear()
    if unusual:
        numbers_text = ", ".join(str(step + 1) for step in sorted(unusual))
        remark_texts.append(
            f"step {numbers_text} is left out: less than 80 % of its operations are those of the other steps"
        )
    _leave_out(workers, unusual | unfinished)
    return remark_texts


def _leave_out(workers: Mapping[int, Sequence[Profile]], steps: Collection[int]) -> None:
    for profiles in workers.values():
        first_step = 0
        for profile in profiles:
            kept_indices = [index for index in range(len(profile.windows)) if first_step + index not in steps]
            first_step += len(profile.windows)
            profile.windows = [profile.windows[index] for index in kept_indices]
            profile.runs = {device: [runs[index] for index in kept_indices] for device, runs in profile.runs.items()}


def _all_runs(profile: Profile) -> list[list[Any]]:
    return [[run for steps in profile.runs.values() for run in steps[index]] for index in range(len(profile.windows))]


def _usual(counts: Sequence[Counter[Any]]) -> Counter[Any]:
    """Return the operations that most steps have exactly; of several the last, which is the most settled."""
    alike = Counter(frozenset(step_counts.items()) for step_counts in counts)
    return max(enumerate(counts), key=lambda numbered: (alike[frozenset(numbered[1].items())], numbered[0]))[1]


def merge(traces: Sequence[RankTrace], links: Sequence[Link]) -> list[Link]:
    """Merge the operations of each rank's main lane; return the links between the segments.

    A segment is a run of successive operations with the same phase and layer; those without a phase or a layer belong
    to the run that they are in. It ends where another lane or rank waits for one of them, and begins where one of them
    waits. Its time is the sum of theirs; the gaps within it are before it.
    """
    waiting_places = {link.waiting for link in links}
    awaited = {link.before for link in links}
    renamed: dict[NodePlace, NodePlace] = {}
    for trace in traces:
        cuts = _Cuts(trace, waiting_places, awaited)
        runs = _runs(trace.lanes[trace.main][0], cuts)
        names = _names(trace.lanes[trace.main][0], runs)
        merged: dict[int, Piece] = {}
        for step, lane in enumerate(trace.lanes[trace.main]):
            pieces = [_merged([lane[index] for index in run], name) for run, name in zip(runs, names, strict=True)]
            for run, piece in zip(runs, pieces, strict=True):
                merged |= {id(lane[index]): piece for index in run}
                if step == 0:
                    renamed |= {
                        NodePlace(trace.rank, trace.main, lane[index].name): NodePlace(
                            trace.rank, trace.main, piece.name
                        )
                        for index in run
                    }
            trace.lanes[trace.main][step] = pieces
        for step in range(len(trace.windows)):
            for piece in trace.pieces(step):
                piece.after = list(
                    {
                        id(piece_before): piece_before
                        for piece_before in (merged.get(id(old), old) for old in piece.after)
                    }.values()
                )
    return [Link(renamed.get(link.waiting, link.waiting), renamed.get(link.before, link.before)) for link in links]


class _Cuts:
    """Where a segment has to begin or to end."""

    def __init__(self, trace: RankTrace, waiting_places: set[NodePlace], awaited: set[NodePlace]) -> None:
        self._trace, self._waiting, self._awaited = trace, waiting_places, awaited
        self._targets = {
            id(piece_before)
            for piece in trace.pieces(0)
            if piece.lane != trace.main or piece.call is not None
            for piece_before in piece.after
        }

    def before(self, piece: Piece) -> bool:
        """Return whether one begins with this operation."""
        return bool(piece.after) or self._place(piece) in self._waiting or piece.kind is not NodeKind.COMPUTE

    def after(self, piece: Piece) -> bool:
        """Return whether one ends with this operation."""
        is_awaited = id(piece) in self._targets or self._place(piece) in self._awaited
        return is_awaited or piece.kind is not NodeKind.COMPUTE

    def _place(self, piece: Piece) -> NodePlace:
        return NodePlace(self._trace.rank, piece.lane, piece.name)


def _runs(lane: Lane, cuts: _Cuts) -> list[list[int]]:
    """Return the positions of the operations of each segment."""
    runs: list[list[int]] = []
    is_open = False
    phase: str | None = None
    layer: str | None = None
    for index, piece in enumerate(lane):
        fits = piece.phase in (None, phase or piece.phase) and piece.layer in (None, layer or piece.layer)
        if not is_open or not fits or cuts.before(piece):
            runs.append([])
            phase = layer = None
        runs[-1].append(index)
        phase, layer = phase or piece.phase, layer or piece.layer
        is_open = not cuts.after(piece)
    return runs


def _names(lane: Lane, runs: Sequence[Sequence[int]]) -> list[str]:
    """Return a name for each segment that no other one has."""
    counts: Counter[str] = Counter()
    names = []
    for run in runs:
        pieces = [lane[index] for index in run]
        words = (_first(piece.phase for piece in pieces), _first(piece.layer for piece in pieces))
        name = pieces[0].name if len(pieces) == 1 else " ".join(word for word in words if word) or "operations"
        counts[name] += 1
        names.append(name if counts[name] == 1 else f"{name} #{counts[name]}")
    return names


def _merged(pieces: Sequence[Piece], name: str) -> Piece:
    """Return one piece with the work of these, which ends with the last of them."""
    first_piece, last_piece = pieces[0], pieces[-1]
    if len(pieces) == 1:
        first_piece.name = name
        return first_piece
    return replace(
        first_piece,
        name=name,
        start_ns=last_piece.end_ns - sum(piece.duration_ns for piece in pieces),
        end_ns=last_piece.end_ns,
        phase=_first(piece.phase for piece in pieces),
        layer=_first(piece.layer for piece in pieces),
        bytes=_total([piece.bytes for piece in pieces]),
        flops=_total([piece.flops for piece in pieces]),
        dtype=_first(piece.dtype for piece in pieces),
        shape=None,
        gradient_of=_first(piece.gradient_of for piece in reversed(pieces)),
        after=list(first_piece.after),
    )


def _first(values: Iterable[str | None]) -> str | None:
    return next((value for value in values if value is not None), None)


def _total(values: Sequence[Number | None]) -> Number | None:
    """Return the sum, None if a value is not known."""
    known_values = [value for value in values if value is not None]
    return sum(known_values[1:], known_values[0]) if known_values and len(known_values) == len(values) else None


def links_between(ranks: Sequence[Rank]) -> list[Link]:
    """Return what ranks wait for on others: their sums, and at the end of a step the last operations of all."""
    links: list[Link] = []
    for rank in ranks:
        same_process = [other for other in ranks if other.profiles is rank.profiles]
        if rank is same_process[0] and len(same_process) > 1:
            links += between_ranks(same_process)
            for member in same_process:
                links += [
                    Link(_place_of(member, member.returns[0]), _place_of(other, last_piece))
                    for other in same_process
                    for last_piece in _last(other)
                    if other is not member
                ]
        for lane in rank.lanes:
            if lane != rank.main:
                for step, piece in enumerate(rank.returns):
                    if rank.lanes[lane][step]:
                        piece.after.append(rank.lanes[lane][step][-1])
    return links


def _last(rank: Rank) -> list[Piece]:
    """Return the last operation of each lane, without the host's return."""
    lanes = [[piece for piece in steps[0] if piece is not rank.returns[0]] for steps in rank.lanes.values()]
    return [lane[-1] for lane in lanes if lane]


def _place_of(rank: Rank, piece: Piece) -> NodePlace:
    return NodePlace(rank.number, piece.lane, piece.name)


def connected(nodes: Sequence[Node], links: Sequence[Link]) -> list[Node]:
    """Return the nodes with these dependencies, and gaps without the time in which they waited for them."""
    numbers = {NodePlace(node.rank, node.lane, node.name): node.number for node in nodes}
    changed_nodes = list(nodes)
    for link in links:
        waiting_number, number_before = numbers.get(link.waiting), numbers.get(link.before)
        if waiting_number is None or number_before is None or waiting_number == number_before:
            continue
        node, other = changed_nodes[waiting_number], changed_nodes[number_before]
        ends = [start + length for start, length in zip(other.starts_ns, other.durations_ns, strict=True)]
        gaps = [
            max(0, min(gap, start - end)) for gap, start, end in zip(node.gaps_ns, node.starts_ns, ends, strict=True)
        ]
        changed_nodes[waiting_number] = replace(node, depends=(*node.depends, number_before), gaps_ns=tuple(gaps))
    return changed_nodes


def add_sizes(ranks: Sequence[Rank], sizes_bytes: Mapping[str, int]) -> list[str]:
    """Set the gradients of collectives that no program describes; return what is not known of them.

    `sizes_bytes` are those of the variables' gradients by their layer, in the order of the variables.

    MultiWorkerMirroredStrategy sums the gradients in the reverse order of the variables, several at once if they fit
    into `bytes_per_pack` (`CollectiveAllReduce._do_batch_all_reduce_dense` in
    tensorflow/python/distribute/cross_device_ops.py). So the variables that are updated between the ends of two
    collectives say how many gradients the first one sums.
    """
    for rank in ranks:
        collectives = _packed(rank)
        if not collectives:
            continue
        counts = _counts(rank, collectives)
        if not sizes_bytes or sum(counts) != len(sizes_bytes):
            reason = (
                f"{sum(counts)} variables are updated after them, but {len(sizes_bytes)} gradients have known sizes"
                if sizes_bytes
                else "the file does not contain them; name the cell of the trace"
            )
            return [f"the sizes of {len(collectives)} collectives are not known: {reason}"]
        _set(rank, collectives, counts, sizes_bytes)
    return []


def _packed(rank: Rank) -> list[OperationRow]:
    """Return the collectives without a program, in the order of their numbers."""
    described = {name for profile in rank.profiles for name in profile.programs}
    rows = [row for lane_rows in rank.rows.lanes.values() for row in lane_rows if row.is_collective]
    return sorted((row for row in rows if row.identity.program not in described), key=lambda row: row.position)


def _counts(rank: Rank, collectives: Sequence[OperationRow]) -> list[int]:
    """Return how many variables are updated after each collective, and before the end of the next one."""
    updates = [
        row.position
        for rows in rank.rows.lanes.values()
        for row in rows
        if row.identity.phase is Phase.UPDATE and not row.is_collective
    ]
    ends = [row.position for row in collectives]
    places = np.searchsorted(ends, updates, side="right") - 1
    return [int((places == index).sum()) for index in range(len(ends))]


def _set(
    rank: Rank, collectives: Sequence[OperationRow], counts: Sequence[int], sizes_bytes: Mapping[str, int]
) -> None:
    gradients = list(sizes_bytes.items())[::-1]
    for row, count in zip(collectives, counts, strict=True):
        own_gradients, gradients = gradients[:count], gradients[count:]
        for piece in rank.pieces[id(row)]:
            if piece.call is not None:
                piece.call.bytes = sum(size for _, size in own_gradients)
                piece.call.tensors = tuple(size for _, size in own_gradients)
                piece.call.tensor_layers = tuple(layer for layer, _ in own_gradients)

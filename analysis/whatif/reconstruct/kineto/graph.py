"""A trace graph from the Kineto files of one or all ranks."""

from __future__ import annotations

import gc
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

from keras_matrix.analysis.whatif.graph import Graph, GraphError, Header, checked
from keras_matrix.analysis.whatif.reconstruct import nodes
from keras_matrix.analysis.whatif.reconstruct.coverage import Coverage, HeaderFacts, coverage_of, same_rank
from keras_matrix.analysis.whatif.reconstruct.kineto import device
from keras_matrix.analysis.whatif.reconstruct.kineto.host import BETWEEN
from keras_matrix.analysis.whatif.reconstruct.kineto.rank import trace_of
from keras_matrix.analysis.whatif.reconstruct.kineto.reading import RankRecording, read
from keras_matrix.analysis.whatif.reconstruct.nodes import unusual
from keras_matrix.analysis.whatif.reconstruct.pieces import Alignment, Clock, RankTrace, align, set_periods
from keras_matrix.records.text import percentage
from keras_matrix.records.traces.conversion import worker_of
from keras_matrix.records.traces.neutral import MOST_WORKERS
from keras_matrix.records.traces.request import TraceError, problem_text


def graph_of(paths: Sequence[Path], facts: HeaderFacts) -> Graph:
    """Return the graph of these files, one for each rank. Raises `TraceError` or `GraphError`."""
    with _without_garbage_collection():
        return _graph_of(paths, facts)


@contextmanager
def _without_garbage_collection() -> Iterator[None]:
    """Pause Python's collector: a file makes millions of objects without cycles, which it visits again and again.

    A file of 520 MB takes 55 s in place of 75 s, with the same memory.
    """
    was_on = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if was_on:
            gc.enable()


def _graph_of(paths: Sequence[Path], facts: HeaderFacts) -> Graph:
    recordings: dict[int, RankRecording] = {}
    trace_by_rank: dict[int, RankTrace] = {}
    for position, path in enumerate(paths):
        recording = read(path)
        rank = _rank_of(recording, position)
        if (rank_count := max(rank + 1, recording.world_size or 1)) > MOST_WORKERS:
            raise GraphError(f"{path}: must be of at most {MOST_WORKERS} ranks, got {rank_count}; record it again")
        if rank in recordings:
            raise same_rank(rank, recordings[rank].path, path)
        recordings[rank], trace_by_rank[rank] = recording, _trace_of(recording, rank)
        recording.forget_events()
    ordered = [recordings[rank] for rank in sorted(recordings)]
    traces = [trace_by_rank[rank] for rank in sorted(trace_by_rank)]
    world = max(max(recordings) + 1, *(recording.world_size or 1 for recording in ordered))
    source = ", ".join(str(recording.path) for recording in ordered[:3]) + (", ..." if len(ordered) > 3 else "")
    caveats = _same_steps(traces)
    alignment = align(traces, [Clock(recording.clocks, recording.host, recording.base_ns) for recording in ordered])
    _assign_groups(traces, ordered, alignment)
    _same_collectives(traces)
    made_nodes = nodes.make(traces, alignment.offsets_ns, facts.get("threads", 1))
    missing_ranks = tuple(rank for rank in range(world) if rank not in recordings)
    if missing_ranks:
        caveats.append(_missing(missing_ranks, world))
    coverages = [_coverage(trace, made_nodes) for trace in traces]
    caveats += [*alignment.caveats, *(text for trace in traces for text in trace.caveats), *made_nodes.caveats]
    caveats += [_explained(trace.rank, coverage) for trace, coverage in zip(traces, coverages, strict=True)]
    header = Header(
        source=source,
        backend="torch",
        device="gpu" if any(recording.on_device for recording in ordered) else "cpu",
        world_size=world,
        step_times_s=_step_times_s(traces),
        coverage=min(coverage.share for coverage in coverages),
        machine=_machine(ordered) | dict(facts.get("machine", {})),
        versions=facts.get("versions", {}),
        settings=facts.get("settings", {}),
        link=facts.get("link"),
        clock_offsets_ns=alignment.offsets_ns,
        cores=facts.get("cores"),
        missing_ranks=missing_ranks,
        caveats=tuple(dict.fromkeys(caveats)),
        parallel_lanes={lane: count for trace in traces for lane, count in trace.parallel.items()},
    )
    return checked(Graph(header, tuple(made_nodes.nodes)))


def _trace_of(recording: RankRecording, rank: int) -> RankTrace:
    try:
        return trace_of(recording, rank)
    except GraphError:
        raise
    except (LookupError, TypeError, ValueError, OverflowError) as error:
        raise TraceError(
            f"{recording.path}: contains an invalid mark: {problem_text(error)}; record it again"
        ) from error


def _rank_of(recording: RankRecording, position: int) -> int:
    """Return the rank that a file names, that of its name, or its position."""
    if isinstance(recording.rank, int):
        return recording.rank
    worker = worker_of(recording.path)
    return position if worker is None else worker


def _machine(recordings: Sequence[RankRecording]) -> dict[str, object]:
    hosts = [recording.host for recording in recordings]
    machine: dict[str, object] = {}
    if len(set(hosts)) > 1:
        machine["hosts"] = [sorted({str(host) for host in hosts}).index(str(host)) for host in hosts]
    if devices := recordings[0].devices:
        machine["devices"] = devices
    return machine


def _same_steps(traces: Sequence[RankTrace]) -> list[str]:
    """Leave out steps that are unfinished, or do something else than most; return what to say about them.

    Also sets the periods of all steps. Raises `GraphError`.
    """
    first_trace = traces[0]
    marked_count = max(len(trace.windows) for trace in traces)
    why = next((trace.unfinished for trace in traces if trace.unfinished), None)
    # A rank may have stopped its profiler one mark earlier.
    if any(len(trace.windows) < marked_count for trace in traces):
        for trace in traces:
            if trace.unfinished and len(trace.windows) == marked_count:
                _keep(trace, range(marked_count - 1))
                trace.unfinished = None
    for trace in traces[1:]:
        if len(trace.windows) != len(first_trace.windows):
            raise GraphError(
                f"{trace.source}: rank {trace.rank} has {len(trace.windows)} steps, rank {first_trace.rank} in "
                f"{first_trace.source} has {len(first_trace.windows)}; record the same steps on all ranks"
            )
    steps = range(len(first_trace.windows))
    finished_steps = steps[:-1] if any(trace.unfinished for trace in traces) else steps
    unusual_steps = {
        step for trace in traces for step in unusual([trace.lanes[trace.main][index] for index in finished_steps])
    }
    if len(unusual_steps) == len(finished_steps):
        unusual_steps = set()
    kept_steps = [step for step in finished_steps if step not in unusual_steps]
    set_periods(traces, kept_steps)
    for trace in traces:
        _keep(trace, kept_steps)
    remarks = []
    if why:
        remarks.append(f"step {marked_count}, the last one, is left out: the profiler stopped before it ended; {why}")
    if unusual_steps:
        numbers_text = ", ".join(str(step + 1) for step in sorted(unusual_steps))
        remarks.append(
            f"step {numbers_text} is left out: less than 80 % of its operations are those of the other steps"
        )
    return remarks


def _keep(trace: RankTrace, steps: Sequence[int]) -> None:
    """Leave out all other steps of a rank."""
    trace.windows, trace.periods = ([times[step] for step in steps] for times in (trace.windows, trace.periods))
    trace.numbers = [trace.numbers[step] for step in steps]
    for lane, pieces in trace.lanes.items():
        trace.lanes[lane] = [pieces[step] for step in steps]
        for index, step_pieces in enumerate(trace.lanes[lane]):
            for piece in step_pieces:
                piece.step = index


def _assign_groups(traces: Sequence[RankTrace], recordings: Sequence[RankRecording], alignment: Alignment) -> None:
    has_unknown = any(piece.call and not piece.call.group for trace in traces for piece in trace.pieces(0))
    if not has_unknown:
        return
    # A file names the groups of its own rank; groups of others may have the same name.
    distinct_groups = dict.fromkeys(ranks for recording in recordings for ranks in recording.groups.values())
    nodes.assign_groups(traces, {" ".join(map(str, ranks)): ranks for ranks in distinct_groups}, alignment.offsets_ns)
    for trace in traces:
        for step in range(len(trace.windows)):
            calls = [piece for piece in trace.pieces(step) if piece.call is not None]
            device.number_calls([sorted(calls, key=lambda piece: piece.start_ns)])


def _same_collectives(traces: Sequence[RankTrace]) -> None:
    """Check that all ranks of a group have as many collectives in a step. Raises `GraphError`."""
    present_ranks = {trace.rank for trace in traces}
    counts: dict[tuple[str, int], dict[int, int]] = {}
    members: dict[str, set[int]] = {}
    for trace in traces:
        for step in range(len(trace.windows)):
            for piece in trace.pieces(step):
                if piece.call is not None:
                    count_by_rank = counts.setdefault((piece.call.group, step), {})
                    count_by_rank[trace.rank] = count_by_rank.get(trace.rank, 0) + 1
                    members.setdefault(piece.call.group, set()).update(piece.call.ranks)
    for (group, step), count_by_rank in counts.items():
        for rank in sorted(members[group] & present_ranks):
            if count_by_rank.get(rank, 0) != (most := max(count_by_rank.values())):
                other_rank = next(counted_rank for counted_rank, count in count_by_rank.items() if count == most)
                source = next(trace.source for trace in traces if trace.rank == rank)
                raise GraphError(
                    f"{source}: rank {rank} has {count_by_rank.get(rank, 0)} collectives of group {group!r} in step "
                    f"{step + 1}, rank {other_rank} has {most}; record all ranks at the same time"
                )


def _missing(missing_ranks: Sequence[int], world: int) -> str:
    numbers_text = ", ".join(map(str, missing_ranks[:5])) + (", ..." if len(missing_ranks) > 5 else "")
    return (
        f"{len(missing_ranks)} of {world} ranks have no file (rank {numbers_text}): collectives keep their measured "
        "times, which include waiting for those ranks"
    )


def _coverage(trace: RankTrace, made_nodes: nodes.Made) -> Coverage:
    times_ns = [period.time_ns for period in trace.periods]
    return coverage_of(made_nodes.nodes, trace.rank, made_nodes.last[trace.rank], times_ns, trace.parallel)


def _explained(rank: int, coverage: Coverage) -> str:
    """Return a sentence about what explains the steps of a rank."""
    passed_nodes = [passed_node for path in coverage.paths for passed_node in path]
    total = sum(passed_node.worked_ns + passed_node.gap_ns for passed_node in passed_nodes) or 1
    between_ns = sum(passed_node.worked_ns for passed_node in passed_nodes if passed_node.node.name.endswith(BETWEEN))
    return (
        f"rank {rank}: {percentage(coverage.share)} of the step time is explained, of which "
        f"{percentage(between_ns / total)} is Python between operators of named ranges; "
        f"{percentage(1 - coverage.share)} is gaps"
    )


def _step_times_s(traces: Sequence[RankTrace]) -> tuple[float, ...]:
    return tuple(max(trace.periods[step].time_ns for trace in traces) / 1e9 for step in range(len(traces[0].periods)))

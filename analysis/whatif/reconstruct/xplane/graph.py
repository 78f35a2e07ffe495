"""A trace graph from the files of JAX or TensorFlow of one or all ranks."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from keras_matrix.analysis.whatif.graph import Graph, GraphError, Header, checked
from keras_matrix.analysis.whatif.reconstruct import clocks, nodes
from keras_matrix.analysis.whatif.reconstruct.coverage import coverage_of
from keras_matrix.analysis.whatif.reconstruct.facts import Facts
from keras_matrix.analysis.whatif.reconstruct.pieces import RankTrace
from keras_matrix.analysis.whatif.reconstruct.ranks import same_rank
from keras_matrix.analysis.whatif.reconstruct.xplane import between, inferred, packs, segments
from keras_matrix.analysis.whatif.reconstruct.xplane.chain import lay_out
from keras_matrix.analysis.whatif.reconstruct.xplane.collectives import concurrent, number
from keras_matrix.analysis.whatif.reconstruct.xplane.rank import Rank, fill, mark_gradients
from keras_matrix.analysis.whatif.reconstruct.xplane.reading import Profile, read
from keras_matrix.analysis.whatif.reconstruct.xplane.steps import check_steps, leave_out_unusual
from keras_matrix.records.fc import spec

OPERATIONS, SEGMENTS = "operations", "segments"
SEQUENCE = (
    "operations of a device overlap on its pool of threads: the duration of one is the part of the device's time that"
    " belongs to it, not the time of its event"
)
INFERRED = "the files have no program: what collectives wait for, and what waits for them, follows from the times"


def graph_of(paths: Sequence[Path], facts: Facts) -> Graph:
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
        inferred.add_to_collectives(rank)
    number(ranks)
    caveats += packs.add_sizes(ranks, facts.get("gradient_bytes", {}))
    links = between.links(ranks)
    parallel = concurrent(ranks)
    traces = [rank.trace(parallel) for rank in ranks]
    if level == SEGMENTS:
        links = segments.merge(traces, links)
    alignment = clocks.align(traces, [_clock(rank.profiles[0], len(workers)) for rank in ranks])
    made = nodes.make(traces, alignment.offsets_ns, threads=1)
    made.nodes = between.connected(made.nodes, links)
    caveats += [*alignment.caveats, *(text for trace in traces for text in trace.caveats), *made.caveats]
    header = replace(
        _header(paths, ranks, facts),
        step_times_s=_step_times_s(traces),
        clock_offsets_ns=alignment.offsets_ns,
        caveats=tuple(dict.fromkeys([*caveats, *_caveats(ranks)])),
        level=level,
        parallel_lanes=parallel,
    )
    graph = checked(Graph(header, tuple(made.nodes)))
    # Only of a graph without a circle: the path of a step would have no end.
    return replace(graph, header=replace(header, coverage=min(_share(trace, made) for trace in traces)))


def _header(paths: Sequence[Path], ranks: Sequence[Rank], facts: Facts) -> Header:
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


def _ranks(workers: Mapping[int, list[Profile]], facts: Facts) -> list[Rank]:
    """Return the ranks: the devices of each worker's files. Raises `GraphError` if two files have the same one."""
    devices: dict[int, tuple[list[Profile], int]] = {}
    for worker in sorted(workers):
        for device in workers[worker][0].runs:
            rank = worker + device
            if rank in devices:
                raise same_rank(rank, devices[rank][0][0].path, workers[worker][0].path)
            devices[rank] = workers[worker], device
    settings: Mapping[str, Any] = facts.get("settings", {})
    known = spec.parameter(settings, "workers", 1)
    world = max(max(devices) + 1, known if isinstance(known, int) else 1)
    cores = facts.get("cores")
    own_cores = cores / world if cores else float(facts.get("threads", 1))
    ranks = tuple(range(world))
    return [Rank(rank, profiles, device, ranks, own_cores) for rank, (profiles, device) in devices.items()]


def _clock(profile: Profile, files: int) -> clocks.Clock:
    """Return the clock of a rank; the ranks of one file have the same, as have files with marks of the machine's."""
    is_common = profile.is_aligned or files == 1
    return clocks.Clock([(0, 0)] if is_common else [], None, 0)


def _step_times_s(traces: Sequence[RankTrace]) -> tuple[float, ...]:
    steps = range(len(traces[0].windows))
    return tuple(max(trace.windows[step].time_ns for trace in traces) / 1e9 for step in steps)


def _share(trace: RankTrace, made: nodes.Made) -> float:
    times_ns = [window.time_ns for window in trace.windows]
    return coverage_of(made.nodes, trace.rank, made.last[trace.rank], times_ns, trace.parallel).share


def _backend(ranks: Sequence[Rank]) -> str:
    """Return the backend: TensorFlow's operations belong to no program."""
    names = {row.identity.program for rank in ranks for rows in rank.rows.lanes.values() for row in rows}
    return "tensorflow" if "" in names else "jax"


def _caveats(ranks: Sequence[Rank]) -> list[str]:
    found = []
    world = len(ranks[0].ranks)
    if len(ranks) < world:
        found.append(
            f"{world - len(ranks)} of {world} ranks have no file: collectives keep their measured times, which include"
            " waiting for those ranks"
        )
    if world > 1 and _backend(ranks) == "tensorflow":
        found.append(INFERRED)
    if all(rank.profiles[0].device == "cpu" for rank in ranks):
        found.append(SEQUENCE)
    return found

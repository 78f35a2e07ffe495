"""Kineto files of simulated training: a thread that launches, a device that follows it, and the true period.

The simulation runs before the recording begins, so that the device's queue is as full as it usually is, and work that
was launched before the first traced step runs in it. The thread waits where the device's queue holds `lag` of work;
what it launches begins `latency` later at the earliest. The true period is the mean distance between the ends of the
steps' last kernels, over the traced steps without the first.
"""

from __future__ import annotations

import random
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path

from tests.analysis.whatif.reconstruct.kineto.events import Event, call, kernel, operator
from tests.records.traces.synthetic import chrome, event

WARM_UP = 12
SIDE, LINK = 9, 40


@dataclass(frozen=True)
class Work:
    """What is simulated; times in microseconds.

    A step has a time of the thread and one of the device for each operator; `thread` and `device` list the steps that
    alternate. `side` is how long a second stream works for an operator.
    """

    thread: Sequence[Sequence[float]]
    device: Sequence[Sequence[float]]
    steps: int
    lag: float = 1e9
    latency: float = 5.0
    side: float = 0.0
    ranks: int = 1
    jitter: float = 0.0
    seed: int = 0


@dataclass
class Rank:
    """A rank while it is simulated: its clock's shift, when its thread and streams are free, and what was recorded."""

    shift: float
    thread: float = 0.0
    streams: dict[int, float] = field(default_factory=dict)
    ends: list[float] = field(default_factory=list)
    events: list[Event] = field(default_factory=list)
    number: int = 0


def files(folder: Path, work: Work) -> tuple[list[Path], float]:
    """Write the files of all ranks; return them and the true period in microseconds."""
    draw = random.Random(work.seed)
    ranks = [Rank(draw.uniform(0, 5_000)) for _ in range(work.ranks)]
    for step in range(WARM_UP + work.steps):
        sums = [_step(rank, work, step, draw) for rank in ranks]
        if work.ranks > 1:
            begin = max(begin for begin, _ in sums)
            for rank, (own, issued) in zip(ranks, sums, strict=True):
                rank.streams[LINK] = begin + 300.0
                _record(rank, step, _sum(rank, own, begin + 300.0 - own, issued))
        for rank in ranks:
            rank.ends.append(max(rank.streams.values()))
    paths = [
        chrome(folder / f"rank{number}.json", rank.events, distributedInfo={"rank": number, "world_size": work.ranks})
        for number, rank in enumerate(ranks)
    ]
    ends = ranks[0].ends
    return paths, (ends[-1] - ends[WARM_UP]) / (work.steps - 1)


def _step(rank: Rank, work: Work, step: int, draw: random.Random) -> tuple[float, int]:
    """Run a step of a rank; return when its sum of gradients could begin, and the number of its launch."""
    begin = rank.thread
    durations = zip(work.thread[step % len(work.thread)], work.device[step % len(work.device)], strict=True)
    for usual in durations:
        host, device = (value * draw.uniform(1 - work.jitter, 1 + work.jitter) for value in usual)
        start = rank.thread
        launched = max(start + host / 2, rank.streams.get(7, 0.0) - work.lag)  # waits while the queue is full
        rank.number += 1
        end = launched + host / 2
        found = [
            operator("aten::mm", start + rank.shift, end - start, **{"External id": rank.number}),
            call("cudaLaunchKernel", start + host / 4 + rank.shift, launched - start - host / 4 + 2, rank.number),
        ]
        found.append(_run(rank, 7, "gemm", launched + work.latency, device))
        if work.side:
            rank.number += 1
            found.append(call("cudaMemcpyAsync", launched + 3 + rank.shift, 2, rank.number))
            found.append(_run(rank, SIDE, "Memcpy HtoD (Pinned -> Device)", launched + work.latency, work.side))
        _record(rank, step, found)
        rank.thread = end
    ready, issued = 0.0, 0
    if work.ranks > 1:
        rank.number = issued = rank.number + 1
        found = [
            operator("c10d::allreduce_", rank.thread + rank.shift, 20, **{"External id": issued}),
            call("cudaLaunchKernel", rank.thread + 5 + rank.shift, 2, issued),
        ]
        _record(rank, step, found)
        ready = max(rank.thread + 5 + work.latency, rank.streams[7], rank.streams.get(LINK, 0.0))
        rank.thread += 20
    rank.thread += 10
    _record(rank, step, [event(f"ProfilerStep#{step}", begin + rank.shift, rank.thread - begin, "user_annotation")])
    return ready, issued


def _run(rank: Rank, stream: int, name: str, ready: float, duration: float) -> Event:
    """Run a kernel on a stream."""
    start = max(ready, rank.streams.get(stream, 0.0))
    rank.streams[stream] = start + duration
    category = "gpu_memcpy" if name.startswith("Memcpy") else "kernel"
    return kernel(name, start + rank.shift, duration, rank.number, tid=stream, stream=stream, cat=category)


def _sum(rank: Rank, start: float, duration: float, issued: int) -> list[Event]:
    about = {"Collective name": "allreduce", "In msg nelems": 1000, "Out msg nelems": 1000, "dtype": "Float"}
    about |= {"Process Group Name": "0", "Process Group Ranks": "[]", "stream": LINK, "tid": LINK}
    return [kernel("ncclDevKernel_AllReduce", start + rank.shift, duration, issued, **about)]


def _record(rank: Rank, step: int, found: Sequence[Event]) -> None:
    """Keep events of traced steps, and a device's work of the step before, whose launch was not recorded."""
    if step >= WARM_UP:
        rank.events += found
    elif step == WARM_UP - 1:
        rank.events += [one for one in found if one["cat"] in ("kernel", "gpu_memcpy")]

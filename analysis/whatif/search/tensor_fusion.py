"""Searches which gradients are summed together, by replaying contiguous partitions of them.

Torch and JAX can have any buckets: the search begins with capacities, with the partitions that would be optimal on a
link that only they use (`earliest`), and with those derived from fused blocks; then it moves, merges and cuts buckets
while that helps. TensorFlow has one size of packs: all sizes that make different packs are compared.

Of settings whose predicted times differ by less than `EQUALLY_FAST`, the one with fewer collectives is better: such a
difference is smaller than a prediction's error, and a replay does not contain the host's work for each collective.

`earliest` finds contiguous partitions of gradients that end early on one link, by dynamic programming without replay. A
gradient j is complete at r(j); a bucket that ends with it starts then, or when the bucket before it has ended. For
buckets that follow one another on a link that nothing else uses, the partition found is optimal: the end of the last
bucket is a non-decreasing function of the end of those before. It is a good beginning for a search by replay.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from itertools import pairwise
from math import inf

from keras_matrix.analysis.whatif.collectives import ddp_buckets, of_trace, tf_packs, time_s
from keras_matrix.analysis.whatif.contention import exclusive
from keras_matrix.analysis.whatif.engine import simulate
from keras_matrix.analysis.whatif.graph import Graph, GraphError, NodeKind
from keras_matrix.analysis.whatif.replay import replay, step_time_s
from keras_matrix.analysis.whatif.search.trajectory import (
    EQUALLY_FAST,
    LEAST_GAIN,
    ReplayedTrial,
    Trajectory,
    TrialCollector,
    critical_nodes,
    skipped,
)
from keras_matrix.analysis.whatif.what_ifs.gradients import Sums, sums_of
from keras_matrix.analysis.whatif.what_ifs.tensor_fusion import EACH, NAME, corrections, with_groups

MOST_REPLAYS = 200
MOST_BUCKETS = 24  # of the partitions that dynamic programming proposes
MOST_CAPACITIES = 12
Partition = tuple[int, ...]  # the number of gradients of each bucket


def search(
    graph: Graph,
    *,
    before: Sequence[str] = (),
    fused: Sequence[Sequence[str]] = (),
    most_replays: int = MOST_REPLAYS,
) -> Trajectory:
    """Return the best buckets. Raises `GraphError` if the graph cannot be replayed.

    `before` are what-ifs that made the graph, `fused` are blocks of layers to derive buckets from.
    """
    graph = exclusive(graph)
    baseline = replay(graph)
    if not any(node.kind is NodeKind.COMMUNICATION for node in critical_nodes(baseline)):
        return skipped(NAME, baseline, "no communication is on the critical path")
    try:
        sums = sums_of(graph)
    except GraphError as error:
        return skipped(NAME, baseline, error)
    tried = _Search(graph, sums, TrialCollector(graph, tuple(before)), most_replays)
    sizes = [one.bytes for one in sums.gradients]
    if graph.header.backend == "tensorflow":
        for size, partition in _packs(sizes, most_replays):
            tried.time_of(partition, f"{NAME}={size}b")
    else:
        for partition in tried.proposals(sizes, fused):
            tried.time_of(partition)
        tried.improve()
    return tried.trials.finished(NAME, baseline, tried.ranked(), tried.collectives())


class _Search:
    """Replays partitions of one graph's gradients, each once."""

    def __init__(self, graph: Graph, sums: Sums, trials: TrialCollector, most_replays: int) -> None:
        self.trials, self._most = trials, most_replays
        # With its sums at the end, the other nodes of every replayed graph are these; that takes half the time.
        self._graph = with_groups(graph, sums, sums.groups)
        self._sums = sums_of(self._graph)
        self._times: dict[Partition, float] = {}
        self._texts: dict[Partition, str] = {}

    def ranked(self) -> list[ReplayedTrial]:
        """Return all partitions, best first; of those that are equally fast the ones with fewer collectives."""
        limit = min(self._times.values()) * (1 + EQUALLY_FAST)
        fast = sorted((one for one, time in self._times.items() if time <= limit), key=len)
        others = sorted((one for one, time in self._times.items() if time > limit), key=self._times.__getitem__)
        return [ReplayedTrial((self._texts[one],), self._times[one], False) for one in (*fast, *others)]

    def collectives(self) -> dict[tuple[str, ...], int]:
        """Return the number of collectives of each trial, by its what-ifs."""
        return {(text,): len(partition) for partition, text in self._texts.items()}

    def proposals(self, sizes: Sequence[int], fused: Sequence[Sequence[str]]) -> Iterator[Partition]:
        """Yield the partitions with which a search begins."""
        yield tuple(len(group) for group in self._sums.groups)
        yield (len(sizes),)
        if fused:
            yield _of_blocks([one.layer for one in self._sums.gradients], fused)
        yield from earliest(self._ready(), self._time(sizes), MOST_BUCKETS)
        for number in range(MOST_CAPACITIES):
            cap_mb = sum(sizes) / (1 << 20) / 2**number
            yield tuple(len(group) for group in ddp_buckets(sizes, max(cap_mb, 1e-6)))
        yield (1,) * len(sizes)

    def time_of(self, partition: Partition, text: str | None = None) -> float:
        """Return the replayed step time of a partition; infinite once there were too many replays."""
        if partition not in self._times and len(self._times) < self._most:
            groups, begin = [], 0
            for size in partition:
                groups.append(range(begin, begin + size))
                begin += size
            time = step_time_s(with_groups(self._graph, self._sums, groups))
            self._texts[partition] = text or f"{NAME}={_counts(partition)}"
            self._times[partition] = time
            self.trials.add(self._texts[partition], time)
        return self._times.get(partition, float("inf"))

    def improve(self) -> None:
        """Take the best neighbour of the best partition while that is faster."""
        while len(self._times) < self._most:
            best = min(self._times, key=lambda one: (self._times[one], len(one)))
            before = self._times[best]
            for partition in neighbours(best):
                self.time_of(partition)
            if min(self._times.values()) >= before * (1 - LEAST_GAIN):
                return

    def _ready(self) -> list[float]:
        """Return when each gradient is complete on all ranks, within the replayed step."""
        schedule = simulate(self._graph)
        ends, begin = schedule.ends_ns, schedule.begin_ns
        return [
            max(ends[number] for numbers in one.ready.values() for number in numbers) - begin
            for one in self._sums.gradients
        ]

    def _time(self, sizes: Sequence[int]) -> Callable[[int, int], float]:
        """Return how long the sum of successive gradients takes, in nanoseconds."""
        link = of_trace(self._graph)
        factors = corrections(self._graph, self._sums, link)
        factor = sum(factors) / len(factors) * 1e9
        one = next(iter(self._sums.collectives[0].values())).collective
        ends = [0]
        for size in sizes:
            ends.append(ends[-1] + size)
        ranks, operation = (len(one.ranks), one.operation) if one else (2, "all_reduce")
        return lambda begin, end: factor * time_s(link, operation, ranks, ends[end] - ends[begin])


def _packs(sizes: Sequence[int], most: int) -> list[tuple[int, Partition]]:
    """Return sizes of packs that make different packs, the largest first, at most so many; 0 is a single pack."""
    found: dict[Partition, int] = {}
    totals = {sum(sizes[begin:end]) for begin in range(len(sizes)) for end in range(begin + 1, len(sizes) + 1)}
    # A pack is closed when it is larger than its limit: just below a sum it takes no more than that.
    for size in (0, *sorted({total - 1 for total in totals if total > 1}, reverse=True)):
        found.setdefault(tuple(len(group) for group in tf_packs(sizes, size)), size)
    partitions = list(found)
    count = min(len(partitions), most)
    return [(found[one], one) for one in (partitions[at * len(partitions) // count] for at in range(count))]


def _counts(partition: Partition) -> str:
    """Return a partition as the value of the what-if."""
    if len(partition) > 1 and set(partition) == {1}:
        return EACH
    return ",".join(map(str, partition)) + ("," if len(partition) == 1 else "")


def _of_blocks(layers: Sequence[str | None], blocks: Sequence[Sequence[str]]) -> Partition:
    """Return a bucket for the successive gradients of each fused block, and one for each other gradient."""
    block_of = {layer: at for at, block in enumerate(blocks) for layer in block}
    sizes: list[int] = []
    last: int | None = None
    for layer in layers:
        block = block_of.get(layer) if layer is not None else None
        if block is not None and block == last:
            sizes[-1] += 1
        else:
            sizes.append(1)
        last = block
    return tuple(sizes)


def earliest(ready: Sequence[float], time: Callable[[int, int], float], most_buckets: int) -> list[Partition]:
    """Return the partition that ends first for each number of buckets from 1 to `most_buckets`.

    `ready` is when each gradient is complete, `time(i, j)` how long the sum of gradients i to j - 1 takes.
    """
    count = len(ready)
    complete = [max(ready[: at + 1]) for at in range(count)]
    took = [[time(begin, end) if begin < end else 0.0 for end in range(count + 1)] for begin in range(count)]
    ends = [0.0 if not at else inf for at in range(count + 1)]
    choices: list[list[int]] = []
    found = []
    for buckets in range(1, min(most_buckets, count) + 1):
        following, chosen = [inf] * (count + 1), [0] * (count + 1)
        for end in range(buckets, count + 1):
            available = complete[end - 1]
            for begin in range(buckets - 1, end):
                finish = max(ends[begin], available) + took[begin][end]
                if finish < following[end]:
                    following[end], chosen[end] = finish, begin
        ends = following
        choices.append(chosen)
        found.append(_traced(choices, count))
    return found


def _traced(choices: Sequence[Sequence[int]], count: int) -> Partition:
    sizes = []
    end = count
    for chosen in reversed(choices):
        sizes.append(end - chosen[end])
        end = chosen[end]
    return tuple(reversed(sizes))


def neighbours(partition: Partition) -> list[Partition]:
    """Return partitions that differ by a moved boundary, a merged pair of buckets or a bucket cut in the middle."""
    found: list[Partition] = []
    for at, (left, right) in enumerate(pairwise(partition)):
        for moved in (-1, 1):
            if left + moved > 0 and right - moved > 0:
                found.append((*partition[:at], left + moved, right - moved, *partition[at + 2 :]))
        found.append((*partition[:at], left + right, *partition[at + 2 :]))
    for at, size in enumerate(partition):
        if size > 1:
            found.append((*partition[:at], size // 2, size - size // 2, *partition[at + 1 :]))
    return found

"""How long a collective takes, and which gradients a backend sums together.

`time_s` is the time of one collective that has the link to itself: for N ranks in a ring, alpha x steps of the ring +
beta x bytes that each rank sends. `bytes` is the size of the complete array: what an all-reduce sums, what an
all-gather leaves on each rank, what a reduce-scatter starts from. A measured table replaces the formula for a library,
such as NCCL, that changes its algorithm with the size.

The rules for gradients that are summed together are exact: `ddp_buckets` is that of torch's DistributedDataParallel,
`tf_packs` that of TensorFlow's `CommunicationOptions(bytes_per_pack)`.

Not known: the effect of a rank's position in the network, and of other traffic.

Source of the ring's cost: Thakur, Rabenseifner and Gropp, "Optimization of collective communication operations in
MPICH", IJHPCA 19 (2005).
"""

from __future__ import annotations

import math
from bisect import bisect_left
from collections import Counter, defaultdict
from collections.abc import Iterable, Sequence
from dataclasses import replace
from statistics import median, stdev

from keras_matrix.analysis.whatif.graph import Collective, Graph, GraphError, LinkCalibration
from keras_matrix.records.fc import network, rules, spec
from keras_matrix.records.text import MIB

# An operation on N ranks: the steps of its ring, and the bytes that each rank sends, as a share of the array.
OPERATIONS = ("all_reduce", "reduce_scatter", "all_gather", "broadcast", "all_to_all", "send")
# Steps of a fit, and the least time that it predicts.
MOST_FITS, LEAST_S = 200, 1e-9
NEGLIGIBLE = 1e-6  # a part of the time of the largest collective that is none
# The scatter of a size's times is known from this many, and never less than 5 %: they may share an error.
FEW, LEAST_SCATTER = 3, 0.05
# A measured time that differs more from the calibrated one shows that the calibration is of another link.
MOST_CORRECTION = 2.0
# Of a trace's own collectives: the largest is at least so many times the smallest if alpha and beta are told apart.
DIFFERENT = 4


def ring(operation: str, ranks: int) -> tuple[int, float]:
    """Return the steps of the ring and the sent bytes as a share of the array. Raises `GraphError`."""
    if operation not in OPERATIONS:
        raise GraphError(f"collective {operation!r}: its time is not known; known are {', '.join(OPERATIONS)}")
    if ranks < 2:
        return 0, 0.0
    if operation == "all_reduce":
        return 2 * (ranks - 1), 2 * (ranks - 1) / ranks
    if operation == "send":
        return 1, 1.0
    return ranks - 1, 1.0 if operation == "broadcast" else (ranks - 1) / ranks


def time_s(link: LinkCalibration, operation: str, ranks: int, bytes: int) -> float:
    """Return the seconds of a collective that has the link to itself; 0 for one rank. Raises `GraphError`."""
    steps, share = ring(operation, ranks)
    if not steps:
        return 0.0
    if link.table:
        return _from_table(link, operation, ranks, bytes)
    return latency_s(link, operation, ranks) + link.beta_s_per_byte * bytes * share


def latency_s(link: LinkCalibration, operation: str, ranks: int) -> float:
    """Return the part of a collective's time that does not depend on its size; 0 for a table, which has no parts."""
    if link.table or ranks < 2:
        return 0.0
    return link.alpha_s * ring(operation, ranks)[0] / (2 * (max(link.ranks, 2) - 1))


def _from_table(link: LinkCalibration, operation: str, rank_count: int, size_bytes: int) -> float:
    """Interpolate the logarithm of the time over the logarithm of the size, within the nearest measured ranks.

    Below the smallest size a time is that of the smallest, which is latency; above the largest it is proportional to
    the size, which is bandwidth. Other operations and ranks are scaled by what a rank sends.
    """
    measured_keys = {(row[0], row[1]) for row in link.table}
    same_operation = [key for key in measured_keys if key[0] == operation]
    nearest = min(same_operation or measured_keys, key=lambda key: (abs(math.log(key[1] / rank_count)), key))
    if nearest[1] < 2:
        raise GraphError(f"{link.source}: the table of collectives has an entry for {nearest[1]} rank; measure with 2")
    points = sorted((row[2], row[3]) for row in link.table if (row[0], row[1]) == nearest)
    scale = ring(operation, rank_count)[1] / ring(*nearest)[1]
    return scale * _interpolated(points, size_bytes)


def _interpolated(points: Sequence[tuple[int, float]], size_bytes: int) -> float:
    sizes = [size for size, _ in points]
    if size_bytes <= sizes[0]:
        return points[0][1]
    if size_bytes >= sizes[-1]:
        return points[-1][1] * size_bytes / sizes[-1]
    index = bisect_left(sizes, size_bytes)
    (low, low_s), (high, high_s) = points[index - 1], points[index]
    position = math.log(size_bytes / low) / math.log(high / low)
    return math.exp(math.log(low_s) + position * math.log(high_s / low_s))


def fit(
    points: Iterable[tuple[int, float]],
    *,
    ranks: int,
    source: str,
    operation: str = "all_reduce",
    rate_bits_per_s: float | None = None,
) -> LinkCalibration:
    """Return alpha and beta, neither negative, of measured (bytes, seconds): least squares of the times' logarithms.

    Logarithms, since times differ by orders of magnitude and the small ones determine alpha. Each size counts by how
    little its times scatter: under load a small sum may take ten times as long as another one, a large one may not.
    Raises `GraphError` without two different sizes or with a time that is not positive.
    """
    measured_points = list(points)
    if ranks < 2:
        raise GraphError(f"{source}: collectives of {ranks} ranks have no link; measure those of 2 or more")
    for size, seconds in measured_points:
        if seconds <= 0 or size < 0:
            raise GraphError(f"{source}: a collective of {size} bytes in {seconds} s is not a measurement")
    if len({size for size, _ in measured_points}) < 2:
        raise GraphError(
            f"{source}: {len(measured_points)} collectives of one size; measure at least two for alpha and beta"
        )
    steps, share = ring(operation, ranks)
    weights = _weights(measured_points)
    alpha, slope = _nonnegative([(1 / seconds, size / seconds, 1.0) for size, seconds in measured_points])
    for _ in range(MOST_FITS):  # Gauss-Newton, each step half of the way
        fitted_times_s = [max(alpha + slope * size, LEAST_S) for size, _ in measured_points]
        rows = [
            (weight / fitted_time_s, weight * size / fitted_time_s, weight * (1 + math.log(seconds / fitted_time_s)))
            for weight, fitted_time_s, (size, seconds) in zip(weights, fitted_times_s, measured_points, strict=True)
        ]
        previous = alpha, slope
        alpha, slope = ((old + new) / 2 for old, new in zip(previous, _nonnegative(rows), strict=True))
        if math.isclose(alpha, previous[0], rel_tol=1e-9) and math.isclose(slope, previous[1], rel_tol=1e-9):
            break
    largest_s = alpha + slope * max(size for size, _ in measured_points)
    alpha, slope = (
        (alpha if alpha > NEGLIGIBLE * largest_s else 0.0),
        (slope if largest_s - alpha > NEGLIGIBLE * largest_s else 0.0),
    )
    all_reduce_steps = ring("all_reduce", ranks)[0]
    return LinkCalibration(alpha * all_reduce_steps / steps, slope / share, ranks, source, rate_bits_per_s)


def _weights(values: Sequence[tuple[int, float]]) -> list[float]:
    """Return the weight of each measurement: the inverse of the scatter of the logarithms of its size's times.

    A size with few times has the median scatter of the others.
    """
    logs_by_size: dict[int, list[float]] = defaultdict(list)
    for size, seconds in values:
        logs_by_size[size].append(math.log(seconds))
    scatter = {size: max(stdev(logs), LEAST_SCATTER) for size, logs in logs_by_size.items() if len(logs) >= FEW}
    usual = median(scatter.values()) if scatter else 1.0
    return [1 / scatter.get(size, usual) for size, _ in values]


def _nonnegative(rows: Sequence[tuple[float, float, float]]) -> tuple[float, float]:
    """Return the non-negative x, y that minimise the sum of (a x + b y - c)² over the rows (a, b, c)."""
    aa, ab, bb, ac, bc = (
        math.fsum(row[i] * row[j] for row in rows) for i, j in ((0, 0), (0, 1), (1, 1), (0, 2), (1, 2))
    )
    determinant = aa * bb - ab * ab
    x, y = ((ac * bb - bc * ab) / determinant, (bc * aa - ac * ab) / determinant) if determinant > 0 else (0.0, bc / bb)
    if x < 0:
        return 0.0, max(0.0, bc / bb)
    return (max(0.0, ac / aa), 0.0) if y < 0 else (x, y)


def of_trace(graph: Graph) -> LinkCalibration:
    """Return the graph's calibration, or one fitted to its own collectives, which were measured under its load.

    With collectives of similar sizes alpha cannot be separated: it is 0 then, and `source` says so. The graph must be
    `exclusive`. Raises `GraphError` if no collective of several ranks has its bytes: then no time of one is known under
    another link, with a calibration neither.
    """
    traced = _traced(graph)
    if not traced:
        raise GraphError(
            f"{graph.header.source}: has no collective of several ranks with its bytes; trace two workers, with"
            " record_shapes=True of torch.profiler"
        )
    if graph.header.link is not None:
        return graph.header.link
    timed_collectives = [(collective, taken_s) for collective, taken_s in traced if taken_s > 0]
    if not timed_collectives:
        raise GraphError(
            f"{graph.header.source}: its collectives of several ranks take no time; name the times of a link with"
            " --calibration FILE"
        )
    source = f"collectives of {graph.header.source}"
    operation, rank_count = Counter(
        (collective.operation, len(collective.ranks)) for collective, _ in timed_collectives
    ).most_common(1)[0][0]
    points = [
        (collective.bytes, time)
        for collective, time in timed_collectives
        if (collective.operation, len(collective.ranks)) == (operation, rank_count)
    ]
    rate = network.bits_per_s(str(spec.parameter(graph.header.settings, "network", "")))
    sizes = [size for size, _ in points]
    if max(sizes) >= DIFFERENT * min(sizes):
        return fit(points, ranks=rank_count, source=source, operation=operation, rate_bits_per_s=rate)
    slope = _nonnegative([(0.0, size / time, 1.0) for size, time in points])[1]
    return LinkCalibration(
        0.0, slope / ring(operation, rank_count)[1], rank_count, f"{source}, which have similar sizes: alpha is 0", rate
    )


def measured_ratio(graph: Graph, link: LinkCalibration) -> float | None:
    """Return the time of the graph's collectives by that of a calibration; None if their bytes are not known."""
    traced = _traced(graph)
    nominal_s = sum(
        time_s(link, collective.operation, len(collective.ranks), collective.bytes) for collective, _ in traced
    )
    return sum(taken_s for _, taken_s in traced) / nominal_s if nominal_s else None


def _traced(graph: Graph) -> list[tuple[Collective, float]]:
    """Return the graph's collectives of known bytes and several ranks, with their seconds.

    The rank that comes last does not wait: of the ranks' times the least counts.
    """
    least: dict[tuple[str, int], tuple[Collective, float]] = {}
    for node in graph.nodes:
        if (collective := node.collective) is not None and collective.bytes and len(collective.ranks) > 1:
            _, known_ns = least.get((collective.group, collective.ordinal), (collective, math.inf))
            least[collective.group, collective.ordinal] = collective, min(known_ns, node.duration_ns)
    return [(collective, taken_ns / 1e9) for collective, taken_ns in least.values()]


def with_rate(link: LinkCalibration, rate_bits_per_s: float) -> LinkCalibration:
    """Return a link of another rate.

    The share of the rate that collectives reach stays as calibrated. Where the calibration was not limited by a known
    rate, such as on the loopback interface, a byte takes the longer of its time there and its time at the rate.
    """
    if rate_bits_per_s <= 0:
        raise GraphError(f"bandwidth: must be positive, got {rate_bits_per_s}")
    source = f"{link.source}, scaled to {rate_bits_per_s:g} bit/s"
    if link.rate_bits_per_s is None:
        beta = max(link.beta_s_per_byte, 8 / rate_bits_per_s)
        floor = tuple(
            (name, rank_count, size_bytes, max(time, 8 / rate_bits_per_s * size_bytes * ring(name, rank_count)[1]))
            for name, rank_count, size_bytes, time in link.table
        )
        return replace(link, beta_s_per_byte=beta, table=floor, rate_bits_per_s=rate_bits_per_s, source=source)
    factor = link.rate_bits_per_s / rate_bits_per_s
    least = {
        (name, rank_count): min(row[3] for row in link.table if row[:2] == (name, rank_count))
        for name, rank_count, *_ in link.table
    }
    table = tuple(
        (name, rank_count, size_bytes, least[name, rank_count] + (time - least[name, rank_count]) * factor)
        for name, rank_count, size_bytes, time in link.table
    )
    beta = link.beta_s_per_byte * factor
    return replace(link, beta_s_per_byte=beta, table=table, rate_bits_per_s=rate_bits_per_s, source=source)


def ddp_buckets(tensors: Sequence[int], caps_mb: float | Sequence[float] | None = None) -> list[list[int]]:
    """Return the buckets that DistributedDataParallel launches: positions of gradients of these bytes, as they arrive.

    `caps_mb`, in MiB, is `bucket_cap_mb`, or None if that is not given, or `bucket_cap_mb_list`. The rule is that of
    `records.fc.rules`.
    """
    if caps_mb is None or isinstance(caps_mb, (int, float)):
        return rules.buckets_by_capacity(tensors, rules.capacities_bytes(caps_mb or 0))
    return rules.buckets_by_capacity(tensors, [int(cap * MIB) for cap in caps_mb])


def tf_packs(tensors: Sequence[int], bytes_per_pack: int) -> list[list[int]]:
    """Return TensorFlow's packs of arrays of these bytes: a pack takes arrays until it is larger than `bytes_per_pack`.

    0 is a single pack. Source: `group_by_size` of tensorflow/python/distribute/cross_device_utils.py, 2.21.
    """
    packs: list[list[int]] = []
    size = 0
    for position, tensor_bytes in enumerate(tensors):
        if not packs or (bytes_per_pack and size > bytes_per_pack):
            packs.append([])
            size = 0
        packs[-1].append(position)
        size += tensor_bytes
    return packs


def groups_of(counts: Sequence[int], tensors: int) -> list[list[int]]:
    """Return explicit groups: `counts` successive positions of `tensors` arrays. Raises `GraphError` on a wrong sum."""
    if sum(counts) != tensors or any(count < 1 for count in counts):
        text = ",".join(map(str, counts))
        raise GraphError(f"buckets: must be positive counts, {tensors} in all as there are gradients, got {text}")
    return rules.buckets_by_count(counts)

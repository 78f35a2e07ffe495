"""The operations of trace graphs as samples for a cost model, and their time from a device's peaks.

Operations of equal kind, work, type and shape in one graph, in whatever layer and on whatever rank, are one sample: the
median of their durations. Collectives and waits are not operations here: they depend on the link and on others.

The kind of an operation, from the name that a backend or a device's library gives it.

A rule of a kind is a search in the name; the first one that matches decides, so that a fused matrix product counts as a
matrix product. Names that no rule knows are of kind `OTHER`, which is learned like any other.

That time is overhead + max(FLOPs / peak, bytes / bandwidth) / efficiency.
The part without overhead and efficiency is the roofline: Williams, Waterman, Patterson, "Roofline: an insightful visual
performance model for multicore architectures", CACM 52(4), 2009. Both are learned by kind of operation. The overhead is
what an operation without work takes: its call, and the start of threads or of a kernel. Efficiencies above 1 occur
where data stay in caches, because the bandwidth is that of memory.
"""

from __future__ import annotations

import math
import re
from collections import defaultdict
from collections.abc import Sequence
from dataclasses import dataclass
from enum import StrEnum
from functools import lru_cache
from statistics import median

from keras_matrix.analysis.roofline import ComputePlace, MachinePeaks, products, slopes
from keras_matrix.analysis.whatif.graph import Graph, Header, Node, NodeKind
from keras_matrix.records.dtypes import ELEMENT_BYTES
from keras_matrix.records.instruments.peaks import Peaks

NS = 1e-9
# What a regressor sees of an operation. Logarithms are to the base 2; a value that is not known is -1.
FEATURES = (
    "log_flops",
    "log_bytes",
    "log_flop_per_byte",
    "log_roofline_ns",
    "element_bytes",
    "log_smallest_side",
    "log_largest_side",
    "sides",
    "cores",
    "device",
)
UNKNOWN = -1.0
SLEEPS = "LayerSleep"
MEASURED = "measured"
OBSERVED = "best rates in the traces"
DTYPES = {
    **dict.fromkeys(("float", "f32", "float32", "torch.float32", "float32_ref", "single"), "float32"),
    **dict.fromkeys(("double", "f64", "float64"), "float64"),
    **dict.fromkeys(("bf16", "bfloat16", "c10::bfloat16"), "bfloat16"),
    **dict.fromkeys(("half", "f16", "float16", "c10::half"), "float16"),
}
# Candidates for the overhead and the efficiency of a kind; more do not change the figures of docs/lab/whatif.md.
_QUANTILES = 24
_SHARES = (0.25, 0.5, 0.75, 0.9, 1.0)
_MOST_FITTED = 400


class OperationKind(StrEnum):
    """Kinds whose time depends on their work in the same way."""

    ATTENTION = "attention"
    RECURRENT = "recurrent layer"
    CONVOLUTION = "convolution"
    FUSED_PRODUCT = "fused product"
    MATRIX_PRODUCT = "matrix product"
    NORMALISATION = "normalisation"
    POOLING = "pooling"
    UPDATE = "optimizer update"
    FUSION = "fusion"
    INDEXING = "indexing"
    REDUCTION = "reduction"
    COPY = "copy"
    ELEMENTWISE = "elementwise"
    VIEW = "view"  # moves no data
    SEGMENT = "segment"  # several operations of a phase and layer as one
    OTHER = "other"


# Kinds whose rate is that of the memory, for devices whose bandwidth was not measured.
MOVING = (OperationKind.ELEMENTWISE, OperationKind.COPY, OperationKind.REDUCTION, OperationKind.UPDATE)


@dataclass(frozen=True, slots=True)
class OperationSample:
    """Equal operations of one graph: `count` in a step, each of `time_s`. `device` is the number of its device."""

    backend: str
    kind: OperationKind
    device: int
    flops: float | None
    bytes: int | None
    dtype: str | None
    shape: tuple[int, ...] | None
    cores: float
    time_s: float
    count: int

    @property
    def work(self) -> tuple[OperationKind, float | None, int | None]:
        """What operations of the same work share, in whichever trace: these are held out together."""
        return self.kind, self.flops, self.bytes


@dataclass(frozen=True, slots=True)
class GraphSamples:
    """The samples of a graph, and what it has besides: operations without FLOPs and bytes, and their time in a step."""

    samples: tuple[OperationSample, ...]
    operations: int
    without_work: int
    time_s: float
    time_without_work_s: float


def is_operation(node: Node) -> bool:
    """Return whether a node computes, alone. Layers that sleep, which only a test has, do not."""
    return node.kind is NodeKind.COMPUTE and node.collective is None and not node.name.startswith(SLEEPS)


def has_work(node: Node) -> bool:
    """Return whether it is known how much a node computes or moves."""
    return bool(node.flops or node.bytes)


def samples_of(graph: Graph, device: int) -> GraphSamples:
    """Return the samples of a graph that was traced on the device with this number."""
    computing = [node for node in graph.nodes if is_operation(node) and node.duration_ns > 0]
    nodes_by_work: dict[tuple[object, ...], list[Node]] = defaultdict(list)
    for node in computing:
        if has_work(node):
            key = (kind_of(node.name), node.flops, node.bytes, node.dtype, node.shape, node.cores)
            nodes_by_work[key].append(node)
    backend = graph.header.backend
    unknown_nodes = [node for node in computing if not has_work(node)]
    return GraphSamples(
        samples=tuple(_sample(backend, device, nodes) for nodes in nodes_by_work.values()),
        operations=len(computing),
        without_work=len(unknown_nodes),
        time_s=sum(node.duration_ns for node in computing) * NS,
        time_without_work_s=sum(node.duration_ns for node in unknown_nodes) * NS,
    )


def _sample(backend: str, device: int, nodes: Sequence[Node]) -> OperationSample:
    first_node = nodes[0]
    time_s = median(node.duration_ns for node in nodes) * NS
    work = (first_node.flops, first_node.bytes, first_node.dtype, first_node.shape, first_node.cores)
    return OperationSample(backend, kind_of(first_node.name), device, *work, time_s=time_s, count=len(nodes))


def product_of(header: Header) -> str:
    """Return the product name of the device that a graph was traced on, as well as the header states it."""
    machine = header.machine
    if header.device.partition(":")[0] in ("gpu", "cuda"):
        gpus = machine.get("gpus")
        return str(gpus[0]) if isinstance(gpus, (list, tuple)) and gpus else str(machine.get("gpu") or header.device)
    return str(machine.get("cpu_model") or header.device)


def cores_of(header: Header) -> int | None:
    """Return the cores of a graph's CPU; None if unknown or on an accelerator."""
    return header.cores if header.device.partition(":")[0] == "cpu" else None


def observed_peaks(header: Header, samples: Sequence[OperationSample]) -> DevicePeaks:
    """Return the best rates of large operations as peaks of their device, if its peaks were not measured.

    Large are those of the upper half of the work: times of the others are too short for the clock of a profiler.
    """
    core_count = cores_of(header)
    computing: dict[str, list[tuple[float, float]]] = defaultdict(list)
    moving: list[tuple[float, float]] = []
    for sample in samples:
        scale = 1 / _share_of_cores(sample.cores, core_count)
        if sample.flops:
            computing[precision_of(sample.dtype) or "float32"].append((sample.flops, scale / sample.time_s))
        if sample.bytes and sample.kind in MOVING:
            moving.append((sample.bytes, scale / sample.time_s))
    flop_per_s = {name: _best_rate(points) for name, points in sorted(computing.items())}
    byte_per_s = _best_rate(moving) if moving else None
    return DevicePeaks(header.backend, product_of(header), core_count, flop_per_s, byte_per_s, OBSERVED)


def _best_rate(points: Sequence[tuple[float, float]]) -> float:
    """Return the best rate of the larger operations, each given by its work and what to multiply it by."""
    edge = median(work for work, _ in points)
    return max(work * factor for work, factor in points if work >= edge)


def ideal_of(operation: OperationSample | Node, peaks: DevicePeaks) -> float | None:
    """Return the roofline of an operation, in seconds, with the share of a CPU's peaks that its cores have."""
    ideal = ideal_s(operation.flops, operation.bytes, operation.dtype, peaks)
    return ideal / _share_of_cores(operation.cores, peaks.cores) if ideal else None


def _share_of_cores(used_cores: float, core_count: int | None) -> float:
    return min(1.0, used_cores / core_count) if used_cores and core_count else 1.0


def row_of(operation: OperationSample | Node, peaks: DevicePeaks, device: int) -> list[float] | None:
    """Return the values of `FEATURES`; None if the operation's roofline is unknown."""
    ideal = ideal_of(operation, peaks)
    if ideal is None:
        return None
    flops, moved_bytes = operation.flops, operation.bytes
    precision = precision_of(operation.dtype)
    sides = [side for side in operation.shape or () if side > 0]
    return [
        _log(flops),
        _log(moved_bytes),
        math.log2(flops / moved_bytes) if flops and moved_bytes else UNKNOWN,
        math.log2(ideal / NS),
        float(ELEMENT_BYTES.get(precision, UNKNOWN)) if precision else UNKNOWN,
        _log(min(sides, default=0)),
        _log(max(sides, default=0)),
        float(len(sides)) if operation.shape is not None else UNKNOWN,
        operation.cores,
        float(device),
    ]


def _log(value: float | None) -> float:
    return math.log2(value) if value else UNKNOWN


_RULES = {
    OperationKind.ATTENTION: r"attention|flash|fmha|scaled_dot",
    OperationKind.RECURRENT: r"lstm|gru(?![a-z])|rnn",
    OperationKind.FUSED_PRODUCT: r"ynn",  # XLA's calls of XNNPACK: products or convolutions with what follows
    OperationKind.CONVOLUTION: r"conv(?!ert)|winograd|fprop|dgrad|wgrad",
    OperationKind.MATRIX_PRODUCT: r"gemm|gemv|mat_?mul|addmm|(?<![a-z])b?mm(?![a-z])"
    r"|(?<![a-z])dot|linear|einsum|cutlass",
    OperationKind.NORMALISATION: r"(batch|layer|group|instance|rms)_?norm",
    OperationKind.POOLING: r"pool",
    OperationKind.UPDATE: r"adam|sgd|rmsprop|resourceapply|multi_tensor|foreach",
    OperationKind.FUSION: r"fusion|fused|triton|cluster",
    OperationKind.INDEXING: r"gather|scatter|embedding|index|sort|top_?k|one_?hot|select|where",
    OperationKind.REDUCTION: r"reduc|sum|mean|softmax|arg_?m|norm|loss|xent|entropy|(?<![a-z])all(?![a-z])",
    OperationKind.COPY: r"copy|memcpy|memset|transpose|concat|(?<![a-z])cat|slice|pad|clone|fill|zero|ones"
    r"|expand|reshape|split|stack|broadcast|convert|cast|iota|bias_?grad",
    OperationKind.ELEMENTWISE: r"add|sub|mul|div|relu|elu|tanh|sigmoid|exp|log|pow|sqrt|max|min|neg|abs|sign|clamp"
    r"|clip|threshold|dropout|random|bernoulli|elementwise|square|floor|ceil|round|accumulate|compare"
    r"|(?<![a-z])(gt|ge|lt|le|eq|ne|not|and|or|xor)(?![a-z])",
}
_VIEW = re.compile(
    r"aten::(t|numpy_t|transpose|permute|view|_unsafe_view|reshape|flatten|unflatten|expand|as_strided|detach|alias|chunk"
    r"|squeeze|unsqueeze|select|slice|narrow|unbind|split|empty|empty_like|empty_strided|new_empty|lift_fresh)_?$"
    r"|(t|view|transpose|permute|reshape|squeeze|unsqueeze|alias|detach)backward\d*$|bitcast(\.\d+)?$"
)
# Names that `reconstruct.xplane.graph` gives: phase and layer.
_SEGMENT = re.compile(r"(forward|backward|update|input|operations)( |$)")
_SEARCHES = tuple((kind, re.compile(rule)) for kind, rule in _RULES.items())


@lru_cache(maxsize=1 << 14)
def kind_of(name: str) -> OperationKind:
    """Return the kind of an operation. Scopes before it, as in `lstm/dense/MatMul` or `aten::mm`, do not count.

    The backward pass of an operation, such as `MmBackward0`, is of its kind.
    """
    if _SEGMENT.match(name):
        return OperationKind.SEGMENT
    name = name.partition(" > ")[0]  # what an operator calls, if it calls a library or a collective
    if _VIEW.match(name.lower()):
        return OperationKind.VIEW
    own_name = name if "<" in name else re.split(r"[/:]", name.rstrip("/:"))[-1]
    own_name = re.sub(r"backward\d*", " ", own_name.lower())
    return next((kind for kind, search in _SEARCHES if search.search(own_name)), OperationKind.OTHER)


@dataclass(frozen=True, slots=True)
class DevicePeaks:
    """Where operations ran: a backend on a product with so many cores (None on an accelerator), and its peaks.

    `flop_per_s` is by precision. `source` is `MEASURED`, or `OBSERVED` if only the traces themselves bound the rates:
    efficiencies relative to these are not used for other devices. A rate is None if nothing is known of it.
    """

    backend: str
    product: str
    cores: int | None
    flop_per_s: dict[str, float]
    byte_per_s: float | None
    source: str = MEASURED

    @property
    def identity(self) -> tuple[str, str, int | None]:
        """What makes two of these the same device, whatever their peaks."""
        return self.backend, self.product, self.cores

    def __str__(self) -> str:
        cores_text = f", {self.cores} cores" if self.cores else ""
        return f"{self.backend} on {self.product}{cores_text}"


@dataclass(frozen=True, slots=True)
class Fitted:
    """The overhead and the efficiency of a kind of operation."""

    overhead_s: float
    efficiency: float

    def time_s(self, ideal_s: float) -> float:
        """Return the time of an operation whose roofline is `ideal_s`."""
        return self.overhead_s + ideal_s / self.efficiency


def precision_of(dtype: str | None) -> str | None:
    """Return the precision by its name in the peaks; None for integers and unknown types."""
    return DTYPES.get(dtype.lower()) if dtype else None


def ideal_s(flops: float | None, moved_bytes: float | None, dtype: str | None, peaks: DevicePeaks) -> float | None:
    """Return the roofline's time of this work, in seconds; None if no part of it and of the peaks is known.

    A precision without a peak, such as that of integers, takes that of float32: the learned efficiency corrects it.
    """
    rate = peaks.flop_per_s.get(precision_of(dtype) or "float32") or peaks.flop_per_s.get("float32")
    compute_s = flops / rate if flops and rate else 0.0
    memory_s = moved_bytes / peaks.byte_per_s if moved_bytes and peaks.byte_per_s else 0.0
    return max(compute_s, memory_s) or None


def fit(points: Sequence[tuple[float, float]]) -> Fitted:
    """Return overhead and efficiency of points (roofline's time, measured time), both in seconds and positive.

    They have the smallest mean absolute difference of logarithms, over a grid of quantiles of what the points suggest.
    """
    kept_points = sorted(points)
    kept_points = (
        [kept_points[index * len(kept_points) // _MOST_FITTED] for index in range(_MOST_FITTED)]
        if len(kept_points) > _MOST_FITTED
        else kept_points
    )
    times = sorted(time for _, time in kept_points)
    best, smallest = Fitted(0.0, 1.0), math.inf
    for overhead in (0.0, *(time * share for time in (times[0], times[len(times) // 4]) for share in _SHARES)):
        rates = sorted(ideal / (time - overhead) for ideal, time in kept_points if time > overhead)
        for efficiency in _quantiles(rates):
            candidate = Fitted(overhead, efficiency)
            error = sum(abs(math.log(candidate.time_s(ideal) / time)) for ideal, time in kept_points)
            if error < smallest:
                best, smallest = candidate, error
    return best


def _quantiles(values: Sequence[float]) -> list[float]:
    """Return at most `_QUANTILES` of the sorted values, evenly spaced, without repetitions."""
    count = min(len(values), _QUANTILES)
    return sorted({values[index * (len(values) - 1) // max(1, count - 1)] for index in range(count)})


def device_peaks(peaks: Peaks, backend: str, device: str, cores: int | None) -> DevicePeaks | None:
    """Return the measured peaks of a device with as many cores; None if none of them was measured there.

    With cores None, or on an accelerator, it is the device as a whole.
    """
    machine_peaks = MachinePeaks(products(peaks), slopes(peaks))
    places = [roof.place for roof in machine_peaks.roofs if roof.place.device == device]
    thread_count = cores if device == "cpu" and cores else max((place.threads for place in places), default=0)
    place_by_precision = {
        place.precision: place for place in places if device != "cpu" or place.threads == thread_count
    }
    rates = {
        name: roof.best_flop_per_s
        for name, place in place_by_precision.items()
        if (roof := machine_peaks.product(place))
    }
    slope = machine_peaks.slope(ComputePlace(device, "float32", thread_count))
    if not rates and slope is None:
        return None
    product = peaks.machine.cpu_model if device == "cpu" else peaks.devices.get(device, device)
    return DevicePeaks(
        backend, product, thread_count if device == "cpu" else None, rates, slope.best_byte_per_s if slope else None
    )

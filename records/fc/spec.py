"""The FC modes as data: the problem of a cell of the workload `fc`, and what it must compute and communicate.

A problem is a stack of `level` matrices of `weight_size` x `weight_size` and a last one of `weight_size` x 1, without
bias or activation, trained on one fixed batch; its loss is the sum of the squared differences to the labels.

Pure integer arithmetic that needs no run. The workers' actual communication is counted separately
(`records.fc.communication`, by `models.fc.interface`) and must be equal. `records.fc.rules` defines which problems are
valid, and which are the same work.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, fields, replace
from enum import StrEnum
from typing import Any

from keras_matrix.records.backends import TABLE
from keras_matrix.records.dtypes import ELEMENT_BYTES, variable_bytes
from keras_matrix.records.fc.communication import Communication, Traffic
from keras_matrix.records.settings import Settings

WORKLOAD = "fc"
LEARNING_RATE = 1e-6
# The value of `network` without separate links: the workers' processes use this machine's loopback interface.
LOCAL = "local"
PRECISIONS = ("float64", "float32", "bfloat16")  # of the modes of a backend itself


def parameter(settings: Mapping[str, Any], name: str, default: Any = None) -> Any:
    """Return a parameter of a cell of `fc` by its settings, as `records.identity.named` has them.

    `default` for another workload, whose own parameter `workers` may mean anything, such as who reads its input.
    """
    return settings.get(name, default) if settings.get("workload", WORKLOAD) == WORKLOAD else default


class Parallelism(StrEnum):
    """How the work is divided among workers."""

    SINGLE = "single"
    DATA = "data"
    MODEL = "model"
    HYBRID = "hybrid"
    PIPELINE = "pipeline"
    SHARDED = "sharded"
    PHYSICS = "physics"


@dataclass(frozen=True, slots=True)
class Mode:
    """The properties of a mode: how it divides the work, whether it trains, and whether gradients are by hand."""

    name: str
    kind: Parallelism
    trains: bool = True
    manual: bool = False
    native: bool = True


MODES = {
    mode.name: mode
    for mode in (
        Mode("fc_single_manual", Parallelism.SINGLE, manual=True),
        Mode("fc_keras", Parallelism.SINGLE, native=False),
        Mode("fc_data_ff", Parallelism.DATA, trains=False),
        Mode("fc_data", Parallelism.DATA),
        Mode("fc_data_slice", Parallelism.DATA),
        Mode("fc_data_manual", Parallelism.DATA, manual=True),
        Mode("fc_model_ff", Parallelism.MODEL, trains=False),
        Mode("fc_model", Parallelism.MODEL),
        Mode("fc_model_manual", Parallelism.MODEL, manual=True),
        Mode("fc_hybrid", Parallelism.HYBRID),
        Mode("fc_pipeline", Parallelism.PIPELINE, manual=True),
        Mode("fc_zero", Parallelism.SHARDED, manual=True),
        Mode("fc_phy", Parallelism.PHYSICS),
    )
}
# Modes whose gradients may be summed while others are still being computed.
OVERLAPPING = ("fc_data", "fc_data_manual")
# Other ways than the program itself to insert the collectives: the backend's array partitioning, and its modes.
DIVIDERS = {
    divider.name: (backend.name, divider.modes)
    for backend in TABLE.values()
    if (divider := backend.partition) is not None
}
PARTITIONS = ("program", *DIVIDERS)
# Modes of which the original has two variants, `gpu_aggr` 0 and 1: its weights on the CPU or on the first GPU.
CENTRAL = ("fc_data", "fc_data_slice", "fc_data_ff")


@dataclass(frozen=True, slots=True)
class WorkerPlacement:
    """The device and shapes of one worker's arrays, as the backend reports them.

    `machine` is the `host_id` of its machine if the workers are on several.
    """

    worker: int
    device: str
    weights: list[list[int]]
    batch: list[int]
    labels: list[int]
    process: int | None = None
    network: str | None = None
    machine: str | None = None


@dataclass(frozen=True, slots=True)
class Parallel:
    """The layout and the counts of a cell of the FC modes.

    Formula and counted bytes are the payload that the mode's collectives must move. `wire_bytes_per_step` is what the
    backend's collectives send from process to process; None if workers share a process, and on GPUs.
    `peak_worker_device_memory_bytes` is the peak of the allocator on each worker's GPU; None on a CPU.
    """

    mode: str
    workers: int
    places: list[WorkerPlacement] = field(default_factory=list)
    flops_per_step: int = 0
    formula_bytes_per_step: int = 0
    counted_bytes_per_step: int = 0
    traffic: Traffic = field(default_factory=Traffic)
    peak_worker_memory_bytes: list[int] = field(default_factory=list)
    communication: Communication | None = None
    wire_bytes_per_step: int | None = None
    peak_worker_device_memory_bytes: list[int] | None = None


@dataclass(frozen=True, slots=True)
class FcProblem:
    """One cell's work. `records.fc.rules` reads `buckets`, `amp` and `fuse`."""

    mode: str = "fc_single_manual"
    workers: int = 1
    level: int = 10
    weight_size: int = 1024
    batch_size: int = 128
    precision: str = "float32"
    phy_blocks: int = 1
    shared_ratio: float = 1 / 1024
    reduce: str = "sum"
    overlap: str = "on"
    partition: str = "program"
    model_workers: int = 0
    micro_batches: int = 4
    network: str = LOCAL
    bucket_cap_mb: float = 0.0
    buckets: str = ""
    bytes_per_pack: int = 0
    forward_sleep_ms: float = 0.0
    backward_sleep_ms: float = 0.0
    gradient_accumulation: int = 1
    recompute: bool = False
    amp: str = ""
    fuse: str = ""

    @property
    def kind(self) -> Parallelism:
        """How the work is divided."""
        return MODES[self.mode].kind

    @property
    def model_size(self) -> int:
        """The number of workers that share one layer. In fc_hybrid by default two, for an even number of workers."""
        if self.kind is Parallelism.HYBRID:
            return self.model_workers or (1 if self.workers % 2 else 2)
        return self.workers if self.kind is Parallelism.MODEL else 1

    @property
    def data_size(self) -> int:
        """The number of pieces of the batch's rows: worker r has the piece r // `model_size`."""
        return 1 if self.kind is Parallelism.PIPELINE else self.workers // self.model_size

    @property
    def weight_pieces(self) -> int:
        """The number of pieces of each weight's rows: worker r has the piece r modulo this number."""
        return self.workers if self.kind is Parallelism.SHARDED else self.model_size

    def layers_of(self, rank: int) -> range:
        """Return the layers of which a worker has weights: in fc_pipeline its stage, otherwise all.

        The first stages have one square layer more if the division leaves a remainder; the last layer is in the last.
        """
        if self.kind is not Parallelism.PIPELINE:
            return range(self.level + 1)
        share, remainder = divmod(self.level, self.workers)
        first, end = (share * k + min(k, remainder) for k in (rank, rank + 1))
        return range(first, end + (rank == self.workers - 1))

    @property
    def copies(self) -> int:
        """The number of complete models, each trained on its own batch: more than one only in fc_phy."""
        return self.workers * self.phy_blocks if self.kind is Parallelism.PHYSICS else 1

    @property
    def samples_per_step(self) -> int:
        """The samples of one step of all workers."""
        return self.batch_size * self.copies

    @property
    def shapes(self) -> list[tuple[int, int]]:
        """The shapes of the weights of one complete model, first layer first."""
        return [(self.weight_size, self.weight_size)] * self.level + [(self.weight_size, 1)]

    def changed(self, **changes: Any) -> FcProblem:
        """Return the problem with some parameters changed."""
        return replace(self, **changes)

    def shared_rows(self, rows: int) -> int:
        """Return how many leading rows of a gradient the copies of fc_phy share."""
        return int(rows * self.shared_ratio)


_DEFAULTS = {field.name: field.default for field in fields(FcProblem) if field.name not in ("batch_size", "precision")}
# Of a stored cell: beyond them, lists of its layers do not fit into memory.
MOST_LAYERS = 100_000
MOST_PARAMETER = 1 << 40


def gpu_aggr(mode: str, workers: int, device: str) -> int:
    """Return the original's `gpu_aggr` of a cell: 1 if several workers have their weights on GPUs."""
    return int(mode in CENTRAL and workers > 1 and device == "gpu")


def problem_of(settings: Settings) -> FcProblem:
    """Return the problem of a cell of the workload `fc`; parameters that it omits have their defaults."""
    return FcProblem(**settings.params, batch_size=settings.batch_size, precision=settings.precision)  # type: ignore[arg-type]


def stored_problem(settings: Settings) -> str | None:
    """Return which parameter of a stored cell has no meaning here, as for one of a newer version; None if all have."""
    for name, value in settings.params.items():
        default = _DEFAULTS.get(name)
        if default is None:
            return f"{name[:80]}: must be a parameter of the workload fc, got {value!r:.80}"
        kinds = (int, float) if isinstance(default, float) else (type(default),)
        if type(value) not in kinds:
            return f"{name}: must be {type(default).__name__}, got {value!r:.80}"
        if not isinstance(value, str) and not 0 <= value <= (MOST_LAYERS if name == "level" else MOST_PARAMETER):
            return f"{name}: must be from 0 to {MOST_LAYERS if name == 'level' else MOST_PARAMETER}, got {value}"
    problem = problem_of(settings)
    if problem.mode not in MODES:
        return f"mode: must be one of {', '.join(MODES)}, got {problem.mode[:80]!r}"
    return "workers: must be above 0, got 0" if problem.workers == 0 else None


def network_of(settings: Settings) -> object:
    """Return the network of a cell's workers; a parameter of another workload may have the name, too."""
    return settings.params.get("network", LOCAL) if settings.workload == WORKLOAD else LOCAL


def is_native(settings: Settings) -> bool:
    """Return whether a cell runs a program of `models.fc` rather than Keras's own `fit`."""
    return settings.workload == WORKLOAD and MODES[problem_of(settings).mode].native


def flops_per_step(problem: FcProblem) -> int:
    """Return the FLOPs of the matrix products of one step, of all workers; two per multiply-add.

    The gradient of the first layer's input is not needed. The update of the weights and what `recompute` computes a
    second time are not counted.
    """
    forward = sum(2 * problem.batch_size * rows * columns for rows, columns in problem.shapes)
    if not MODES[problem.mode].trains:
        return forward * problem.copies
    rows, columns = problem.shapes[0]
    return (3 * forward - 2 * problem.batch_size * rows * columns) * problem.copies


def traffic_per_step(problem: FcProblem) -> Traffic:
    """Return the traffic of each worker in one step; none for a single worker. `calls` stays 0."""
    if problem.workers == 1:
        return Traffic()
    item = ELEMENT_BYTES[problem.precision]
    layer_bytes = problem.weight_size**2 * item
    square, last_layer_bytes = problem.level * layer_bytes, problem.weight_size * item
    if problem.partition == "named_sharding":
        return Traffic(square + last_layer_bytes + item)  # includes the loss
    if problem.kind is Parallelism.MODEL:
        crossing = problem.batch_size * (problem.level * problem.weight_size + 1) * item
        return Traffic(0, crossing, crossing if MODES[problem.mode].trains else 0)
    if problem.kind is Parallelism.PHYSICS:
        shared = sum(problem.shared_rows(rows) * columns for rows, columns in problem.shapes)
        return Traffic(shared * item)
    if problem.kind is Parallelism.HYBRID:
        crossing = problem.batch_size * (problem.level * problem.weight_size + 1) * item
        sent_bytes = (problem.model_size - 1) * crossing + (problem.data_size - 1) * (square + last_layer_bytes)
        return Traffic(group_sent_bytes=2 * sent_bytes)
    if problem.kind is Parallelism.PIPELINE:
        return Traffic(handed_bytes=2 * (problem.workers - 1) * problem.batch_size * problem.weight_size * item)
    return {
        "fc_data": Traffic(square + last_layer_bytes),
        "fc_data_slice": Traffic(0, square + last_layer_bytes, square + last_layer_bytes),
        "fc_data_manual": Traffic(last_layer_bytes, square, square),
        "fc_zero": Traffic(0, square + last_layer_bytes, 2 * (square + last_layer_bytes) - layer_bytes),
    }.get(problem.mode, Traffic())


def least_memory_bytes(problem: FcProblem) -> int:
    """Return the least memory of all workers together: weights, their gradients, each layer's input, its gradient."""
    arrays = 2 if MODES[problem.mode].trains else 1
    weight_count = sum(rows * columns for rows, columns in problem.shapes)
    if problem.kind in (Parallelism.DATA, Parallelism.HYBRID):
        weight_count *= problem.data_size
    inputs = problem.batch_size * problem.weight_size * (problem.level + 1 if MODES[problem.mode].trains else 2)
    return (arrays * weight_count + inputs) * problem.copies * variable_bytes(problem.precision)


def expected_shapes(problem: FcProblem, rank: int) -> tuple[list[list[int]], list[int], list[int]]:
    """Return the shapes of one worker's weights, batch and labels.

    In fc_pipeline the first worker has the batch and the last the labels; the others have no rows of them.
    """
    weight_size, samples, pieces = problem.weight_size, problem.samples_per_step, problem.weight_pieces
    weights = [[rows // pieces, columns] for rows, columns in (problem.shapes[k] for k in problem.layers_of(rank))]
    if problem.kind is Parallelism.PIPELINE:
        rows, labelled = samples * (rank == 0), samples * (rank == problem.workers - 1)
        return weights, [rows, weight_size], [labelled, 1]
    blocks = problem.phy_blocks if problem.kind is Parallelism.PHYSICS else 1
    rows = samples // problem.data_size
    return weights * blocks, [rows, weight_size // problem.model_size], [rows // problem.model_size, 1]


def layout_problem(problem: FcProblem, parallel: Parallel) -> str | None:
    """Return how a cell's layout and counts differ from those of its problem; None if they are equal."""
    worker_numbers = [place.worker for place in parallel.places]
    if len(worker_numbers) != problem.workers:
        return f"it has {len(worker_numbers)} workers, not {problem.workers}"
    if worker_numbers != list(range(problem.workers)):
        return f"it has the workers {', '.join(map(str, worker_numbers))}, not 0 to {problem.workers - 1}"
    if len({(place.device, place.process, place.machine) for place in parallel.places}) != problem.workers:
        return f"its {problem.workers} workers share a device: {', '.join(place.device for place in parallel.places)}"
    networks = {place.network for place in parallel.places}
    if problem.network != LOCAL and problem.workers > 1 and (None in networks or len(networks) != problem.workers):
        return f"its {problem.workers} workers share a network"
    for place in parallel.places:
        weights, batch, labels = expected_shapes(problem, place.worker)
        for name, expected in (("weights", weights), ("batch", batch), ("labels", labels)):
            if (actual := getattr(place, name)) != expected:
                return f"worker {place.worker} has {name} of shape {actual}, not {expected}"
    if parallel.counted_bytes_per_step != parallel.formula_bytes_per_step:
        counted_text = f"{parallel.counted_bytes_per_step}, not {parallel.formula_bytes_per_step}"
        return f"its workers communicated {counted_text} bytes per step"
    return None


def parallel_of(
    problem: FcProblem, places: list[WorkerPlacement], traffic: Traffic, peaks_bytes: list[int]
) -> Parallel:
    """Return a cell's layout and counted traffic, with the expected values by formula."""
    return Parallel(
        mode=problem.mode,
        workers=problem.workers,
        places=places,
        flops_per_step=flops_per_step(problem),
        formula_bytes_per_step=traffic_per_step(problem).sent_bytes(problem.workers),
        counted_bytes_per_step=traffic.sent_bytes(problem.workers),
        traffic=traffic,
        peak_worker_memory_bytes=peaks_bytes,
        wire_bytes_per_step=wire_bytes_per_step(problem, places, traffic),
    )


def wire_bytes_of(parallels: Iterable[Parallel | None]) -> int | None:
    """Return the bytes on the wire of a cell's repeats, which are equal; None if they are not recorded."""
    return next((parallel.wire_bytes_per_step for parallel in parallels if parallel is not None), None)


def wire_bytes_per_step(problem: FcProblem, places: Sequence[WorkerPlacement], traffic: Traffic) -> int | None:
    """Return the bytes that all workers' processes together send in a step, without the headers of TCP and IP.

    gloo's ring all-reduce and all-gather send as many bytes as the formula, like the exchange that replaces its
    reduce-scatter (`models.fc.native.torch`). Its own reduce-scatter, which DTensor calls, sums the entire array
    everywhere. None if workers are devices of one process, which share memory, or GPUs, whose library decides.
    """
    if any(place.process is None or place.device != "cpu" for place in places):
        return None
    extra = (problem.workers - 1) * traffic.reduce_scatter_bytes if problem.partition == "dtensor" else 0
    return traffic.sent_bytes(problem.workers) + extra

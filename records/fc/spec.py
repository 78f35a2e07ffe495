"""The FC modes as data: what a cell of the workload `fc` asks, and what it must compute and communicate.

A task is a stack of `level` matrices of `weight_size` x `weight_size` and a last one of `weight_size` x 1, without bias
or activation, trained on one batch that stays; its loss is the sum of the squared differences to the labels.

Promise: pure arithmetic, exact in whole numbers, known before anything runs. What the workers did communicate is
counted apart (`records.fc.traffic`, by `models.fc.interface`) and must come to the same. Which tasks are possible, and
which are the same work, is in `records.fc.rules`.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field, replace
from enum import StrEnum
from typing import Any

from keras_matrix.records.fc.communication import Communication
from keras_matrix.records.fc.traffic import Traffic
from keras_matrix.records.settings import Settings

WORKLOAD = "fc"
LEARNING_RATE = 1e-6
# The value of `network` without links of their own: the workers' processes use this machine's loopback interface.
LOCAL = "local"
ITEM_BYTES = {"float64": 8, "float32": 4, "bfloat16": 2}


class Kind(StrEnum):
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
    """What is fixed about a mode: how it divides the work, whether it goes backward, and by hand or by autodiff."""

    name: str
    kind: Kind
    trains: bool = True
    manual: bool = False
    native: bool = True


MODES = {
    mode.name: mode
    for mode in (
        Mode("fc_single_manual", Kind.SINGLE, manual=True),
        Mode("fc_keras", Kind.SINGLE, native=False),
        Mode("fc_data_ff", Kind.DATA, trains=False),
        Mode("fc_data", Kind.DATA),
        Mode("fc_data_slice", Kind.DATA),
        Mode("fc_data_manual", Kind.DATA, manual=True),
        Mode("fc_model_ff", Kind.MODEL, trains=False),
        Mode("fc_model", Kind.MODEL),
        Mode("fc_model_manual", Kind.MODEL, manual=True),
        Mode("fc_hybrid", Kind.HYBRID),
        Mode("fc_pipeline", Kind.PIPELINE, manual=True),
        Mode("fc_zero", Kind.SHARDED, manual=True),
        Mode("fc_phy", Kind.PHYSICS),
    )
}
# Modes whose gradients may be summed while others are still being made.
OVERLAPPING = ("fc_data", "fc_data_manual")
# Who puts the collectives in: the program, or of these backends what divides arrays by itself, in these modes.
DIVIDERS = {
    "named_sharding": ("jax", ("fc_data",)),
    "mirrored_strategy": ("tensorflow", ("fc_data",)),
    "dtensor": ("torch", ("fc_model",)),
}
PARTITIONS = ("program", *DIVIDERS)
# Modes of which the original had two variants, `gpu_aggr` 0 and 1: its weights on the CPU or on the first GPU.
CENTRAL = ("fc_data", "fc_data_slice", "fc_data_ff")


@dataclass(frozen=True, slots=True)
class WorkerPlacement:
    """Where one worker's arrays were found: their device and their shapes, as the backend tells them."""

    worker: int
    device: str
    weights: list[list[int]]
    batch: list[int]
    labels: list[int]
    process: int | None = None
    network: str | None = None


@dataclass(frozen=True, slots=True)
class Parallel:
    """What a cell of the FC modes proved and counted.

    Formula and counted bytes are the payload: what the mode's collectives have to move. `wire_bytes_per_step` is what
    the backend's collectives really send from process to process; None where workers share a process, and on GPUs.
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
    """One cell's work."""

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

    @property
    def kind(self) -> Kind:
        """How the work is divided."""
        return MODES[self.mode].kind

    @property
    def model_size(self) -> int:
        """Workers that one layer is divided among. Of fc_hybrid by default two, where the workers are even."""
        if self.kind is Kind.HYBRID:
            return self.model_workers or (1 if self.workers % 2 else 2)
        return self.workers if self.kind is Kind.MODEL else 1

    @property
    def data_size(self) -> int:
        """Pieces into which the rows of the batch are divided: worker r has the piece r // `model_size`."""
        return 1 if self.kind is Kind.PIPELINE else self.workers // self.model_size

    @property
    def weight_pieces(self) -> int:
        """Pieces into which the rows of each weight are divided: worker r has the piece r modulo these."""
        return self.workers if self.kind is Kind.SHARDED else self.model_size

    def layers_of(self, rank: int) -> range:
        """Return the layers of which a worker has weights: in fc_pipeline its stage, otherwise all.

        The first stages have one square layer more where these do not come out even; the last layer is the last's.
        """
        if self.kind is not Kind.PIPELINE:
            return range(self.level + 1)
        each, more = divmod(self.level, self.workers)
        first, after = (each * k + min(k, more) for k in (rank, rank + 1))
        return range(first, after + (rank == self.workers - 1))

    @property
    def copies(self) -> int:
        """Whole models that are trained side by side, each on a batch of its own: more than one in fc_phy only."""
        return self.workers * self.phy_blocks if self.kind is Kind.PHYSICS else 1

    @property
    def samples_per_step(self) -> int:
        """Samples that all workers together take in one step."""
        return self.batch_size * self.copies

    @property
    def shapes(self) -> list[tuple[int, int]]:
        """The weights of one whole model, first layer first."""
        return [(self.weight_size, self.weight_size)] * self.level + [(self.weight_size, 1)]

    def changed(self, **changes: Any) -> FcProblem:
        """Return the task with some of it changed."""
        return replace(self, **changes)

    def shared_rows(self, rows: int) -> int:
        """Return how many first rows of a gradient the copies of fc_phy share."""
        return int(rows * self.shared_ratio)


def gpu_aggr(mode: str, workers: int, device: str) -> int:
    """Return the original's `gpu_aggr` that describes a cell: 1 where several workers keep their weights on GPUs."""
    return int(mode in CENTRAL and workers > 1 and device == "gpu")


def problem_of(settings: Settings) -> FcProblem:
    """Return the task that a cell of the workload `fc` asks for; what its parameters leave out is at its default."""
    return FcProblem(**settings.params, batch_size=settings.batch_size, precision=settings.precision)  # type: ignore[arg-type]


def is_native(settings: Settings) -> bool:
    """Return whether a cell runs a program of `models.fc` rather than Keras's own `fit`."""
    return settings.workload == WORKLOAD and MODES[problem_of(settings).mode].native


def flops_per_step(task: FcProblem) -> int:
    """Return the floating-point operations of the matrix products of one step, of all workers; two a multiply-add.

    Nobody needs the gradient of the first layer's input. The update of the weights is not counted.
    """
    forward = sum(2 * task.batch_size * rows * columns for rows, columns in task.shapes)
    if not MODES[task.mode].trains:
        return forward * task.copies
    rows, columns = task.shapes[0]
    return (3 * forward - 2 * task.batch_size * rows * columns) * task.copies


def traffic_per_step(task: FcProblem) -> Traffic:
    """Return what each worker has to take part in during one step; nothing where there is one. `calls` stays 0."""
    if task.workers == 1:
        return Traffic()
    item = ITEM_BYTES[task.precision]
    first = task.weight_size**2 * item
    square, last = task.level * first, task.weight_size * item
    if task.partition == "named_sharding":
        return Traffic(square + last + item)  # of the loss, too
    if task.kind is Kind.MODEL:
        crossing = task.batch_size * (task.level * task.weight_size + 1) * item
        return Traffic(0, crossing, crossing if MODES[task.mode].trains else 0)
    if task.kind is Kind.PHYSICS:
        shared = sum(task.shared_rows(rows) * columns for rows, columns in task.shapes)
        return Traffic(shared * item)
    if task.kind is Kind.HYBRID:
        crossing = task.batch_size * (task.level * task.weight_size + 1) * item
        sent = (task.model_size - 1) * crossing + (task.data_size - 1) * (square + last)
        return Traffic(group_sent_bytes=2 * sent)
    if task.kind is Kind.PIPELINE:
        return Traffic(handed_bytes=2 * (task.workers - 1) * task.batch_size * task.weight_size * item)
    return {
        "fc_data": Traffic(square + last),
        "fc_data_slice": Traffic(0, square + last, square + last),
        "fc_data_manual": Traffic(last, square, square),
        "fc_zero": Traffic(0, square + last, 2 * (square + last) - first),
    }.get(task.mode, Traffic())


def least_memory_bytes(task: FcProblem) -> int:
    """Return what all workers together hold at least: weights, their gradients, each layer's input, its gradient."""
    held = 2 if MODES[task.mode].trains else 1
    weights = sum(rows * columns for rows, columns in task.shapes)
    if task.kind in (Kind.DATA, Kind.HYBRID):
        weights *= task.data_size
    inputs = task.batch_size * task.weight_size * (task.level + 1 if MODES[task.mode].trains else 2)
    return (held * weights + inputs) * task.copies * ITEM_BYTES.get(task.precision, 4)


def expected_shapes(task: FcProblem, rank: int) -> tuple[list[list[int]], list[int], list[int]]:
    """Return the shapes of one worker's weights, batch and labels.

    In fc_pipeline the first worker has the batch and the last the labels; the others have none of their rows.
    """
    size, samples, pieces = task.weight_size, task.samples_per_step, task.weight_pieces
    weights = [[rows // pieces, columns] for rows, columns in (task.shapes[k] for k in task.layers_of(rank))]
    if task.kind is Kind.PIPELINE:
        rows, labelled = samples * (rank == 0), samples * (rank == task.workers - 1)
        return weights, [rows, size], [labelled, 1]
    blocks = task.phy_blocks if task.kind is Kind.PHYSICS else 1
    rows = samples // task.data_size
    return weights * blocks, [rows, size // task.model_size], [rows // task.model_size, 1]


def layout_problem(task: FcProblem, found: Parallel) -> str | None:
    """Return how what a cell proved differs from what its task means; None where it is as it must be."""
    shown = [place.worker for place in found.places]
    if len(shown) != task.workers:
        return f"it shows {len(shown)} workers, not {task.workers}"
    if shown != list(range(task.workers)):
        return f"it shows the workers {', '.join(map(str, shown))}, not 0 to {task.workers - 1}"
    if len({(place.device, place.process) for place in found.places}) != task.workers:
        return f"its {task.workers} workers share a device: {', '.join(place.device for place in found.places)}"
    networks = {place.network for place in found.places}
    if task.network != LOCAL and task.workers > 1 and (None in networks or len(networks) != task.workers):
        return f"its {task.workers} workers share a network"
    for place in found.places:
        weights, batch, labels = expected_shapes(task, place.worker)
        for what, is_, must in (
            ("weights", place.weights, weights),
            ("batch", place.batch, batch),
            ("labels", place.labels, labels),
        ):
            if is_ != must:
                return f"worker {place.worker} holds {what} of shape {is_}, not {must}"
    if found.counted_bytes_per_step != found.formula_bytes_per_step:
        told = f"{found.counted_bytes_per_step}, not {found.formula_bytes_per_step}"
        return f"its workers communicated {told} bytes a step"
    return None


def parallel_of(task: FcProblem, places: list[WorkerPlacement], traffic: Traffic, peaks_bytes: list[int]) -> Parallel:
    """Return what a cell says of itself, beside what it must be by formula."""
    return Parallel(
        mode=task.mode,
        workers=task.workers,
        places=places,
        flops_per_step=flops_per_step(task),
        formula_bytes_per_step=traffic_per_step(task).sent_bytes(task.workers),
        counted_bytes_per_step=traffic.sent_bytes(task.workers),
        traffic=traffic,
        peak_worker_memory_bytes=peaks_bytes,
        wire_bytes_per_step=wire_bytes_per_step(task, places, traffic),
    )


def wire_bytes_of(found: Iterable[Parallel | None]) -> int | None:
    """Return the bytes on the wire of a cell's repeats, which send the same; None where they are not recorded."""
    return next((one.wire_bytes_per_step for one in found if one is not None), None)


def wire_bytes_per_step(task: FcProblem, places: Sequence[WorkerPlacement], traffic: Traffic) -> int | None:
    """Return the bytes that all workers' processes together send in a step, without the headers of TCP and IP.

    gloo's sum over a ring and its gathering send what the formula says, and so does the exchange that a worker scatters
    sums with (`models.fc.native.torch`). Its own reduce-scatter, which DTensor calls, sums the whole array everywhere.
    None where workers are devices of one process, which share memory, or GPUs, whose library chooses how to send.
    """
    if any(place.process is None or place.device != "cpu" for place in places):
        return None
    again = (task.workers - 1) * traffic.reduce_scatter_bytes if task.partition == "dtensor" else 0
    return traffic.sent_bytes(task.workers) + again

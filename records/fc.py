"""The FC modes as data: what a cell of the workload `fc` asks, what it must compute and communicate, whether it can be.

A task is a stack of `level` matrices of `weight_size` x `weight_size` and a last one of `weight_size` x 1, without bias
or activation, trained on one batch that stays; its loss is the sum of the squared differences to the labels.

Promise: pure arithmetic, exact in whole numbers, known before anything runs. What the workers did communicate is
counted apart (`Traffic`, by `models.fc.seam`) and must come to the same. Bytes are those that all workers together have
to send: for n workers a sum of m bytes that all get takes 2 (n - 1) m, one that is left in pieces (n - 1) m, and as
much the gathering of pieces that make m bytes. (Patarasuk and Yuan, "Bandwidth optimal all-reduce algorithms for
clusters of workstations", 2009.) An algorithm may send more.
"""

from __future__ import annotations

import re
from dataclasses import dataclass, field, replace
from enum import StrEnum
from typing import Any

from records.communication import Communication
from records.settings import Settings

WORKLOAD = "fc"
LEARNING_RATE = 1e-6
ITEM_BYTES = {"float64": 8, "float32": 4, "bfloat16": 2}
# What the workers' processes speak over: this machine's own loopback, or links that `ci/netns` holds to a rate.
LOCAL = "local"
RATE = re.compile(r"[1-9][0-9]{0,8}(k|m|g)bit", re.ASCII)


class Kind(StrEnum):
    """How the work is divided among workers."""

    SINGLE = "single"
    DATA = "data"
    MODEL = "model"
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
        Mode("fc_zero", Kind.SHARDED, manual=True),
        Mode("fc_phy", Kind.PHYSICS),
    )
}
# Kinds that cut the batch, and modes that cut weights or gradients, into as many pieces as there are workers.
CUT_BATCH = (Kind.DATA, Kind.MODEL, Kind.SHARDED)
CUT_WEIGHTS = ("fc_model_ff", "fc_model", "fc_model_manual", "fc_zero", "fc_data_slice", "fc_data_manual")


@dataclass(frozen=True, slots=True)
class Traffic:
    """What one worker took part in during one step: bytes of the whole arrays that were summed, scattered, gathered."""

    all_reduce_bytes: int = 0
    reduce_scatter_bytes: int = 0
    all_gather_bytes: int = 0
    calls: int = 0

    def sent_bytes(self, workers: int) -> int:
        """Return the bytes that all workers together have to send."""
        return (workers - 1) * (2 * self.all_reduce_bytes + self.reduce_scatter_bytes + self.all_gather_bytes)


@dataclass(frozen=True, slots=True)
class Place:
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
    """What a cell of the FC modes proved and counted."""

    mode: str
    workers: int
    places: list[Place] = field(default_factory=list)
    flops_per_step: int = 0
    formula_bytes_per_step: int = 0
    counted_bytes_per_step: int = 0
    traffic: Traffic = field(default_factory=Traffic)
    peak_worker_memory_bytes: list[int] = field(default_factory=list)
    communication: Communication | None = None


@dataclass(frozen=True, slots=True)
class Task:
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
    network: str = LOCAL

    @property
    def kind(self) -> Kind:
        """How the work is divided."""
        return MODES[self.mode].kind

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

    def changed(self, **changes: Any) -> Task:
        """Return the task with some of it changed."""
        return replace(self, **changes)

    def shared_rows(self, rows: int) -> int:
        """Return how many first rows of a gradient the copies of fc_phy share."""
        return int(rows * self.shared_ratio)


def task_of(settings: Settings) -> Task:
    """Return the task that a cell of the workload `fc` asks for; what its parameters leave out is at its default."""
    return Task(**settings.params, batch_size=settings.batch_size, precision=settings.precision)  # type: ignore[arg-type]


def is_native(settings: Settings) -> bool:
    """Return whether a cell runs a program of `models.fc` rather than Keras's own `fit`."""
    return settings.workload == WORKLOAD and MODES[task_of(settings).mode].native


def faults(task: Task) -> list[str]:
    """Return why a task cannot be, in words; nothing where it can."""
    found = []
    mode, n = MODES[task.mode], task.workers
    if mode.kind is Kind.SINGLE and n != 1:
        found.append(f"workers: must be 1 for {task.mode}, got {n}")
    if mode.native and task.precision not in ITEM_BYTES:
        found.append(f"precision: must be {', '.join(ITEM_BYTES)} for {task.mode}, got {task.precision}")
    if mode.kind in CUT_BATCH and task.batch_size % n:
        found.append(f"workers: must divide batch_size ({task.batch_size}), got {n}")
    if task.mode in CUT_WEIGHTS and task.weight_size % n:
        found.append(f"workers: must divide weight_size ({task.weight_size}) for {task.mode}, got {n}")
    if not 0 <= task.shared_ratio <= 1:
        found.append(f"shared_ratio: must be from 0 to 1, got {task.shared_ratio}")
    if task.network != LOCAL and not RATE.fullmatch(task.network):
        found.append(f"network: must be {LOCAL} or a rate such as 200mbit, got {task.network}")
    return found


def settings_faults(settings: Settings) -> list[str]:
    """Return why a cell of the workload `fc` cannot be, its task included; nothing where it can."""
    task = task_of(settings)
    if not MODES[task.mode].native:
        return faults(task)
    fixed = {"phase": "fit", "eager": False, "jit": "auto", "steps_per_execution": 1, "feed": "device_resident"}
    told = {"phase": "; fc_data_ff and fc_model_ff only go forward"}
    return [*faults(task), *_network_faults(settings, task.network)] + [
        f"{key}: must be {str(value).lower()} for {task.mode}, got {str(got).lower()}{told.get(key, '')}"
        for key, value in fixed.items()
        if (got := getattr(settings, key)) != value
    ]


def _network_faults(settings: Settings, network: str) -> list[str]:
    if network == LOCAL or (settings.backend, settings.device) == ("torch", "cpu"):
        return []
    where = f"{settings.backend} on {settings.device}"
    return [f"network: must be {LOCAL} for {where}, got {network}; only torch on cpu has workers that speak over one"]


def flops_per_step(task: Task) -> int:
    """Return the floating-point operations of the matrix products of one step, of all workers; two a multiply-add.

    Nobody needs the gradient of the first layer's input. The update of the weights is not counted.
    """
    forward = sum(2 * task.batch_size * rows * columns for rows, columns in task.shapes)
    if not MODES[task.mode].trains:
        return forward * task.copies
    rows, columns = task.shapes[0]
    return (3 * forward - 2 * task.batch_size * rows * columns) * task.copies


def traffic_per_step(task: Task) -> Traffic:
    """Return what each worker has to take part in during one step; nothing where there is one. `calls` stays 0."""
    if task.workers == 1:
        return Traffic()
    item = ITEM_BYTES[task.precision]
    first = task.weight_size**2 * item
    square, last = task.level * first, task.weight_size * item
    if task.kind is Kind.MODEL:
        crossing = task.batch_size * (task.level * task.weight_size + 1) * item
        return Traffic(0, crossing, crossing if MODES[task.mode].trains else 0)
    if task.kind is Kind.PHYSICS:
        shared = sum(task.shared_rows(rows) * columns for rows, columns in task.shapes)
        return Traffic(shared * item)
    return {
        "fc_data": Traffic(square + last),
        "fc_data_slice": Traffic(0, square + last, square + last),
        "fc_data_manual": Traffic(last, square, square),
        "fc_zero": Traffic(0, square + last, 2 * (square + last) - first),
    }.get(task.mode, Traffic())


def least_memory_bytes(task: Task) -> int:
    """Return what all workers together hold at least: weights, their gradients, each layer's input, its gradient."""
    held = 2 if MODES[task.mode].trains else 1
    weights = sum(rows * columns for rows, columns in task.shapes)
    if task.kind is Kind.DATA:
        weights *= task.workers
    inputs = task.batch_size * task.weight_size * (task.level + 1 if MODES[task.mode].trains else 2)
    return (held * weights + inputs) * task.copies * ITEM_BYTES.get(task.precision, 4)


def memory_fault(task: Task, free_bytes: int | None) -> str | None:
    """Return why a task does not fit the free memory, None where it may."""
    needed = least_memory_bytes(task)
    if free_bytes is None or needed <= free_bytes:
        return None
    return (
        f"weight_size: {task.weight_size} at level {task.level} and batch_size {task.batch_size} needs at least "
        f"{needed / 2**30:.1f} GiB in {task.mode} with {task.workers} workers, and {free_bytes / 2**30:.1f} GiB are "
        "free; lower weight_size, level or workers"
    )


def expected_shapes(task: Task) -> tuple[list[list[int]], list[int], list[int]]:
    """Return the shapes of one worker's weights, batch and labels."""
    n, size, batch = task.workers, task.weight_size, task.batch_size
    if task.kind is Kind.MODEL:
        weights = [[rows // n, columns] for rows, columns in task.shapes]
        return weights, [batch, size // n], [batch // n, 1]
    if task.kind is Kind.SHARDED:
        return [[rows // n, columns] for rows, columns in task.shapes], [batch // n, size], [batch // n, 1]
    own = batch * task.phy_blocks if task.kind is Kind.PHYSICS else batch // n
    blocks = task.phy_blocks if task.kind is Kind.PHYSICS else 1
    return [list(shape) for shape in task.shapes] * blocks, [own, size], [own, 1]


def layout_fault(task: Task, found: Parallel) -> str | None:
    """Return how what a cell proved differs from what its task means; None where it is as it must be."""
    weights, batch, labels = expected_shapes(task)
    if [place.worker for place in found.places] != list(range(task.workers)):
        return f"it shows {len(found.places)} workers, not {task.workers}"
    if len({(place.device, place.process) for place in found.places}) != task.workers:
        return f"its {task.workers} workers share a device: {', '.join(place.device for place in found.places)}"
    networks = {place.network for place in found.places}
    if task.network != LOCAL and task.workers > 1 and (None in networks or len(networks) != task.workers):
        return f"its {task.workers} workers share a network"
    for place in found.places:
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


def parallel_of(task: Task, places: list[Place], traffic: Traffic, peaks_bytes: list[int]) -> Parallel:
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
    )


@dataclass(frozen=True, slots=True)
class ProofOrder:
    """What one process is to prove on its backend."""

    tasks: list[Task]
    steps: int = 5
    seed: int = 0


@dataclass(frozen=True, slots=True)
class Proof:
    """How far a task's result is from plain NumPy in float64: max |difference| / max |reference|, the worst array.

    None for the gradients of a mode that only goes forward. `layout_fault` says what of its layout or of its bytes is
    not as it must be.
    """

    task: Task
    gradient_error: float | None
    weight_error: float | None
    loss_error: float
    parallel: Parallel
    layout_fault: str | None


@dataclass(frozen=True, slots=True)
class ProofAnswer:
    """What one process proved."""

    backend: str
    proofs: list[Proof]

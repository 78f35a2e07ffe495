"""Predicts the time of a step under a change of the input pipeline.

Operational analysis, as in Kuchnik et al., "Plumber: diagnosing and removing performance bottlenecks in machine
learning data pipelines" (MLSys 2022): a step takes as long as the slowest of its resources,

    step = max(compute,
               B (f + p) / W                       the workers' time
               B c / cores of preparation          1 CPU and a little for threads that hold the interpreter's lock
               (compute's CPU + B c) / cores       what shares the machine, on a CPU
               bytes / storage rate,  reads / IOPS)

with batch size B, W workers, and per sample the wall time of fetching f and preparing p and the CPU time c. Without
workers nothing overlaps: step = compute + B (f + p).

The rate of a storage limit is the one observed, because a storage that is the bottleneck is saturated; other limits are
not known and do not count. A model that is a little off for the pipeline as it is, is scaled to it (`scale`), never the
compute.

More workers and a deeper queue remove only the time that training waits, as the timed arm saw it: interference, in
which training computes slower, stays.

Limits: queues are assumed deep enough, stages to be independent of each other, and a change to leave the others as they
are. The interval of a prediction is that over blocks, without the model's own error.

A module of its own: the model is a seam, pure functions of rates that know no records.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from math import log

from keras_matrix.analysis.stalls.bottleneck import LOCK_HELD, NamedBottleneck, PreparingWorkers
from keras_matrix.analysis.stalls.report import Block, BottleneckKind, Stages
from keras_matrix.analysis.stats.blocks import Estimate, of_logs
from keras_matrix.records.instruments.input_use import InputProbe

# A model further off than this is not scaled: it misses a resource, and the prediction says so by its own figure.
MOST_SCALE = 2.0
FLOAT_BYTES = 4


@dataclass(frozen=True, slots=True)
class Demand:
    """What a step needs, in one block. Times are in seconds; `*_s` of fetching and preparing are per sample.

    `cpu_s` is the CPU time of both, `prepare_cpu_s` that of preparing alone. `compute_s` and `copy_s` are the time of
    the step with every batch ready. `preparing_cpus` limits fetching and preparing alone, None if only the machine's
    `cores` do; `compute_cpu_s` is the CPU time of a step without input. `without_wait_s` is the observed step less the
    time that training waited, None if that is not known; `least_s` is a time that a change cannot go below.
    """

    compute_s: float
    copy_s: float
    batch: int
    workers: int
    fetch_s: float
    prepare_s: float
    cpu_s: float
    prepare_cpu_s: float
    cores: float
    preparing_cpus: float | None = None
    compute_cpu_s: float = 0.0
    storage_bytes: float = 0.0
    storage_bytes_per_s: float | None = None
    reads: float = 0.0
    reads_per_s: float | None = None
    scale: float = 1.0
    without_wait_s: float | None = None
    least_s: float = 0.0

    @property
    def floor_s(self) -> float:
        """Return the time of the step with every batch ready in host memory."""
        return self.compute_s + self.copy_s

    def pipeline_s(self) -> float:
        """Return the least time in which the pipeline makes a batch."""
        needed_s = [
            self.batch * (self.fetch_s + self.prepare_s) / max(1, self.workers),
            (self.compute_cpu_s + self.batch * self.cpu_s) / self.cores,
        ]
        if self.preparing_cpus:
            needed_s.append(self.batch * self.cpu_s / self.preparing_cpus)
        if self.storage_bytes_per_s:
            needed_s.append(self.storage_bytes / self.storage_bytes_per_s)
        if self.reads_per_s:
            needed_s.append(self.reads / self.reads_per_s)
        return max(needed_s)

    def step_s(self) -> float:
        """Return the predicted time of a step."""
        if self.workers == 0:
            return self.floor_s + self.scale * self.pipeline_s()
        return max(self.floor_s, self.least_s, self.scale * self.pipeline_s())


Change = Callable[[Demand], Demand]


@dataclass(frozen=True, slots=True)
class PredictionInputs:
    """What is known beside the blocks: the workers, the bottleneck, the probe, and whether copying was resolved."""

    workers: PreparingWorkers
    named: NamedBottleneck
    probe: InputProbe | None
    host_resolved: bool
    stored_as: str | None = None


def demand(block: Block, limits: PredictionInputs) -> Demand | None:
    """Return the demand of a block, scaled to its observed step; None if the number of workers is not known."""
    if limits.workers.count is None:
        return None
    stages = block.stages or _assumed(block, limits.workers.count)
    has_copy_time = limits.host_resolved and block.host_s is not None
    reads = block.reads if block.reads is not None else block.batch if limits.stored_as == "folder" else None
    modelled = Demand(
        compute_s=block.synthetic_s,
        copy_s=max(0.0, (block.host_s or 0.0) - block.synthetic_s) if has_copy_time else 0.0,
        batch=block.batch,
        workers=limits.workers.count,
        fetch_s=stages.fetch_s,
        prepare_s=stages.prepare_s,
        cpu_s=stages.cpu_s,
        prepare_cpu_s=stages.prepare_cpu_s,
        cores=float(limits.workers.cores),
        preparing_cpus=_preparing_cpus(block, limits),
        compute_cpu_s=min(block.compute_cpu_s or 0.0, limits.workers.cores * block.synthetic_s),
        storage_bytes=block.storage_bytes or 0.0,
        reads=reads or 0.0,
        without_wait_s=None if block.wait_share is None else max(0.0, 1 - block.wait_share) * block.step_s,
    )
    modelled = _with_storage_limits(modelled, block.step_s, limits)
    return replace(modelled, scale=_scale(modelled, block.step_s))


def _preparing_cpus(block: Block, limits: PredictionInputs) -> float | None:
    """Return the CPUs that fetching and preparing can use together, None if only the machine limits them.

    Threads whose code holds the interpreter's lock, as probed, share one, or those that they were observed to use.
    """
    if limits.named.concurrency is not None:
        return limits.named.concurrency
    held = limits.probe.lock_held_share if limits.probe else None
    if not limits.workers.threads or held is None or held <= LOCK_HELD:
        return None
    used_cpus = block.stages.cpu_s * block.batch / block.timed_s if block.stages and block.timed_s else 0.0
    return max(1.0, used_cpus)


def _assumed(block: Block, workers: int) -> Stages:
    """Return the stages of a pipeline that could not be timed, if its workers are never idle: an upper limit."""
    warm_s = block.step_s if block.warm_s is None else block.warm_s
    made_s = warm_s - block.synthetic_s if workers == 0 else warm_s
    share = max(1, workers) / block.batch
    prepare_s = max(0.0, made_s) * share
    cpu_s = min(prepare_s, (block.cpu_s or 0.0) / block.batch)
    return Stages(max(0.0, block.step_s - warm_s) * share, 0.0, prepare_s, cpu_s, None)


def _with_storage_limits(demand: Demand, step_s: float, limits: PredictionInputs) -> Demand:
    """Return the demand with the storage's limits: the observed rate of a saturated one, else those of the probe."""
    if limits.named.name is BottleneckKind.BANDWIDTH:
        return replace(demand, storage_bytes_per_s=demand.storage_bytes / step_s)
    storage = limits.probe.storage if limits.probe else None
    if limits.named.name is BottleneckKind.IOPS:
        # The counter is the device's, with the requests of other programs: more than the probe's limit are not ours.
        most = storage.small_reads_per_s if storage else None
        served = min(demand.reads / step_s, most) if most else demand.reads / step_s
        return replace(demand, reads=served * step_s, reads_per_s=served)
    if storage is None:
        return demand
    # A probe is short: what was observed is possible, whatever the probe found.
    bytes_per_s, reads_per_s = storage.bytes_per_s, storage.small_reads_per_s
    return replace(
        demand,
        storage_bytes_per_s=max(bytes_per_s, demand.storage_bytes / step_s) if bytes_per_s else None,
        reads_per_s=max(reads_per_s, demand.reads / step_s) if reads_per_s and demand.storage_bytes else None,
    )


def speed_up(pairs: Sequence[tuple[Block, Demand]], change: Change) -> Estimate:
    """Return the predicted speed-up of a change over blocks, of which there is at least one."""
    ratio = of_logs([log(block.step_s / change(demand).step_s()) for block, demand in pairs])
    assert ratio is not None
    return ratio


def with_workers(count: int) -> Change:
    """Return the change to a number of workers.

    Preparation takes longer than its CPU time because its workers wait for each other, for CPUs or the interpreter:
    fewer of them wait less. More of them are limited by the CPUs of the machine and of preparation.
    """

    def change(demand: Demand) -> Demand:
        if count >= demand.workers:
            least_s = demand.without_wait_s if count > demand.workers else None
            return replace(demand, workers=count, least_s=least_s or demand.least_s)
        contended_s = demand.prepare_s * max(1, count) / demand.workers
        prepare_s = min(demand.prepare_s, max(demand.prepare_cpu_s, contended_s))
        return replace(demand, workers=count, prepare_s=prepare_s)

    return change


def with_prepare_cost(saved_s: float) -> Change:
    """Return the change that saves CPU time per sample of preparation; waiting for CPUs shrinks in proportion."""

    def change(demand: Demand) -> Demand:
        share_left = max(0.05, 1 - saved_s / demand.prepare_cpu_s) if demand.prepare_cpu_s else 1.0
        cpu_s = demand.cpu_s - (1 - share_left) * demand.prepare_cpu_s
        return replace(
            demand,
            prepare_s=demand.prepare_s * share_left,
            prepare_cpu_s=demand.prepare_cpu_s * share_left,
            cpu_s=cpu_s,
        )

    return change


def with_own_interpreters(alone_cpu_s: float | None) -> Change:
    """Return the change to processes in place of threads: preparation no longer waits for the interpreter's lock.

    Nor does it spend CPU time on passing the lock on: `alone_cpu_s` is the CPU time of a sample without other threads.
    """

    def change(demand: Demand) -> Demand:
        passing_s = 0.0 if alone_cpu_s is None else max(0.0, demand.cpu_s - alone_cpu_s)
        prepare_cpu_s = max(0.0, demand.prepare_cpu_s - passing_s)
        return replace(
            demand,
            prepare_s=min(demand.prepare_s, prepare_cpu_s),
            prepare_cpu_s=prepare_cpu_s,
            cpu_s=demand.cpu_s - passing_s,
            preparing_cpus=None,
            scale=1.0,
            without_wait_s=None,
        )

    return change


def with_everything_in_memory(demand: Demand) -> Demand:
    """Return the demand with decoded samples in memory: nothing is fetched or decoded."""
    memory_only = replace(demand, fetch_s=0.0, prepare_s=0.0, cpu_s=0.0, prepare_cpu_s=0.0, compute_cpu_s=0.0)
    return replace(memory_only, preparing_cpus=None, storage_bytes=0.0, reads=0.0)


def with_device_preprocessing(saved_s: float) -> Change:
    """Return the change that batches and copies bytes in place of floats, and saves CPU time per sample."""
    cheaper = with_prepare_cost(saved_s)
    return lambda demand: replace(cheaper(demand), copy_s=demand.copy_s / FLOAT_BYTES)


def with_deep_queue(demand: Demand) -> Demand:
    """Return the demand with a queue that hides all variation of the workers."""
    return replace(demand, scale=min(1.0, demand.scale), least_s=demand.without_wait_s or demand.least_s)


def with_fewer_reads(reads_per_batch: float, read_s: float | None = None) -> Change:
    """Return the change to a format that reads a batch with so few requests; waits for storage shrink with them.

    `read_s` is the time of a request to a storage that is not saturated: nothing else of the wait is saved.
    """

    def change(demand: Demand) -> Demand:
        if demand.reads <= reads_per_batch:
            return demand
        if read_s is None:
            left_s = demand.fetch_s * reads_per_batch / demand.reads
        else:
            left_s = max(0.0, demand.fetch_s - (demand.reads - reads_per_batch) * read_s / demand.batch)
        return replace(demand, reads=reads_per_batch, fetch_s=left_s)

    return change


def _scale(demand: Demand, step_s: float) -> float:
    """Return the factor by which the pipeline takes longer than the model, 1 where the step does not wait for it."""
    modelled_s = demand.pipeline_s()
    pipeline_s = step_s - demand.floor_s if demand.workers == 0 else step_s
    if modelled_s <= 0 or pipeline_s <= 0 or (demand.workers and step_s <= demand.floor_s * 1.02):
        return 1.0
    scale = pipeline_s / modelled_s
    return scale if 1 / MOST_SCALE <= scale <= MOST_SCALE else 1.0

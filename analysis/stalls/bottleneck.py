"""Names the bottleneck of an input pipeline from stage times, CPU use and what the storage served.

The decision, in its order:

    stall below 3 %                                              none (compute-bound)
    batching and copy the largest part, interference being
    preparation's                                                copy
    workers mostly wait when they fetch, and fetch longer than
    they prepare, or storage delivers 90 % of what it can
        storage served few of the bytes                          fetch latency
        storage serves small reads no faster than these          storage IOPS
        storage serves entire files no faster than this          storage bandwidth
        otherwise                                                fetch latency
    workers prepare: threads that share about one CPU, the probe
    waited for the interpreter (without it: CPUs are idle), and
    so do the workers, or training that is slowed down           GIL
        otherwise                                                preparation CPU

Requests of a bandwidth cap and of an IOPS cap look alike from inside a pipeline that always reads the same files: only
the probe's small reads separate them. Without a probe the size of a request decides, and a caveat says so. Where the
device does not count requests (overlayfs, btrfs, NFS), each file of a folder is at least one: storage is then also
limited by requests if the probe read entire files nearly as often per second as 4 KiB.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from keras_matrix.analysis.stalls.arms import Block, Stages, mean
from keras_matrix.analysis.stalls.report import BottleneckKind
from keras_matrix.analysis.stalls.split import COPY, FETCH, INTERFERENCE, PREPARATION, Split
from keras_matrix.records.instruments.input_probe import InputProbe, StorageLimits
from keras_matrix.records.text import bytes_text, percentage, seconds

LEAST_STALL = 0.03
# Share of the fetched bytes that storage must have served for it to be the storage that is waited for.
FROM_STORAGE = 0.2
# Share of the probe's limit above which a resource is saturated: a pipeline's few readers do not reach all of it.
SATURATED = 0.6
AT_LIMIT = 0.9  # of the probe's limit: where workers prepare longer than they fetch, their fetches overlap
SMALL_REQUEST_BYTES = 64 << 10
# Of the probe's small reads per second, entire files per second: a file needs few requests.
FILES_OF_SMALL_READS = 0.25
BUSY = 0.75  # CPU time / wall time of preparation, below which workers wait in it
ONE_CPU = 1.3
IDLE_CPUS = 0.3
OTHERS = " (those of other programs on the device included)"
FEW_CPUS = 0.5  # of the process and its workers, when their shares are not known
LOCK_HELD = 0.5  # share of the time that the probe waited for the interpreter, above which a second thread helps little
LOCKED = "they wait for the lock of the Python interpreter"


@dataclass(frozen=True, slots=True)
class PreparingWorkers:
    """Who prepares batches: their number (0: the training thread, None: unknown), whether threads, and the CPUs."""

    count: int | None
    threads: bool
    cores: int


@dataclass(frozen=True, slots=True)
class _Requests:
    """The requests per second to storage; `counted` by the device, otherwise the files of a folder."""

    per_s: float | None
    counted: bool


@dataclass(frozen=True, slots=True)
class NamedBottleneck:
    """A bottleneck, the sentence that explains it, and its caveat. `concurrency` is the CPUs that preparation gets."""

    name: BottleneckKind
    why: str
    concurrency: float | None = None
    caveat: str | None = None


def bottleneck(
    blocks: Sequence[Block],
    found: Split,
    workers: PreparingWorkers,
    probe: InputProbe | None,
    stored_as: str | None = None,
) -> NamedBottleneck:
    """Return the bottleneck of the observed arm."""
    if found.stall.centre < LEAST_STALL or (found.stall.low is not None and found.stall.low <= 0):
        why = f"input costs {percentage(max(0.0, found.stall.centre))} of the step"
        return NamedBottleneck(BottleneckKind.NONE, f"{why}; the time goes into computing")
    requests = _requests(blocks, stored_as)
    # Interference was taken out of preparation, which causes it.
    if found.share(COPY) > max(found.share(FETCH), found.share(PREPARATION) + found.share(INTERFERENCE)):
        why = f"batching and copying to the device take {percentage(found.share(COPY))} of the step"
        return NamedBottleneck(BottleneckKind.COPY, why)
    stages = mean_stages(blocks)
    if stages is None:
        return _without_timers(blocks, found, workers, (probe, requests))
    if stages.fetch_s - stages.fetch_cpu_s > stages.fetch_s / 2 and (
        stages.fetch_s > stages.prepare_s or _at_limit(blocks, probe.storage if probe else None, requests)
    ):
        return _fetch(blocks, stages, probe, requests)
    return _preparation(blocks, stages, workers, found, probe.lock_held_share if probe else None)


def mean_stages(blocks: Sequence[Block]) -> Stages | None:
    """Return the mean stage times over the blocks that have them."""
    known = [block.stages for block in blocks if block.stages]
    if not known:
        return None
    sizes = [stages.sample_bytes for stages in known if stages.sample_bytes is not None]
    return Stages(
        sum(s.fetch_s for s in known) / len(known),
        sum(s.fetch_cpu_s for s in known) / len(known),
        sum(s.prepare_s for s in known) / len(known),
        sum(s.prepare_cpu_s for s in known) / len(known),
        sum(sizes) / len(sizes) if sizes else None,
    )


def concurrency(blocks: Sequence[Block]) -> float | None:
    """Return the mean number of CPUs that fetching and preparing used during the epochs of the timed arm."""
    return mean(blocks, lambda b: b.stages.cpu_s * b.batch / b.timed_s if b.stages and b.timed_s else None)


def process_cpus(blocks: Sequence[Block]) -> float | None:
    """Return the mean number of CPUs that the process and its workers used."""
    return mean(blocks, lambda b: b.cpu_s / b.step_s if b.cpu_s is not None else None)


def _fetch(blocks: Sequence[Block], stages: Stages, probe: InputProbe | None, requests: _Requests) -> NamedBottleneck:
    sample_s = f"a worker waits {seconds(stages.fetch_s - stages.fetch_cpu_s)} for the bytes of a sample"
    fetched = mean(blocks, lambda b: b.stages.sample_bytes * b.batch if b.stages and b.stages.sample_bytes else None)
    served = mean(blocks, lambda b: b.storage_bytes)
    if served is not None and fetched and served < FROM_STORAGE * fetched:
        why = f"{sample_s}, and the storage of this machine served only {percentage(served / fetched)} of them"
        return NamedBottleneck(BottleneckKind.LATENCY, why)
    if served is None:
        caveat = "the bytes that storage served are not known, so its limits could not be examined"
        return NamedBottleneck(BottleneckKind.LATENCY, sample_s, caveat=caveat)
    return _storage(blocks, sample_s, probe.storage if probe else None, requests)


def _served_bytes_per_s(blocks: Sequence[Block]) -> float:
    return mean(blocks, lambda b: b.storage_bytes / b.step_s if b.storage_bytes is not None else None) or 0.0


def _at_limit(blocks: Sequence[Block], limits: StorageLimits | None, requests: _Requests) -> bool:
    """Return whether storage delivers nearly all that it can, so that faster preparation would wait for it."""
    if limits is None:
        return False
    bytes_per_s = _served_bytes_per_s(blocks)
    most_bytes, most_reads = limits.bytes_per_s, limits.small_reads_per_s
    return bool(
        (most_bytes and bytes_per_s >= AT_LIMIT * most_bytes)
        or (most_reads and requests.counted and (requests.per_s or 0.0) >= AT_LIMIT * most_reads)
    )


def _requests(blocks: Sequence[Block], stored_as: str | None) -> _Requests:
    if stored_as == "folder" and all(block.reads is None for block in blocks):
        return _Requests(mean(blocks, lambda b: b.batch / b.step_s), False)
    return _Requests(mean(blocks, lambda b: b.reads / b.step_s if b.reads else None), True)


def _storage(blocks: Sequence[Block], begin: str, limits: StorageLimits | None, requests: _Requests) -> NamedBottleneck:
    """Return which limit of the storage is reached."""
    bytes_per_s = _served_bytes_per_s(blocks)
    reads_per_s = requests.per_s
    request = bytes_per_s / reads_per_s if reads_per_s else None
    others = bool(limits and limits.small_reads_per_s and (reads_per_s or 0.0) > 1.5 * limits.small_reads_per_s)
    unit = "requests/s" if requests.counted else "files/s"
    number = f" in {reads_per_s:.3g} {unit}{OTHERS if others else ''}" if reads_per_s else ""
    rates = f"{bytes_per_s / 1e6:.3g} MB/s{number}"
    if limits and limits.small_reads_per_s and limits.bytes_per_s:
        most_reads, most_bytes = limits.small_reads_per_s, limits.bytes_per_s
        saturated = bytes_per_s >= SATURATED * most_bytes
        few = not requests.counted and request and most_bytes / request >= FILES_OF_SMALL_READS * most_reads
        if (reads_per_s is not None and reads_per_s >= SATURATED * most_reads) or (saturated and few):
            most = (
                f"no more requests than that ({most_reads:.3g}/s)" if requests.counted else f"{most_reads:.3g} reads/s"
            )
            why = f"{begin}: storage delivers {rates}, and {most} even of 4 KiB"
            return NamedBottleneck(BottleneckKind.IOPS, why)
        if saturated:
            why = f"{begin}: storage delivers {rates}, and no more than {most_bytes / 1e6:.3g} MB/s to many readers"
            return NamedBottleneck(BottleneckKind.BANDWIDTH, why)
        each = f"a request takes {seconds(limits.one_read_s)}" if limits.one_read_s else "requests take their time"
        why = f"{begin}: storage delivers {rates} and could deliver {most_bytes / 1e6:.3g} MB/s to more readers; {each}"
        return NamedBottleneck(BottleneckKind.LATENCY, why)
    caveat = "storage IOPS and bandwidth are told apart by the size of a request alone: the storage was not probed"
    small = request is not None and request < SMALL_REQUEST_BYTES
    size = f" of {bytes_text(request)}" if request else ""
    return NamedBottleneck(
        BottleneckKind.IOPS if small else BottleneckKind.BANDWIDTH,
        f"{begin}: storage delivers {rates}{size}",
        caveat=caveat,
    )


def _preparation(
    blocks: Sequence[Block], stages: Stages, workers: PreparingWorkers, found: Split, lock_held_share: float | None
) -> NamedBottleneck:
    used, total = concurrency(blocks), process_cpus(blocks)
    running = stages.prepare_cpu_s / stages.prepare_s if stages.prepare_s else 1.0
    idle = total is not None and total < workers.cores - IDLE_CPUS
    several = workers.threads and (workers.count or 0) > 1
    held = idle if lock_held_share is None else lock_held_share > LOCK_HELD
    # Who waits for the lock: the workers, or a training thread that is slow although batches are ready.
    waited_for = running < BUSY or (idle and found.share(INTERFERENCE) > found.share(PREPARATION))
    if several and held and waited_for and used is not None and used <= ONE_CPU:
        free = f" while {workers.cores - (total or 0):.1f} of {workers.cores} CPUs are idle" if idle else ""
        why = f"{workers.count} threads together use {used:.2f} CPUs for preparation{free}: {LOCKED}"
        return NamedBottleneck(BottleneckKind.GIL, why, used)
    cost = f"decoding and preparing take {seconds(stages.prepare_cpu_s)} of CPU per sample"
    busy = f"{total:.1f} of {workers.cores} CPUs are busy" if total is not None else f"{workers.cores} CPUs"
    return NamedBottleneck(BottleneckKind.CPU, f"{cost}; {_workers_text(workers)}; {busy}")


def _workers_text(workers: PreparingWorkers) -> str:
    if workers.count is None:
        return "the number of workers is not known"
    if not workers.count:
        return "the training thread prepares the batches itself"
    kind = "thread" if workers.threads else "process"
    if workers.count == 1:
        return f"1 {kind} prepares the batches"
    return f"{workers.count} {kind}{'es' if kind == 'process' else 's'} prepare the batches"


def _without_timers(
    blocks: Sequence[Block], found: Split, workers: PreparingWorkers, storage: tuple[InputProbe | None, _Requests]
) -> NamedBottleneck:
    """Name the bottleneck of a pipeline whose stages could not be timed, by CPU time and by cold against warm."""
    caveat = (
        "the stages of this pipeline could not be timed: the bottleneck is named from CPU time and storage alone, and "
        "predictions take its workers as never idle"
    )
    if found.share(FETCH) > found.share(PREPARATION):
        probe, requests = storage
        named = _storage(blocks, "reading takes longer than preparing", probe.storage if probe else None, requests)
        return NamedBottleneck(named.name, named.why, caveat="; ".join(filter(None, (named.caveat, caveat))))
    used = total = process_cpus(blocks)
    if used is not None and used < FEW_CPUS:
        return NamedBottleneck(
            BottleneckKind.LATENCY, f"the process uses only {used:.2f} CPUs: its pipeline waits", caveat=caveat
        )
    idle = total is not None and total < workers.cores - IDLE_CPUS
    if workers.threads and (workers.count or 0) > 1 and idle and used is not None and used <= ONE_CPU:
        why = (
            f"{workers.count} threads together run {used:.2f} CPUs while others are idle: they wait for the interpreter"
        )
        return NamedBottleneck(BottleneckKind.GIL, why, used, caveat)
    text = f"the process uses {used:.1f} CPUs" if used is not None else "its CPU time is not known"
    return NamedBottleneck(BottleneckKind.CPU, f"{text}; {_workers_text(workers)}", caveat=caveat)

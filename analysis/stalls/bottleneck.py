"""Splits the time of a step into computing and the parts of its input pipeline, and names the pipeline's bottleneck.

The parts are fetch, preparation, batching and copy, and interference. The split is differential, from arms without
instruments (`step_split`). Stage times, CPU use and what the storage served then decide between the causes
(`bottleneck`). Where the differential and the in-band share of input disagree, a caveat says so.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

from keras_matrix.analysis.stalls.report import Block, BottleneckKind, Stages, StallPart, mean
from keras_matrix.analysis.stats.blocks import Estimate, arithmetic
from keras_matrix.records.instruments.input_use import InputProbe, StorageLimits
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
COMPUTE, FETCH, PREPARATION, COPY, INTERFERENCE = "compute", "fetch", "preparation", "batching and copy", "interference"
MEANINGS = {
    COMPUTE: "the step with its batch on the device",
    FETCH: "waiting for storage: cold against warm page cache",
    PREPARATION: "waiting for decoding and resizing: warm pipeline against batches in host memory",
    COPY: "batches in host memory against batches on the device",
    INTERFERENCE: "computing slower because preparation uses the same cores",
}
LEAST_FETCHING = 0.1  # of a worker's time on the warm arm: below it, reading from the page cache is preparation
APART = 0.05  # differential and in-band shares further apart than this need an explanation


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
    split: Split,
    workers: PreparingWorkers,
    probe: InputProbe | None,
    stored_as: str | None = None,
) -> NamedBottleneck:
    """Return the bottleneck of the observed arm.

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

    Requests of a bandwidth cap and of an IOPS cap look alike from inside a pipeline that always reads the same files:
    only the probe's small reads separate them. Without a probe the size of a request decides, and a caveat says so.
    Where the device does not count requests (overlayfs, btrfs, NFS), each file of a folder is at least one: storage is
    then also limited by requests if the probe read entire files nearly as often per second as 4 KiB.
    """
    if split.stall.centre < LEAST_STALL or (split.stall.low is not None and split.stall.low <= 0):
        why = f"input costs {percentage(max(0.0, split.stall.centre))} of the step"
        return NamedBottleneck(BottleneckKind.NONE, f"{why}; the time goes into computing")
    requests = _requests(blocks, stored_as)
    # Interference was taken out of preparation, which causes it.
    if split.share(COPY) > max(split.share(FETCH), split.share(PREPARATION) + split.share(INTERFERENCE)):
        why = f"batching and copying to the device take {percentage(split.share(COPY))} of the step"
        return NamedBottleneck(BottleneckKind.COPY, why)
    stages = mean_stages(blocks)
    if stages is None:
        return _without_timers(blocks, split, workers, (probe, requests))
    if stages.fetch_s - stages.fetch_cpu_s > stages.fetch_s / 2 and (
        stages.fetch_s > stages.prepare_s or _at_limit(blocks, probe.storage if probe else None, requests)
    ):
        return _fetch(blocks, stages, probe, requests)
    return _preparation(blocks, stages, workers, split, probe.lock_held_share if probe else None)


def mean_stages(blocks: Sequence[Block]) -> Stages | None:
    """Return the mean stage times over the blocks that have them."""
    known_stages = [block.stages for block in blocks if block.stages]
    if not known_stages:
        return None
    sizes = [stages.sample_bytes for stages in known_stages if stages.sample_bytes is not None]
    return Stages(
        sum(s.fetch_s for s in known_stages) / len(known_stages),
        sum(s.fetch_cpu_s for s in known_stages) / len(known_stages),
        sum(s.prepare_s for s in known_stages) / len(known_stages),
        sum(s.prepare_cpu_s for s in known_stages) / len(known_stages),
        sum(sizes) / len(sizes) if sizes else None,
    )


def concurrency(blocks: Sequence[Block]) -> float | None:
    """Return the mean number of CPUs that fetching and preparing used during the epochs of the timed arm."""
    return mean(blocks, lambda b: b.stages.cpu_s * b.batch / b.timed_s if b.stages and b.timed_s else None)


def process_cpus(blocks: Sequence[Block]) -> float | None:
    """Return the mean number of CPUs that the process and its workers used."""
    return mean(blocks, lambda b: b.cpu_s / b.step_s if b.cpu_s is not None else None)


def _fetch(blocks: Sequence[Block], stages: Stages, probe: InputProbe | None, requests: _Requests) -> NamedBottleneck:
    sample_text = f"a worker waits {seconds(stages.fetch_s - stages.fetch_cpu_s)} for the bytes of a sample"
    fetched = mean(blocks, lambda b: b.stages.sample_bytes * b.batch if b.stages and b.stages.sample_bytes else None)
    served = mean(blocks, lambda b: b.storage_bytes)
    if served is not None and fetched and served < FROM_STORAGE * fetched:
        why = f"{sample_text}, and the storage of this machine served only {percentage(served / fetched)} of them"
        return NamedBottleneck(BottleneckKind.LATENCY, why)
    if served is None:
        caveat = "the bytes that storage served are not known, so its limits could not be examined"
        return NamedBottleneck(BottleneckKind.LATENCY, sample_text, caveat=caveat)
    return _storage(blocks, sample_text, probe.storage if probe else None, requests)


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
    has_other_readers = bool(
        limits and limits.small_reads_per_s and (reads_per_s or 0.0) > 1.5 * limits.small_reads_per_s
    )
    unit = "requests/s" if requests.counted else "files/s"
    requests_text = f" in {reads_per_s:.3g} {unit}{OTHERS if has_other_readers else ''}" if reads_per_s else ""
    rates_text = f"{bytes_per_s / 1e6:.3g} MB/s{requests_text}"
    if limits and limits.small_reads_per_s and limits.bytes_per_s:
        most_reads, most_bytes = limits.small_reads_per_s, limits.bytes_per_s
        is_saturated = bytes_per_s >= SATURATED * most_bytes
        few = not requests.counted and request and most_bytes / request >= FILES_OF_SMALL_READS * most_reads
        if (reads_per_s is not None and reads_per_s >= SATURATED * most_reads) or (is_saturated and few):
            most_text = (
                f"no more requests than that ({most_reads:.3g}/s)" if requests.counted else f"{most_reads:.3g} reads/s"
            )
            why = f"{begin}: storage delivers {rates_text}, and {most_text} even of 4 KiB"
            return NamedBottleneck(BottleneckKind.IOPS, why)
        if is_saturated:
            why = (
                f"{begin}: storage delivers {rates_text}, and no more than {most_bytes / 1e6:.3g} MB/s to many readers"
            )
            return NamedBottleneck(BottleneckKind.BANDWIDTH, why)
        request_text = (
            f"a request takes {seconds(limits.one_read_s)}" if limits.one_read_s else "requests take their time"
        )
        why = (
            f"{begin}: storage delivers {rates_text} and could deliver {most_bytes / 1e6:.3g} MB/s to more readers; "
            f"{request_text}"
        )
        return NamedBottleneck(BottleneckKind.LATENCY, why)
    caveat = "storage IOPS and bandwidth are told apart by the size of a request alone: the storage was not probed"
    is_small = request is not None and request < SMALL_REQUEST_BYTES
    size_text = f" of {bytes_text(request)}" if request else ""
    return NamedBottleneck(
        BottleneckKind.IOPS if is_small else BottleneckKind.BANDWIDTH,
        f"{begin}: storage delivers {rates_text}{size_text}",
        caveat=caveat,
    )


def _preparation(
    blocks: Sequence[Block], stages: Stages, workers: PreparingWorkers, split: Split, lock_held_share: float | None
) -> NamedBottleneck:
    used_cpus, total = concurrency(blocks), process_cpus(blocks)
    running_cpus = stages.prepare_cpu_s / stages.prepare_s if stages.prepare_s else 1.0
    has_idle_cpus = total is not None and total < workers.cores - IDLE_CPUS
    has_several_threads = workers.threads and (workers.count or 0) > 1
    is_lock_held = has_idle_cpus if lock_held_share is None else lock_held_share > LOCK_HELD
    # Who waits for the lock: the workers, or a training thread that is slow although batches are ready.
    is_waited_for = running_cpus < BUSY or (has_idle_cpus and split.share(INTERFERENCE) > split.share(PREPARATION))
    if has_several_threads and is_lock_held and is_waited_for and used_cpus is not None and used_cpus <= ONE_CPU:
        free_text = (
            f" while {workers.cores - (total or 0):.1f} of {workers.cores} CPUs are idle" if has_idle_cpus else ""
        )
        why = f"{workers.count} threads together use {used_cpus:.2f} CPUs for preparation{free_text}: {LOCKED}"
        return NamedBottleneck(BottleneckKind.GIL, why, used_cpus)
    cost_text = f"decoding and preparing take {seconds(stages.prepare_cpu_s)} of CPU per sample"
    busy_note = f"{total:.1f} of {workers.cores} CPUs are busy" if total is not None else f"{workers.cores} CPUs"
    return NamedBottleneck(BottleneckKind.CPU, f"{cost_text}; {_workers_text(workers)}; {busy_note}")


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
    blocks: Sequence[Block], split: Split, workers: PreparingWorkers, storage: tuple[InputProbe | None, _Requests]
) -> NamedBottleneck:
    """Name the bottleneck of a pipeline whose stages could not be timed, by CPU time and by cold against warm."""
    caveat = (
        "the stages of this pipeline could not be timed: the bottleneck is named from CPU time and storage alone, and "
        "predictions take its workers as never idle"
    )
    if split.share(FETCH) > split.share(PREPARATION):
        probe, requests = storage
        storage_bottleneck = _storage(
            blocks, "reading takes longer than preparing", probe.storage if probe else None, requests
        )
        return NamedBottleneck(
            storage_bottleneck.name,
            storage_bottleneck.why,
            caveat="; ".join(filter(None, (storage_bottleneck.caveat, caveat))),
        )
    used_cpus = total = process_cpus(blocks)
    if used_cpus is not None and used_cpus < FEW_CPUS:
        return NamedBottleneck(
            BottleneckKind.LATENCY, f"the process uses only {used_cpus:.2f} CPUs: its pipeline waits", caveat=caveat
        )
    has_idle_cpus = total is not None and total < workers.cores - IDLE_CPUS
    if (
        workers.threads
        and (workers.count or 0) > 1
        and has_idle_cpus
        and used_cpus is not None
        and used_cpus <= ONE_CPU
    ):
        why = (
            f"{workers.count} threads together run {used_cpus:.2f} CPUs while others are idle: "
            "they wait for the interpreter"
        )
        return NamedBottleneck(BottleneckKind.GIL, why, used_cpus, caveat)
    text = f"the process uses {used_cpus:.1f} CPUs" if used_cpus is not None else "its CPU time is not known"
    return NamedBottleneck(BottleneckKind.CPU, f"{text}; {_workers_text(workers)}", caveat=caveat)


@dataclass(frozen=True, slots=True)
class Split:
    """The parts of a step, and the differential and in-band shares of input."""

    parts: tuple[StallPart, ...]
    stall: Estimate
    input_bound: Estimate | None
    interference: Estimate | None
    host_resolved: bool

    def share(self, name: str) -> float:
        """Return the share of a part, 0 if it is not resolved."""
        return next((p.share.centre for p in self.parts if p.name == name and p.share and p.resolved), 0.0)


def step_split(blocks: Sequence[Block]) -> Split:
    """Return the split of these blocks, of which there is at least one.

    The split is differential (Mohan et al., "Analyzing and mitigating data stalls in DNN training", VLDB 2021): per
    block, with T the observed arm, P a warm page cache, H batches from host memory and S batches on the device,

        fetch = (T - P) / T      preparation = (P - H) / T      batching and copy = (H - S) / T      compute = S / T

    These arms carry no instruments. A warm page cache does not make every source fast (a network, a user's own delay):
    with stage timers, the share of fetching in a worker's time on the warm arm is moved from preparation to fetch.

    The second opinion is in-band: the wait share of the timed arm. What is neither compute nor wait is interference: on
    a CPU, preparation and compute share cores, and training computes slower without waiting. It is taken out of
    preparation, whose CPU work causes it, and what exceeds that out of a resolved batching and copy, then out of fetch.

    A part that its interval does not separate from zero is not resolved. H is used only where it is separable from S.
    """
    copied = _over(blocks, lambda b: None if b.host_s is None else (b.host_s - b.synthetic_s) / b.step_s)
    is_host_resolved = resolved(copied)
    shares = {
        COMPUTE: _over(blocks, lambda b: b.synthetic_s / b.step_s),
        FETCH: _over(blocks, lambda b: _fetch_time(b, is_host_resolved)),
        PREPARATION: _over(blocks, lambda b: _warm(b, is_host_resolved) * (1 - _fetching(b))),
        COPY: copied,
    }
    stall = _over(blocks, lambda b: 1 - b.synthetic_s / b.step_s)
    waits = _over(blocks, lambda b: b.wait_share)
    interference = _over(blocks, _interference)
    assert stall is not None
    is_clear = interference is not None and resolved(interference)
    if is_clear and interference is not None:
        shares = _without(shares, interference.centre) | {INTERFERENCE: interference}
    mean_step = arithmetic([b.step_s for b in blocks])
    assert mean_step is not None
    parts = tuple(_part(name, share, mean_step.centre) for name, share in shares.items())
    return Split(parts, stall, waits, interference if is_clear else None, is_host_resolved)


def resolved(estimate: Estimate | None) -> bool:
    """Return whether a share is above zero beyond its interval; without an interval, whether its estimate is."""
    if estimate is None:
        return False
    return estimate.centre > 0 if estimate.low is None else estimate.low > 0


def caveats(split: Split) -> list[str]:
    """Return what a reader must know about the two opinions."""
    if split.input_bound is None:
        return []
    difference = split.stall.centre - split.input_bound.centre
    if abs(difference) <= APART:
        return []
    differential, inband = percentage(split.stall.centre), percentage(split.input_bound.centre)
    text = f"differential ({differential}) and in-band ({inband}) shares are {abs(difference) * 100:.1f} points apart: "
    if difference > 0:
        return [
            text + "training waits less than the pipeline costs. The rest is interference: preparation and compute use "
            "the same cores (always on a CPU) or the same interpreter, and each slows the other. More workers do not "
            "remove it; cheaper preparation does."
        ]
    return [
        text + "the timed arm waits longer than the pipeline costs. It synchronises every step, which exposes waits "
        "that the other arms hide behind queued steps. The differential share is the one to use."
    ]


def _over(blocks: Sequence[Block], share: Callable[[Block], float | None]) -> Estimate | None:
    return arithmetic([value for block in blocks if (value := share(block)) is not None])


def _fetch_time(block: Block, host_resolved: bool) -> float | None:
    """Return the share of the cold arm above the warm one, and of fetching in the warm one; None without either."""
    if _cold(block) is None and not _fetching(block):
        return None
    return (_cold(block) or 0.0) + _warm(block, host_resolved) * _fetching(block)


def _cold(block: Block) -> float | None:
    """Return the share of the cold arm above the warm one; None if the warm arm is the observed one."""
    if block.warm_s is None or block.warm_s == block.step_s:
        return None
    return (block.step_s - block.warm_s) / block.step_s


def _warm(block: Block, host_resolved: bool) -> float:
    """Return the share of the warm arm above batches in memory."""
    floor = block.host_s if host_resolved and block.host_s is not None else block.synthetic_s
    warm = block.step_s if block.warm_s is None else block.warm_s
    return (warm - floor) / block.step_s


def _fetching(block: Block) -> float:
    """Return the share of fetching in the time that a worker of the warm arm spends on a sample; 0 if it is small.

    Of a cold timed arm, the time that the cold arm is slower than the warm one is subtracted from its fetching.
    """
    if block.stages is None:
        return 0.0
    slower_s = (_cold(block) or 0.0) * block.step_s * max(1, block.workers or 1) / block.batch
    warm_s = max(block.stages.fetch_cpu_s, block.stages.fetch_s - slower_s)
    share = warm_s / (warm_s + block.stages.prepare_s) if warm_s else 0.0
    return share if share >= LEAST_FETCHING else 0.0


def _interference(block: Block) -> float | None:
    return None if block.wait_share is None else 1 - block.synthetic_s / block.step_s - block.wait_share


def _without(shares: dict[str, Estimate | None], interference: float) -> dict[str, Estimate | None]:
    """Return the shares with interference taken out of preparation, then out of the others that are resolved."""
    remaining_share, corrected_shares = interference, dict(shares)
    for name in (PREPARATION, COPY, FETCH):
        share = corrected_shares[name]
        # The time of a copy that is not resolved is in preparation already.
        if share is None or share.centre <= 0 or (name == COPY and not resolved(share)):
            continue
        moved_share = min(remaining_share, share.centre)
        remaining_share -= moved_share
        corrected_shares[name] = _moved(share, -moved_share)
    return corrected_shares


def _moved(share: Estimate, change: float) -> Estimate:
    low, high = (None if end is None else end + change for end in (share.low, share.high))
    return Estimate(share.centre + change, low, high, share.count, share.method)


def _part(name: str, share: Estimate | None, step_s: float) -> StallPart:
    time = None if share is None else _scaled(share, step_s)
    return StallPart(name, share, time, resolved(share), MEANINGS[name])


def _scaled(share: Estimate, step_s: float) -> Estimate:
    low, high = (None if end is None else end * step_s for end in (share.low, share.high))
    return Estimate(share.centre * step_s, low, high, share.count, share.method)

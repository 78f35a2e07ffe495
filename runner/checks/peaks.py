"""Measures a machine's peaks in rounds of child processes, one per backend and number of CPUs, in random order.

A round runs every backend in a new process, so that a slow phase of the machine affects all of them. A peak is the best
of all calls of all rounds; its median is stored too.
"""

from __future__ import annotations

import secrets
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field, replace
from datetime import datetime
from random import Random

from keras_matrix.analysis.surroundings.disturbance import MeasuredStretch, OwnUse, other_cpu_share
from keras_matrix.records.backends import TABLE, TRAINING_BACKENDS
from keras_matrix.records.codec import CodecError, decode
from keras_matrix.records.host.platform import PLATFORM
from keras_matrix.records.instruments import peaks
from keras_matrix.records.instruments.peaks import Gemm, PeakAnswer, PeakOrder, Peaks, Stream, Timed
from keras_matrix.records.schema import Machine
from keras_matrix.records.settings import Settings
from keras_matrix.runner.errors import InfrastructureError
from keras_matrix.runner.executors.probe import Probe, ProbeFailed, probe_settings
from keras_matrix.runner.executors.supervise.environment import allowed_cpus
from keras_matrix.runner.machine.gpus.nvml import GpuIdentity
from keras_matrix.runner.machine.surroundings.counters import Sampler, since
from keras_matrix.runner.machine.surroundings.snapshot import ended_cpu_s

MODULE = "keras_matrix.runner.cell.peaks"
HOST = "numpy"
PRECISIONS = {"cpu": ["float32", "bfloat16", "float64"], "gpu": ["float32", "tf32", "bfloat16", "float16", "float64"]}
KERNELS = ["copy", "triad"]
TIMEOUT_S = 300.0
ROUNDS = 3

Key = tuple[str, str, str, int, int]


@dataclass(frozen=True, slots=True)
class Effort:
    """The effort of the measurement. With empty `sizes` and None each process finds sizes that use the full machine."""

    rounds: int = ROUNDS
    sizes: tuple[int, ...] = ()
    array_bytes: int | None = None
    least_calls: int = 5
    window_s: float = 0.3


@dataclass(frozen=True, slots=True)
class PeaksSubject:
    """The subject and time of the measurement: machine, versions, numbers of CPUs, and the first GPU."""

    machine: Machine
    versions: dict[str, str]
    threads: tuple[int, ...]
    now: datetime
    gpu: GpuIdentity | None = None


@dataclass(slots=True)
class _Found:
    """The answers of the processes so far."""

    refused: dict[str, str]
    gemms: dict[Key, Gemm] = field(default_factory=dict)
    streams: dict[Key, Stream] = field(default_factory=dict)
    devices: dict[str, str] = field(default_factory=dict)
    versions: dict[str, str] = field(default_factory=dict)
    notes: dict[str, str] = field(default_factory=dict)
    cache_bytes: int | None = None


def measure(
    probe: Probe, subject: PeaksSubject, effort: Effort = Effort(), report: Callable[[str], None] = lambda line: None
) -> Peaks:
    """Measure the peaks; `report` gets a line per process. Raises `InfrastructureError` if there is no figure."""
    seed = secrets.randbits(32)
    orders = list(_orders(probe, subject, effort))
    gathered = _Found({f"{name} cpu": why for name in TRAINING_BACKENDS if (why := probe.missing(name))})
    load_before = PLATFORM.load_average()
    others_share = _watched(lambda: _rounds(probe, (orders, seed, effort.rounds), gathered, report))
    if subject.gpu and subject.gpu.product and "gpu" in gathered.devices:
        gathered.devices["gpu"] = subject.gpu.product  # from NVML, since backends may not name a MIG device
    if not gathered.gemms and not gathered.streams:
        reasons_text = "; ".join(f"{measurement}: {why}" for measurement, why in sorted(gathered.refused.items()))
        raise InfrastructureError(f"peaks: no figure could be measured: {reasons_text}")
    return Peaks(
        version=peaks.PEAKS_VERSION,
        fingerprint=peaks.fingerprint(subject.machine, subject.versions),
        measured_at=subject.now.isoformat(timespec="seconds"),
        machine=subject.machine,
        versions=subject.versions | gathered.versions,
        rounds=effort.rounds,
        order_seed=seed,
        gemms=list(gathered.gemms.values()),
        streams=list(gathered.streams.values()),
        refused=gathered.refused,
        devices=gathered.devices,
        cache_bytes=gathered.cache_bytes,
        notes=gathered.notes,
        gpu_uuid=subject.gpu.uuid if subject.gpu else None,
        load_before=load_before,
        other_cpu_share=others_share,
    )


def _watched(work: Callable[[], None]) -> float | None:
    """Do the work, whose processes end with it; return the share of the CPUs that other processes used."""
    with Sampler(PLATFORM.usable_cpus()) as sampler:
        counters_before, own_s = sampler.read(), ended_cpu_s()
        work()
        return other_cpu_share(
            MeasuredStretch(since(counters_before, sampler.read()), OwnUse(cpu_s=ended_cpu_s() - own_s))
        )


def _rounds(
    probe: Probe, plan: tuple[list[PeakOrder], int, int], gathered: _Found, report: Callable[[str], None]
) -> None:
    orders, seed, rounds = plan
    for turn in range(rounds):
        Random(f"{seed}:{turn}").shuffle(orders)
        for number, order in enumerate(orders, start=1):
            name = f"{order.settings.backend} on {order.settings.device}, threads {order.settings.threads}"
            report(f"round {turn + 1} of {rounds}, {number} of {len(orders)}: {name}")
            _ask(probe, replace(order, seed=seed + turn), gathered)


def order_for(settings: Settings, effort: Effort) -> PeakOrder:
    """Return the order for a process with these settings."""
    on_cpu = settings.device == "cpu"
    return PeakOrder(
        settings=settings,
        precisions=[] if settings.backend == HOST else PRECISIONS[settings.device],
        kernels=KERNELS if not on_cpu or settings.backend == HOST or TABLE[settings.backend].kernels_on_cpu else [],
        sizes=list(effort.sizes),
        array_bytes=effort.array_bytes,
        least_calls=effort.least_calls,
        window_s=effort.window_s,
        seed=0,
        cpus=allowed_cpus(settings) if on_cpu else None,
    )


def _orders(probe: Probe, subject: PeaksSubject, effort: Effort) -> Iterable[PeakOrder]:
    all_cpus = subject.machine.logical_cpus
    backends = [name for name in TRAINING_BACKENDS if not probe.missing(name)]
    for count in sorted({*subject.threads, 1, all_cpus}):
        threads: int | str = "all" if count >= all_cpus else count
        for backend in (*backends, HOST):
            yield order_for(probe_settings(backend, "cpu", threads), effort)
    if subject.machine.gpus:
        free_bytes = subject.gpu.free_memory_bytes if subject.gpu else None
        for backend in backends:
            yield replace(order_for(probe_settings(backend, "gpu"), effort), device_free_bytes=free_bytes)


def _ask(probe: Probe, order: PeakOrder, gathered: _Found) -> None:
    place = f"{order.settings.backend} {order.settings.device}"
    try:
        answer = decode(PeakAnswer, probe.ask(MODULE, order, order.settings, TIMEOUT_S), "answer")
    except (ProbeFailed, CodecError) as error:
        gathered.refused[place] = str(error)
        return
    gathered.refused.update({f"{place} {measurement}": why for measurement, why in answer.refused.items()})
    gathered.notes.update({f"{place} {measurement}": note for measurement, note in answer.notes.items()})
    gathered.versions.update(answer.versions)
    gathered.cache_bytes = answer.cache_bytes or gathered.cache_bytes
    if answer.device is not None and answer.device.model:
        gathered.devices[answer.device.platform] = answer.device.model
    for gemm in answer.gemms:
        key = (gemm.backend, gemm.device, gemm.precision, gemm.threads, gemm.size)
        timed_before = earlier_gemm.flop_per_s if (earlier_gemm := gathered.gemms.get(key)) else None
        gathered.gemms[key] = replace(gemm, flop_per_s=_joined(timed_before, gemm.flop_per_s))
    for stream in answer.streams:
        key = (stream.by, stream.device, stream.kernel, stream.threads, stream.array_bytes)
        timed_before = previous_stream.byte_per_s if (previous_stream := gathered.streams.get(key)) else None
        gathered.streams[key] = replace(stream, byte_per_s=_joined(timed_before, stream.byte_per_s))


def _joined(timed_before: Timed | None, timed: Timed) -> Timed:
    """Return the calls of a new process with those of the earlier ones."""
    return Timed(timed_before.rates + timed.rates, timed_before.processes + timed.processes) if timed_before else timed

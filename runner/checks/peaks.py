"""Measuring a machine's peaks: rounds of child processes, one a backend and number of CPUs, in random order.

Within a round every backend has its turn in a fresh process, so that a slow spell of the machine falls on all of them;
a peak is the best of all calls of all rounds, and its median stands beside it.
"""

from __future__ import annotations

import os
import secrets
from collections.abc import Callable, Iterable
from dataclasses import dataclass, replace
from datetime import datetime
from random import Random
from typing import TypeVar

from keras_matrix.analysis.surroundings.disturbance import OwnUse, Watched, other_cpu_share
from keras_matrix.records.backends import BACKENDS, TABLE
from keras_matrix.records.codec import CodecError, decode
from keras_matrix.records.instruments.peaks import (
    PEAKS_VERSION,
    Gemm,
    PeakAnswer,
    PeakOrder,
    Peaks,
    Stream,
    Timed,
    fingerprint,
)
from keras_matrix.records.schema import Machine
from keras_matrix.records.settings import Settings
from keras_matrix.runner.errors import InfrastructureError
from keras_matrix.runner.executors.probe import Probe, ProbeFailed
from keras_matrix.runner.executors.supervise.environment import allowed_cpus
from keras_matrix.runner.host.gpus.identity import GpuIdentity
from keras_matrix.runner.host.surroundings.counters import Sampler, since
from keras_matrix.runner.host.surroundings.self_usage import ended_cpu_s
from keras_matrix.runner.matrix.grammar import SETTINGS

MODULE = "keras_matrix.runner.cell.peaks"
HOST = "numpy"
PRECISIONS = {
    "cpu": ["float32", "bfloat16", "float64"],
    "gpu": ["float32", "tf32", "bfloat16", "float16", "float64"],
}
KERNELS = ["copy", "triad"]
TIMEOUT_S = 300.0
ROUNDS = 3

Key = tuple[str, str, str, int, int]
Kind = TypeVar("Kind", Gemm, Stream)


@dataclass(frozen=True, slots=True)
class Effort:
    """How hard to look. Empty `sizes` and None let each process find what keeps the machine busy."""

    rounds: int = ROUNDS
    sizes: tuple[int, ...] = ()
    array_bytes: int | None = None
    least_calls: int = 5
    window_s: float = 0.3


@dataclass(frozen=True, slots=True)
class Subject:
    """What is measured and when: this machine with these versions, on these numbers of CPUs, and its first GPU."""

    machine: Machine
    versions: dict[str, str]
    threads: tuple[int, ...]
    now: datetime
    gpu: GpuIdentity | None = None


@dataclass(slots=True)
class _Found:
    """What the processes answered so far."""

    gemms: dict[Key, Gemm]
    streams: dict[Key, Stream]
    refused: dict[str, str]
    devices: dict[str, str]
    versions: dict[str, str]
    notes: dict[str, str]
    cache_bytes: int | None = None


def measure(
    probe: Probe, subject: Subject, effort: Effort = Effort(), told: Callable[[str], None] = lambda line: None
) -> Peaks:
    """Measure and return the peaks. Raises `InfrastructureError` where no process gave a single figure.

    `told` hears a line as each process begins.
    """
    seed = secrets.randbits(32)
    pieces = list(_pieces(probe, subject, effort))
    found = _Found({}, {}, {f"{name} cpu": why for name in BACKENDS if (why := probe.missing(name))}, {}, {}, {})
    load_before = os.getloadavg()[0]
    others = _watched(lambda: _rounds(probe, (pieces, seed, effort.rounds), found, told))
    if not found.gemms and not found.streams:
        reasons = "; ".join(f"{what}: {why}" for what, why in sorted(found.refused.items()))
        raise InfrastructureError(f"peaks: nothing could be timed: {reasons}")
    return Peaks(
        version=PEAKS_VERSION,
        fingerprint=fingerprint(subject.machine, subject.versions),
        measured_at=subject.now.isoformat(timespec="seconds"),
        machine=subject.machine,
        versions=subject.versions | found.versions,
        rounds=effort.rounds,
        order_seed=seed,
        gemms=list(found.gemms.values()),
        streams=list(found.streams.values()),
        refused=found.refused,
        devices=_devices(found, subject),
        cache_bytes=found.cache_bytes,
        notes=found.notes,
        gpu_uuid=subject.gpu.uuid if subject.gpu else None,
        load_before=load_before,
        other_cpu_share=others,
    )


def _devices(found: _Found, subject: Subject) -> dict[str, str]:
    """Return the devices' product names, a GPU's as NVML spells it: backends may leave out that it is a MIG device."""
    product = subject.gpu.product if subject.gpu else None
    return found.devices | ({"gpu": product} if product and "gpu" in found.devices else {})


def _watched(work: Callable[[], None]) -> float | None:
    """Do the work, whose processes end with it; return the share of the CPUs that others used meanwhile."""
    with Sampler(os.sched_getaffinity(0)) as sampler:
        before, own_s = sampler.read(), ended_cpu_s()
        work()
        return other_cpu_share(Watched(since(before, sampler.read()), OwnUse(cpu_s=ended_cpu_s() - own_s)))


def _rounds(probe: Probe, asked: tuple[list[PeakOrder], int, int], found: _Found, told: Callable[[str], None]) -> None:
    pieces, seed, rounds = asked
    for turn in range(rounds):
        Random(f"{seed}:{turn}").shuffle(pieces)
        for number, piece in enumerate(pieces):
            told(f"round {turn + 1} of {rounds}, {number + 1} of {len(pieces)}: {_name(piece)}")
            _ask(probe, replace(piece, seed=seed + turn), found)


def probe_settings(backend: str, device: str = "cpu", threads: int | str = "all") -> Settings:
    """Return the settings of a cell that would run under this backend, device and number of threads."""
    usual = {name: rule.default for name, rule in SETTINGS.items() if rule.default is not None}
    asked = {"backend": backend, "device": device, "threads": threads, "batch_size": 1, "samples": 1}
    return Settings(workload="peaks", params={}, **(usual | asked))  # type: ignore[arg-type]


def order_for(settings: Settings, effort: Effort) -> PeakOrder:
    """Return what a process under these settings is to time."""
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


def _pieces(probe: Probe, subject: Subject, effort: Effort) -> Iterable[PeakOrder]:
    everything = subject.machine.logical_cpus
    backends = [name for name in BACKENDS if not probe.missing(name)]
    for count in sorted({*subject.threads, 1, everything}):
        threads: int | str = "all" if count >= everything else count
        for backend in (*backends, HOST):
            yield order_for(probe_settings(backend, "cpu", threads), effort)
    if subject.machine.gpus:
        free_bytes = subject.gpu.free_memory_bytes if subject.gpu else None
        for backend in backends:
            yield replace(order_for(probe_settings(backend, "gpu"), effort), device_free_bytes=free_bytes)


def _name(piece: PeakOrder) -> str:
    settings = piece.settings
    return f"{settings.backend} on {settings.device}, threads {settings.threads}"


def _ask(probe: Probe, piece: PeakOrder, found: _Found) -> None:
    where = f"{piece.settings.backend} {piece.settings.device}"
    try:
        answer = decode(PeakAnswer, probe.ask(MODULE, piece, piece.settings, TIMEOUT_S), "answer")
    except (ProbeFailed, CodecError) as error:
        found.refused[where] = str(error)
        return
    found.refused.update({f"{where} {what}": why for what, why in answer.refused.items()})
    found.notes.update({f"{where} {what}": note for what, note in answer.notes.items()})
    found.versions.update(answer.versions)
    found.cache_bytes = answer.cache_bytes or found.cache_bytes
    if answer.device is not None and answer.device.model:
        found.devices[answer.device.platform] = answer.device.model
    for gemm in answer.gemms:
        key = (gemm.backend, gemm.device, gemm.precision, gemm.threads, gemm.size)
        found.gemms[key] = _with_calls(gemm, found.gemms.get(key))
    for stream in answer.streams:
        key = (stream.by, stream.device, stream.kernel, stream.threads, stream.array_bytes)
        found.streams[key] = _with_calls(stream, found.streams.get(key))


def _with_calls(new: Kind, before: Kind | None) -> Kind:
    """Return what a new process timed, with the calls of those before it."""
    if isinstance(new, Gemm):
        return replace(new, flop_per_s=_joined(before.flop_per_s if before else None, new.flop_per_s))
    return replace(new, byte_per_s=_joined(before.byte_per_s if before else None, new.byte_per_s))


def _joined(before: Timed | None, now: Timed) -> Timed:
    if before is None:
        return now
    return Timed(before.rates + now.rates, before.processes + now.processes)

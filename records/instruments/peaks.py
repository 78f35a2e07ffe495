"""The measured peaks of a machine, for matrix products and memory traffic, and their file.

    results/peaks/<fingerprint>.json     one measurement; a new one replaces it

The fingerprint identifies the machine and the libraries whose kernels were timed, so that new hardware or versions are
measured again. Every timed call is stored; best and median are computed from all of them.
"""

from __future__ import annotations

import contextlib
import hashlib
import statistics
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from keras_matrix.records.backends import TABLE
from keras_matrix.records.codec import CodecError, canonical, decode, dumps
from keras_matrix.records.files import read_json
from keras_matrix.records.schema import DeviceProof, Machine
from keras_matrix.records.settings import Settings
from keras_matrix.records.store import put
from keras_matrix.records.store_failure import StoreFailure

PEAKS_VERSION = 1
# Libraries whose kernels are timed. Keras is not among them: matrix products bypass it.
LIBRARIES = (
    *dict.fromkeys(name for backend in TABLE.values() for name in (backend.name, backend.cpu_package)),
    "numpy",
)


@dataclass(frozen=True, slots=True)
class Timed:
    """Rates in FLOP/s or byte/s over `processes` processes: of single calls, on an accelerator of series of calls."""

    rates: list[float]
    processes: int

    @property
    def best(self) -> float:
        """Return the highest measured rate."""
        return max(self.rates)

    @property
    def median(self) -> float:
        """Return the median rate; far below the best if other processes used the machine."""
        return statistics.median(self.rates)


@dataclass(frozen=True, slots=True)
class Gemm:
    """C = A B of square matrices with `size` rows: 2 size^3 FLOPs. `precision` applies to A, B and C."""

    backend: str
    device: str
    precision: str
    threads: int
    size: int
    flop_per_s: Timed


@dataclass(frozen=True, slots=True)
class Stream:
    """STREAM's copy (c = a, 16 bytes an element) or triad (a = b + s c, 24 bytes) over float64 arrays."""

    by: str
    device: str
    kernel: str
    threads: int
    array_bytes: int
    byte_per_s: Timed


@dataclass(frozen=True, slots=True)
class PeakOrder:
    """The measurements of one process: products in these precisions, memory traffic of these kernels.

    `settings` are backend, device and threads, as for a cell; `backend` "numpy" is the host without a backend. With
    empty `sizes` the process chooses a size that keeps the device busy, with `array_bytes` None one by the caches.
    `device_free_bytes` is an accelerator's free memory as reported by its driver; None if unknown.
    """

    settings: Settings
    precisions: list[str]
    kernels: list[str]
    sizes: list[int]
    array_bytes: int | None
    least_calls: int
    window_s: float
    seed: int
    cpus: list[int] | None = None
    device_free_bytes: int | None = None


@dataclass(frozen=True, slots=True)
class PeakAnswer:
    """The measurements of one process; `refused` has reasons by precision or kernel, `notes` the limits of a figure."""

    gemms: list[Gemm]
    streams: list[Stream]
    refused: dict[str, str]
    versions: dict[str, str]
    device: DeviceProof | None = None
    cache_bytes: int | None = None
    notes: dict[str, str] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class Peaks:
    """One measurement of one machine. `refused` maps `backend precision` to the reason for a missing figure.

    `notes` likewise maps to the limits of a figure; `gpu_uuid` is the GPU that was timed, None if NVML did not say.
    """

    version: int
    fingerprint: str
    measured_at: str
    machine: Machine
    versions: dict[str, str]
    rounds: int
    order_seed: int
    gemms: list[Gemm]
    streams: list[Stream]
    refused: dict[str, str] = field(default_factory=dict)
    devices: dict[str, str] = field(default_factory=dict)
    cache_bytes: int | None = None
    notes: dict[str, str] = field(default_factory=dict)
    gpu_uuid: str | None = None
    load_before: float | None = None
    other_cpu_share: float | None = None


@dataclass(frozen=True, slots=True)
class StoredPeaks:
    """The stored peaks of a run's machine and versions, and of a GPU those of other images in this results folder."""

    own: Peaks
    others: tuple[Peaks, ...] = ()


def fingerprint(machine: Machine, versions: Mapping[str, str]) -> str:
    """Return the name of this machine's peaks: 16 hex digits.

    A hash of host, CPU model, CPUs that the runner may use, GPUs, and the versions of `LIBRARIES`.
    """
    libraries = {name: versions[name] for name in LIBRARIES if name in versions}
    identity = [machine.host_id, machine.cpu_model, machine.logical_cpus, machine.gpus, libraries]
    return hashlib.sha256(canonical(identity).encode(errors="surrogatepass")).hexdigest()[:16]


def fingerprint_of(about: Mapping[str, Any]) -> str | None:
    """Return the fingerprint of the machine and versions in a `run.json`, or None."""
    versions = about.get("versions")
    try:
        machine = decode(Machine, about.get("machine"), "machine")
    except CodecError:
        return None
    return fingerprint(machine, versions) if isinstance(versions, dict) else None


def path_of(results: Path, name: str) -> Path:
    """Return the path of a fingerprint's peaks."""
    return results / "peaks" / f"{name}.json"


def stored(results: Path, about: Mapping[str, Any]) -> StoredPeaks | None:
    """Return the peaks of the machine and versions in a `run.json`, or None. Raises `StoreFailure`."""
    name = fingerprint_of(about)
    peaks = read(results, name) if name else None
    if peaks is None:
        return None
    of_gpu = any(gemm.device != "cpu" for gemm in peaks.gemms)  # other images measure the same GPU
    return StoredPeaks(peaks, tuple(read_others(results, peaks.fingerprint)) if of_gpu else ())


def read(results: Path, name: str) -> Peaks | None:
    """Return the peaks of a fingerprint, None if they were not measured. Raises `StoreFailure`."""
    path = path_of(results, name)
    try:
        return in_file(path)
    except FileNotFoundError:
        return None
    except (OSError, CodecError) as error:
        raise StoreFailure(f"{path}: cannot be used: {error}; remove it, or measure again with --measure") from error


def read_others(results: Path, name: str) -> list[Peaks]:
    """Return the peaks of other fingerprints; files that cannot be read are omitted."""
    other_peaks = []
    for path in sorted((results / "peaks").glob("*.json")):
        with contextlib.suppress(OSError, CodecError):
            if path != path_of(results, name):
                other_peaks.append(in_file(path))
    return other_peaks


def in_file(path: Path) -> Peaks:
    """Return the peaks in a file. Raises OSError, and `CodecError` also for another version or without a rate."""
    peaks = decode(Peaks, read_json(path.absolute(), root=path.absolute().parent.parent), "peaks")
    if peaks.version != PEAKS_VERSION:
        raise CodecError(f"version must be {PEAKS_VERSION}, got {peaks.version}")
    for timed in (*(gemm.flop_per_s for gemm in peaks.gemms), *(stream.byte_per_s for stream in peaks.streams)):
        if min(timed.rates, default=0.0) <= 0:
            raise CodecError(f"rates must be positive numbers, at least one, got {timed.rates[:3]}")
    return peaks


def keep(results: Path, peaks: Peaks) -> Path:
    """Store the peaks atomically, replacing an older measurement. Raises `StoreFailure`."""
    path = path_of(results, peaks.fingerprint)
    put(path, dumps(peaks))
    return path

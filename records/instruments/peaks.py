"""What a machine can do at its best, as measured: matrix products and memory traffic; and the file that keeps it.

    results/peaks/<fingerprint>.json     one measurement; a new one takes its place whole

The fingerprint names the machine and the libraries whose kernels were timed, so that new hardware or a new version is
measured anew. Every timed call is kept: best and median follow from them, none is dropped.
"""

from __future__ import annotations

import contextlib
import hashlib
import statistics
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path

from keras_matrix.records import files
from keras_matrix.records.backends import TABLE
from keras_matrix.records.codec import CodecError, canonical, decode, dumps, loads
from keras_matrix.records.schema import DeviceProof, Machine
from keras_matrix.records.settings import Settings
from keras_matrix.records.store import StoreFailure

PEAKS_VERSION = 1
# Whose kernels a peak times. Keras is not among them: a matrix product goes past it.
LIBRARIES = (*dict.fromkeys(name for one in TABLE.values() for name in (one.name, one.cpu_package)), "numpy")


@dataclass(frozen=True, slots=True)
class Timed:
    """Rates in FLOP/s or byte/s over `processes` processes: of single calls, on an accelerator of stretches."""

    rates: list[float]
    processes: int

    @property
    def best(self) -> float:
        """Return the highest rate: what the machine was seen to reach."""
        return max(self.rates)

    @property
    def median(self) -> float:
        """Return the middle rate; far below the best where others used the machine."""
        return statistics.median(self.rates)


@dataclass(frozen=True, slots=True)
class Gemm:
    """C = A B of square matrices with `size` rows: 2 size^3 FLOPs. `precision` is that of A, B and C."""

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
    """What one process is to time: products in these precisions, memory traffic of these kernels. Durations in seconds.

    `settings` names backend, device and threads, as for a cell; `backend` "numpy" is the host without one. Empty
    `sizes` let the process find a size that keeps the device busy; `array_bytes` None lets it follow the caches.
    `device_free_bytes` is an accelerator's free memory as its driver reports it; None if that is not known.
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
    """What one process timed; `refused` says, per precision or kernel, why it was not, `notes` what limits a figure."""

    gemms: list[Gemm]
    streams: list[Stream]
    refused: dict[str, str]
    versions: dict[str, str]
    device: DeviceProof | None = None
    cache_bytes: int | None = None
    notes: dict[str, str] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class Peaks:
    """One measurement of one machine. `refused` maps `backend precision` to why there is no figure.

    `notes` maps the same to what limits a figure; `gpu_uuid` is the GPU that was timed, None if NVML did not say.
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


def fingerprint(machine: Machine, versions: Mapping[str, str]) -> str:
    """Return the name under which this machine's peaks are kept: 16 hex digits.

    It follows from host, CPU model, CPUs the runner may use, GPUs, and the versions of `LIBRARIES`.
    """
    libraries = {name: versions[name] for name in LIBRARIES if name in versions}
    identity = [machine.host_id, machine.cpu_model, machine.logical_cpus, machine.gpus, libraries]
    return hashlib.sha256(canonical(identity).encode()).hexdigest()[:16]


def path_of(results: Path, name: str) -> Path:
    """Return where the peaks of a fingerprint lie."""
    return results / "peaks" / f"{name}.json"


def read(results: Path, name: str) -> Peaks | None:
    """Return the peaks kept under a fingerprint, None where there are none. Raises `StoreFailure`."""
    path = path_of(results, name)
    try:
        return decode(Peaks, loads(path.read_bytes()), "peaks")
    except FileNotFoundError:
        return None
    except (OSError, CodecError) as error:
        raise StoreFailure(f"{path}: cannot be used: {error}; remove it, or measure again with --measure") from error


def read_others(results: Path, name: str) -> list[Peaks]:
    """Return the peaks kept under other fingerprints; a file that cannot be read is left out."""
    found = []
    for path in sorted((results / "peaks").glob("*.json")):
        with contextlib.suppress(OSError, CodecError):
            if path != path_of(results, name):
                found.append(decode(Peaks, loads(path.read_bytes()), "peaks"))
    return found


def keep(results: Path, peaks: Peaks) -> Path:
    """Put the peaks in their place, whole or not at all, over an older measurement. Raises `StoreFailure`."""
    path = path_of(results, peaks.fingerprint)
    put(path, dumps(peaks))
    return path


def put(path: Path, text: str) -> None:
    """Write a text so that a reader sees the old file or the new one, the new one once this returns.

    Raises `StoreFailure`.
    """
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        files.replace(path, text)
    except OSError as error:
        raise StoreFailure(
            f"{path}: cannot be written: {error.strerror or error}; choose a writable folder with --results"
        ) from error

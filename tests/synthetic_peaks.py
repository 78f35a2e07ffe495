"""A machine's peaks as a quiet measurement would give them: torch float32 at half speed, as on AMD processors."""

from __future__ import annotations

from typing import Any

from keras_matrix.records.instruments.peaks import PEAKS_VERSION, Gemm, Peaks, Stream, Timed, fingerprint
from keras_matrix.records.schema import Machine
from tests.conftest import MACHINE

GIGA = 1e9
FLOAT32 = {"tensorflow": 400.0, "jax": 398.0, "torch": 199.0}
BFLOAT16 = {"tensorflow": 770.0, "jax": 392.0, "torch": 945.0}
VERSIONS = {"jax": "0.10.2", "torch": "2.13.0", "tensorflow-cpu": "2.21.0", "numpy": "2.4.6"}


def timed(best: float) -> Timed:
    return Timed([best * share for share in (0.9, 1.0, 0.95)], 3)


def gemm(backend: str, precision: str, giga: float, threads: int = 2, size: int = 2048, device: str = "cpu") -> Gemm:
    return Gemm(backend, device, precision, threads, size, timed(giga * GIGA))


def stream(by: str, kernel: str, giga: float, threads: int = 2, device: str = "cpu") -> Stream:
    return Stream(by, device, kernel, threads, 128 << 20, timed(giga * GIGA))


def make_peaks(machine: Machine = MACHINE, **changes: Any) -> Peaks:
    gemms = [gemm(name, "float32", rate) for name, rate in FLOAT32.items()]
    gemms += [gemm(name, "bfloat16", rate) for name, rate in BFLOAT16.items()]
    gemms += [gemm(name, "float32", rate / 2, threads=1) for name, rate in FLOAT32.items()]
    gemms += [gemm("jax", "float32", 300.0, size=1024)]
    given: dict[str, Any] = {
        "version": PEAKS_VERSION,
        "fingerprint": fingerprint(machine, VERSIONS),
        "measured_at": "2026-01-01T00:00:00+00:00",
        "machine": machine,
        "versions": VERSIONS,
        "rounds": 3,
        "order_seed": 1,
        "gemms": gemms,
        "streams": [
            stream("numpy", "triad", 18.0),
            stream("jax", "triad", 20.0),
            stream("jax", "copy", 24.0),
            stream("jax", "triad", 15.0, threads=1),
        ],
        "cache_bytes": 32 << 20,
        "other_cpu_share": 0.01,
    }
    return Peaks(**(given | changes))

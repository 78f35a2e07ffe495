"""Synthetic records of the three backends on one A100, as cells would write them: no GPU was available.

Step times are plausible and not measured. Precisions are each backend's defaults, FLOPs those of the catalogue.
"""

from __future__ import annotations

import random
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from keras_matrix.records.backends import TRAINING_BACKENDS
from keras_matrix.records.codec import to_json
from keras_matrix.records.fc.spec import FcProblem
from keras_matrix.records.instruments import peaks
from keras_matrix.records.instruments.peaks import fingerprint
from keras_matrix.records.instruments.usage import MemoryUse, PowerUse, ShareUse, Usage
from keras_matrix.records.schema import (
    DeviceProof,
    GpuEpochs,
    Learning,
    Machine,
    Memory,
    Record,
    Resolved,
    Status,
    Surroundings,
    Times,
)
from keras_matrix.records.settings import Settings
from keras_matrix.records.store import Run
from keras_matrix.runner.service.stored import Findings, update_findings
from tests.conftest import MACHINE, make_record, make_settings
from tests.sessions import run_name, store_session
from tests.synthetic_fc import fc_records
from tests.synthetic_peaks import gemm, make_peaks, stream

A100 = "NVIDIA A100-SXM4-40GB"
GPU_MACHINE = replace(MACHINE, logical_cpus=12, gpus=[A100], gpu_driver="580.95.05")
DEVICES = {"tensorflow": "GPU:0", "jax": "cuda:0", "torch": "cuda:0"}
PACKAGES = {"tensorflow": "2.21.0", "jax": "0.10.2", "torch": "2.13.0"}
REPEATS = 5
EPOCHS = 3
STEPS = 64
MEAN_POWER_W = 240.0
# How much longer a float32 step is taken to last without TF32.
WITHOUT_TF32 = 3.5
# As shipped: PyTorch uses TF32 in cuDNN's operations and not in matrix products.
SHIPPED = {
    "tensorflow": {"tf32": True, "tf32_matmul": True, "tf32_convolution": True, "tf32_rnn": True},
    "jax": {"tf32": True, "tf32_matmul": True, "tf32_convolution": True, "tf32_rnn": True},
    "torch": {"tf32": True, "tf32_matmul": False, "tf32_convolution": True, "tf32_rnn": True},
}
MATCHED = {"tf32": False, "tf32_matmul": False, "tf32_convolution": False, "tf32_rnn": False}


@dataclass(frozen=True)
class GpuWork:
    """A workload with its step time on each backend, in the order of `TRAINING_BACKENDS`, and its operations."""

    workload: str
    step_times_s: tuple[float, float, float]
    flops_per_batch: int
    operations: tuple[str, ...]
    settings: dict[str, Any] = field(default_factory=dict)


SPANS = {"tensorflow": "measured_epochs", "jax": "process", "torch": "measured_epochs"}
WORKS = (
    GpuWork("lstm", (0.00092, 0.00061, 0.00124), 32 * 7_715_840, ("matmul", "rnn")),
    GpuWork("gru", (0.00101, 0.00094, 0.00131), 32 * 710_400, ("matmul", "rnn")),
    GpuWork(
        "cifar10_cnn",
        (0.00131, 0.00082, 0.00171),
        32 * 9_000_000,
        ("convolution", "matmul"),
        {"params": {"image_size": 16}},
    ),
    GpuWork("bert", (0.00112, 0.00071, 0.00164), 16 * 117_473_792, (), {"phase": "predict", "batch_size": 16}),
    GpuWork("resnet50", (0.0392, 0.0331, 0.0405), 64 * 7_700_000_000, ("convolution", "matmul"), {"batch_size": 64}),
    GpuWork(
        "resnet50",
        (0.0243, 0.0198, 0.0261),
        64 * 7_700_000_000,
        ("convolution", "matmul"),
        {"batch_size": 64, "precision": "mixed_bfloat16"},
    ),
)


def gpu_records(league: str = "as_shipped") -> list[Record]:
    """Return the records of every work on every backend, and of FC on one worker and on two, which need two GPUs."""
    cells = [(work, backend) for work in WORKS for backend in TRAINING_BACKENDS]
    measured = [_record(work, backend, repeat, league) for work, backend in cells for repeat in range(REPEATS)]
    return [*measured, *(record for backend in TRAINING_BACKENDS for record in _fc(backend, league))]


def gpu_run(root: Path, league: str = "as_shipped", night: int = 0) -> tuple[Run, Findings]:
    """Store a run of these records with the GPU's peaks and its findings; return both."""
    root.mkdir(parents=True, exist_ok=True)
    peaks.keep(root, gpu_peaks())
    folder = store_session(
        root,
        run_name(night),
        gpu_records(league),
        planned=len(gpu_records(league)),
        machine=to_json(GPU_MACHINE),
        versions=PACKAGES,
        matrix_path="matrix.yaml",
        started_at="2026-01-01T02:00:00+00:00",
    )
    run = Run(folder)
    return run, update_findings(run)


def gpu_peaks(machine: Machine = GPU_MACHINE) -> peaks.Peaks:
    """Return peaks of an A100 near what its data sheet states: 19.5, 156 and 312 TFLOP/s, 1.555 TB/s."""
    rates = {"float32": 18_500.0, "tf32": 131_000.0, "bfloat16": 262_000.0}
    gemms = [gemm(name, p, rate, 12, 8192, "gpu") for name in TRAINING_BACKENDS for p, rate in rates.items()]
    return make_peaks(
        machine,
        versions=PACKAGES,
        fingerprint=fingerprint(machine, PACKAGES),
        gemms=gemms,
        streams=[stream("jax", "triad", 1_390.0, 12, "gpu"), stream("jax", "copy", 1_360.0, 12, "gpu")],
        devices={"gpu": A100},
    )


def _record(work: GpuWork, backend: str, repeat: int, league: str) -> Record:
    noise = random.Random(f"{work.workload}/{work.settings}/{backend}/{repeat}")
    step_s = work.step_times_s[TRAINING_BACKENDS.index(backend)] * noise.lognormvariate(0, 0.004)
    settings = make_settings(backend=backend, workload=work.workload, device="gpu", league=league, **work.settings)
    if league == "matched" and settings.precision == "float32":
        step_s *= WITHOUT_TF32
    return make_record(
        step_s,
        repeat,
        settings=settings,
        resolved=_resolved(work, settings),
        **_seen(settings, step_s, noise),
    )


def _resolved(work: GpuWork, settings: Settings) -> Resolved:
    tf32 = MATCHED if settings.league == "matched" else SHIPPED[settings.backend]
    return Resolved(
        steps_per_epoch=STEPS,
        seed_steps_per_epoch=32,
        start="fresh",
        precision=settings.precision,
        jit_compile=settings.league == "matched" or settings.backend != "torch",
        cpus=12,
        image_data_format="channels_last",
        forward_flops=work.flops_per_batch,
        parameters=1_000_000,
        operations=[*work.operations],
        **tf32,
    )


def _seen(settings: Settings, step_s: float, noise: random.Random) -> dict[str, Any]:
    """Return what is seen of any process on the GPU: device, times, memory, power, energy."""
    epoch_s = step_s * STEPS
    power_w = MEAN_POWER_W * noise.lognormvariate(0, 0.01)
    peak_bytes = {"tensorflow": 5 << 30, "jax": 4 << 30, "torch": 3 << 30}[settings.backend]
    return {
        "device": DeviceProof("gpu", DEVICES[settings.backend], 1, A100),
        "times": Times(
            step_time_s=step_s,
            epoch_times_s=[epoch_s] * EPOCHS,
            epoch_time_median_s=epoch_s,
            first_step_time_s=4.0,
            first_epoch_time_s=4.0 + epoch_s,
            samples_per_s=settings.batch_size / step_s,
        ),
        "learning": Learning([2.3, 2.1, 2.0, 1.9]),
        "memory": Memory(3 << 30, peak_bytes, [peak_bytes // 2] * (EPOCHS + 1), SPANS[settings.backend]),
        "usage": _usage(settings, (epoch_s, power_w, peak_bytes)),
        "surroundings": Surroundings(gpu=_epochs(epoch_s, power_w)),
        "machine": GPU_MACHINE,
        "versions": {"keras": "3.15.1", settings.backend: PACKAGES[settings.backend]},
    }


def _usage(settings: Settings, figures: tuple[float, float, int]) -> Usage:
    epoch_s, power_w, peak_bytes = figures
    energy_j = power_w * epoch_s * EPOCHS
    # The driver counts the pools that JAX and TensorFlow reserve.
    reserved = {"tensorflow": 39 << 30, "jax": 30 << 30, "torch": peak_bytes}[settings.backend]
    return Usage(
        span_s=epoch_s * EPOCHS,
        interval_s=0.1,
        host_source="processes",
        host_anonymous=MemoryUse(2.0**31, 2.0**20, 1 << 31, 30, 1 << 31),
        device_memory=MemoryUse(float(reserved), 0.0, reserved, 30, reserved),
        device_utilisation=ShareUse(0.9, 0.05, 0.97, 30),
        device_power=PowerUse(power_w, 5.0, power_w + 12, 30),
        device_average_power_w=power_w,
        device_energy_j=energy_j,
        samples_per_j=settings.batch_size * STEPS * EPOCHS / energy_j,
    )


def _epochs(epoch_s: float, power_w: float) -> GpuEpochs:
    boundaries = EPOCHS + 1
    return GpuEpochs(
        sm_clocks_hz=[1_410_000_000] * boundaries,
        memory_clocks_hz=[1_215_000_000] * boundaries,
        temperatures_c=[48.0] * boundaries,
        powers_w=[power_w] * boundaries,
        throttle_reasons=[""] * boundaries,
        epoch_energies_j=[power_w * epoch_s] * EPOCHS,
        thermal_throttled_times_s=[0.0] * EPOCHS,
        power_throttled_times_s=[0.0] * EPOCHS,
    )


def _fc(backend: str, league: str) -> list[Record]:
    """FC is not probed: its record has the setting of matrix products alone."""
    noise = random.Random(f"fc/{backend}")
    step_s = {"tensorflow": 0.0011, "jax": 0.0009, "torch": 0.0016}[backend]
    times_s = [step_s * noise.lognormvariate(0, 0.004) for _ in range(REPEATS)]
    used = league == "as_shipped" and backend != "torch"
    found = fc_records(FcProblem("fc_data", 1, 2, 512), backend, times_s)
    too_many = fc_records(FcProblem("fc_data", 2, 2, 512), backend, times_s)
    return [
        *(_on_gpu(record, league, used, noise) for record in found),
        *(_unsupported(_on_gpu(record, league, used, noise)) for record in too_many),
    ]


def _on_gpu(record: Record, league: str, tf32: bool, noise: random.Random) -> Record:
    settings = replace(record.settings, device="gpu", league=league)
    assert record.resolved is not None
    assert record.times.step_time_s is not None
    made = make_record(repeat=record.repeat, settings=settings, parallel=record.parallel)
    resolved = replace(record.resolved, start="fresh", cpus=12, tf32=tf32)
    return replace(made, resolved=resolved, **_seen(settings, record.times.step_time_s, noise))


def _unsupported(record: Record) -> Record:
    """As a cell with two workers ends where one GPU is visible."""
    reason = "Unsupported: workers: 2 workers need 2 GPUs, and 1 is visible"
    empty = {"resolved": None, "device": None, "times": Times(), "memory": Memory(), "usage": None, "parallel": None}
    return replace(record, status=Status.UNSUPPORTED, reason=reason, surroundings=Surroundings(), **empty)

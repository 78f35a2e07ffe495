"""Records of Keras workloads on several devices as cells write them, with synthetic step times."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

from keras_matrix.records.backends import TRAINING_BACKENDS
from keras_matrix.records.fc.communication import Communication, TimingMethod
from keras_matrix.records.replicas import Replica, Replicas
from keras_matrix.records.schema import Record, Resolved
from keras_matrix.records.settings import MODEL
from tests.conftest import make_record, make_settings

METHODS = {
    "tensorflow": "tf.distribute.MirroredStrategy",
    "jax": "keras.distribution.DataParallel",
    "torch": "torch.nn.parallel.DistributedDataParallel",
}
BASE_S = {"tensorflow": 0.020, "jax": 0.010, "torch": 0.030}
PARTS = {"tensorflow": 1.1, "jax": 1.25, "torch": 2.6}
DRAWS = "random layers, such as dropout, draw for each replica's rows, so that losses differ from one device"


def replicas_of(backend: str, devices: int, batch_size: int = 32, **changes: Any) -> Replicas:
    """Return what a backend's record has of its devices, with a quarter of a step in communication."""
    communication = Communication(
        TimingMethod.TIMED if backend == "torch" else TimingMethod.PROFILED, [0.02] * 5, [0.015] * 5
    )
    rows = batch_size if changes.get("divided_weights") else batch_size // devices
    found = Replicas(
        METHODS[backend],
        backend != "torch",
        [Replica(f"cpu:{n}", rows, updates=60, samples=32) for n in range(devices)],
        divided_weights=0,
        copied_weights=14,
        gradient_bytes=16 << 20,
        semantics=[] if backend == "jax" else [DRAWS],
        communication=communication,
    )
    return replace(found, **changes)


def device_records(
    devices: int, times_s: Sequence[float], backend: str = "jax", jit: bool = False, **changes: Any
) -> list[Record]:
    """Return one record a repeat, whose steps took so many seconds; changes are of the settings."""
    settings = make_settings(backend=backend, devices=devices, **changes)
    divided = 3 if settings.distribution == MODEL else 0
    replicas = replicas_of(backend, devices, settings.batch_size, divided_weights=divided) if devices > 1 else None
    return [
        make_record(
            seconds,
            repeat,
            settings=settings,
            resolved=Resolved(50, 32, "fork", "float32", jit_compile=jit, cpus=4, parameters=1000),
            versions={"keras": "3.15.1"},
            replicas=replicas,
        )
        for repeat, seconds in enumerate(times_s)
    ]


def scaled_run(repeats: int = 5, counts: Sequence[int] = (1, 2, 4), **changes: Any) -> list[Record]:
    """Return a workload on several numbers of devices; N of a backend take `PARTS` / N of the time of one."""
    return [
        record
        for backend in TRAINING_BACKENDS
        for devices in counts
        for record in device_records(devices, _times(backend, devices, repeats), backend, **changes)
    ]


def _times(backend: str, devices: int, repeats: int) -> list[float]:
    """Return times of which later blocks are slower, with noise within a block."""
    base_s = BASE_S[backend] * (PARTS[backend] / devices if devices > 1 else 1.0)
    return [base_s * (1 + 0.01 * block) * (1 + 0.01 * ((block * devices) % 3 - 1)) for block in range(repeats)]

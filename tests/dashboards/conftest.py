"""A synthetic run: six workloads on three backends, five processes each, with all statuses of a cell."""

from __future__ import annotations

import functools
import random
import statistics
from collections.abc import Callable
from dataclasses import dataclass, replace
from itertools import combinations
from pathlib import Path
from typing import Any

import pytest

from keras_matrix.analysis.comparison.context import RunContext, ShownTrace
from keras_matrix.analysis.comparison.table import Row, table
from keras_matrix.analysis.roofline import roofline
from keras_matrix.analysis.views.result_table import result_table
from keras_matrix.dashboards.report import page as report
from keras_matrix.records.backends import TRAINING_BACKENDS
from keras_matrix.records.identity import cell_id
from keras_matrix.records.instruments.parity import Deviation, Pair, ParityFinding, ParityRecord
from keras_matrix.records.instruments.usage import MemoryUse, Usage, UsageSeries
from keras_matrix.records.schema import (
    DeviceProof,
    Evidence,
    Harness,
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
from keras_matrix.records.traces.table import TimeShare
from tests.conftest import make_settings
from tests.records.traces.synthetic import TABLE

HOSTILE = "<img src=x onerror=alert(1)></script><script>alert(2)</script>"
REPEATS = 5
KEPT_EPOCHS = 3


@dataclass(frozen=True)
class Work:
    """A workload with the simulated step time of each backend."""

    name: str
    batch_size: int
    steps: int
    step_time_s: tuple[float, float, float]
    compile_time_s: tuple[float, float, float]
    parameters: int
    noise: float = 0.012
    phase: str = "fit"


WORKS = (
    Work("mnist_mlp", 32, 1024, (0.00112, 0.000487, 0.00131), (0.41, 0.62, 0.05), 669_706),
    Work("cifar10_cnn", 32, 64, (0.0312, 0.0246, 0.0251), (0.72, 1.41, 0.08), 1_250_858),
    Work("mobilenet_v3_small", 16, 8, (0.144, 0.0981, 0.167), (6.8, 9.4, 0.4), 1_529_968),
    Work("transformer_encoder", 8, 16, (0.0711, 0.0702, 0.0488), (2.9, 3.3, 0.2), 4_386_178, noise=0.03),
    Work("vit_tiny", 1, 128, (0.00934, 0.00641, 0.0117), (1.9, 2.2, 0.1), 5_717_416, phase="predict"),
    Work(HOSTILE, 32, 32, (0.0213, 0.0208, 0.0211), (0.5, 0.8, 0.1), 20_480, noise=0.02),
)
MACHINE = Machine(
    host_id="5d41402abc4b2a76",
    cpu_model="Example EX-2470 @ 2.60GHz",
    logical_cpus=2,
    physical_cores=1,
    memory_bytes=8 << 30,
    kernel="6.1.0-28-amd64",
    os="Debian GNU/Linux 12",
    container="docker",
)
VERSIONS = {"tensorflow": ("tensorflow", "2.21.0"), "jax": ("jax", "0.12.1"), "torch": ("torch", "2.13.0")}
VERSIONS_OF = {backend: {"keras": "3.15.0", package: version} for backend, (package, version) in VERSIONS.items()}
MATRIX = """version: 1
backends: [tensorflow, jax, torch]
cells:
  - workload: mnist_mlp
    batch_size: 32
"""
ABOUT: dict[str, object] = {
    "run_id": "20251121T052500Z-5f2e1a",
    "started_at": "2025-11-21T05:25:00Z",
    "command": ["runner", "--matrix", "matrix.yaml"],
    "order_seed": 20251121,
    "matrix_path": "matrix.yaml",
    "matrix_text": MATRIX,
    "planned": 92,
    "start": "fork",
    "versions": {"runner": "0.1.0"},
}


@functools.cache
def cell_of(work: Work, backend: str) -> tuple[Settings, str]:
    """Return the settings of a cell and its id."""
    settings = make_settings(
        backend=backend,
        workload=work.name,
        batch_size=work.batch_size,
        phase=work.phase,
        epochs=KEPT_EPOCHS + 1,
    )
    return settings, cell_id(settings)


def times_of(work: Work, backend: str, noise: random.Random) -> Times:
    slot = TRAINING_BACKENDS.index(backend)
    process = work.step_time_s[slot] * noise.lognormvariate(0, work.noise)
    epochs = [process * work.steps * noise.lognormvariate(0, work.noise / 2) for _ in range(KEPT_EPOCHS)]
    compile_time = work.compile_time_s[slot] * noise.lognormvariate(0, 0.05)
    median = statistics.median(epochs)
    first_step = compile_time * 1.3 + process * 2
    predict = work.phase == "predict"
    return Times(
        import_time_s=1.9,
        build_time_s=0.3,
        trace_time_s=compile_time * 0.22 if backend != "torch" else None,
        compile_time_s=compile_time if backend != "torch" else None,
        first_step_time_s=first_step,
        first_epoch_time_s=first_step + median,
        discarded_epoch_times_s=[first_step + median],
        epoch_times_s=epochs,
        epoch_time_median_s=median,
        epoch_time_mean_s=statistics.fmean(epochs),
        step_time_s=median / work.steps,
        fixed_time_per_epoch_s=None if predict else 0.004 * noise.lognormvariate(0, 0.1),
        short_epoch_steps=None if predict else 32,
        suite_total_time_s=None if predict else process * 32 * KEPT_EPOCHS + 0.012,
        samples_per_s=work.batch_size * work.steps / median,
        steps_per_s=work.steps / median,
        call_time_p50_s=process if predict else None,
        call_time_p99_s=process * 1.7 if predict else None,
        training_time_s=sum(epochs) + first_step + median,
    )


def usage_of(base: int) -> Usage:
    """The usage of a process with this many MiB, half of it anonymous."""
    memory = MemoryUse(base * 2.0**19, 2.0**20, base << 19, 15, (base << 19) + 1000)
    return Usage(5.0, 0.1, "processes", "usage/a.json", memory, memory, [base << 18])


def usage_series_of(records: list[Record]) -> dict[tuple[str, int, int], UsageSeries]:
    """Return a series per record: up to its peak within a second, then level, with a measured epoch at the end."""
    found = {}
    for record in records:
        memory = record.usage.host_anonymous if record.usage else None
        if memory is not None and memory.peak_bytes is not None:
            peak = memory.peak_bytes
            values: list[int | None] = [min(peak, round(peak * tick / 10)) for tick in range(50)]
            found[record.key] = UsageSeries([tick / 10 for tick in range(50)], values, epochs_s=[[3.0, 4.9]])
    return found


def measured(work: Work, backend: str, repeat: int) -> Record:
    noise = random.Random(f"{work.name}/{backend}/{repeat}")
    package, version = VERSIONS[backend]
    settings, name = cell_of(work, backend)
    base = {"tensorflow": 610, "jax": 480, "torch": 420}[backend]
    return Record(
        schema_version=1,
        run_id=str(ABOUT["run_id"]),
        cell_id=name,
        repeat=repeat,
        attempt=0,
        status=Status.OK,
        reason=None,
        warnings=[],
        started_at="2025-11-21T05:26:00Z",
        settings=settings,
        resolved=Resolved(
            steps_per_epoch=work.steps,
            seed_steps_per_epoch=32,
            start="fork",
            precision="float32",
            jit_compile=backend == "jax",
            tf32=None,
            intra_op_threads=2,
            cpus=2,
            image_data_format="channels_first" if backend == "torch" else "channels_last",
            compile_cache_hits=0,
            parameters=work.parameters,
        ),
        device=DeviceProof("cpu", {"tensorflow": "CPU:0", "jax": "TFRT_CPU_0", "torch": "cpu"}[backend], 1),
        times=times_of(work, backend, noise),
        learning=Learning([2.3, 2.1, 2.0, 1.9]),
        memory=Memory(int((base + work.parameters / 3e4 + noise.random() * 12) * 2**20)),
        usage=usage_of(base),
        versions={"python": "3.11.2", "keras": "3.15.0", package: version},
        machine=MACHINE,
        surroundings=Surroundings(0.9 + noise.random(), 1.8, 0.004 * noise.random(), 0.03 * noise.random()),
        evidence=Evidence(exit_code=0),
        harness=Harness(wall_time_s=6.1, start_time_s=0.02, parent_cpu_time_s=0.011),
    )


def failed(record: Record, status: Status, reason: str, evidence: Evidence) -> Record:
    """Return the record of the same attempt with a failure."""
    return replace(
        record,
        status=status,
        reason=reason,
        evidence=evidence,
        times=Times(),
        resolved=None,
        device=None,
        learning=Learning(),
        memory=Memory(),
    )


def unstable(record: Record) -> Record:
    """Return the record with a first measured epoch that was still warming up, and the resulting warnings."""
    first, *later = record.times.epoch_times_s
    reason = (
        "still_warming_up: the first kept epoch took 1.41 times the median of the later ones; set discard one higher"
    )
    busy = "busy: other processes used 14.0 % of the CPU time; stop them"
    times = replace(record.times, epoch_times_s=[first * 1.41, *later])
    return replace(record, status=Status.UNSTABLE, reason=reason, warnings=[reason, busy], times=times)


def synthetic_records() -> list[Record]:
    """Return 91 records: 78 ok, one unstable, four kinds of failure, and a superseded attempt."""
    return [_ended(measured(w, b, r)) for w in WORKS for b in TRAINING_BACKENDS for r in range(REPEATS)] + [
        _first_try()
    ]


def _first_try() -> Record:
    # A superseded first attempt, which must not be counted.
    first = measured(WORKS[0], "jax", 0)
    return failed(first, Status.INFRA, "the fork server ended", Evidence())


def _ended(record: Record) -> Record:
    workload, backend, repeat = record.settings.workload, record.settings.backend, record.repeat
    if (workload, backend, repeat) == ("mnist_mlp", "jax", 0):
        return replace(record, attempt=1)
    if (workload, backend, repeat) == ("cifar10_cnn", "tensorflow", 1):
        return unstable(record)
    if (workload, backend) == ("mobilenet_v3_small", "torch"):
        tail = f"Epoch 1/4\n\x1b[1m1/8\x1b[0m ━━━━ 3s 402ms/step\x08\x08\n{HOSTILE}\n"
        reason = "the time limit passed (timeout_s); the process was ended"
        return failed(record, Status.TIMEOUT, reason, Evidence(signal=9, deadline_exceeded=True, output_tail=tail))
    if (workload, backend) == (HOSTILE, "jax"):
        reason = "Unsupported: the cuDNN layer of this workload has no JAX form"
        return failed(record, Status.UNSUPPORTED, reason, Evidence(exit_code=0, exception="Unsupported"))
    if (workload, backend, repeat) == ("transformer_encoder", "tensorflow", 2):
        reason = "DeviceMismatch: asked for gpu, the tensor is on cpu"
        return failed(record, Status.DEVICE_MISMATCH, reason, Evidence(exit_code=0, exception="DeviceMismatch"))
    return record


# A name as long as those of oneDNN, and one that must be escaped.
LONG, PLAIN = "_MklNativeConv2DBackpropFilterWithBias", TimeShare(HOSTILE, 4, 0.001, 0.2)


def synthetic_context(rows: list[Row]) -> RunContext:
    """Return parity records of three workloads, one explained, and shares of a peak for the measured cells."""
    versions = {backend: dict(VERSIONS_OF[backend]) for backend in TRAINING_BACKENDS}
    pairs = [
        Pair([*two], {"float64": Deviation(loss=4e-12, gradient=3e-9)}) for two in combinations(TRAINING_BACKENDS, 2)
    ]
    cause = ParityFinding("float64", "update", 0.04, 1e-6, explanation="a cause that was found and shown by itself")
    parted = [replace(pair, findings=[cause] if pair.backends == ["tensorflow", "torch"] else []) for pair in pairs]
    parity = [
        ParityRecord(1, name, {}, 8, 20, 0, "2025-11-20", pairs=found, versions=versions)
        for name, found in (("mnist_mlp", pairs), ("cifar10_cnn", parted), ("vit_tiny", pairs))
    ]
    cells = [(row.title, cell) for row in rows for cell in row.cells.values()]
    shares = {
        share.cell_id: replace(share, share_of_peak=0.43, achieved_flop_per_s=215e9, peak_flop_per_s=500e9, note=None)
        if share.step_time_s
        else share
        for share in roofline(cells, {}, None).shares
    }
    usage_series = usage_series_of([record for _, cell in cells for record in cell.records])
    traced = ShownTrace("traces/a/trace.json.gz", replace(TABLE, by_operation=[TimeShare(LONG, 8, 0.004, 0.8), PLAIN]))
    return RunContext(tuple(parity), shares, usage_series=usage_series, traces={cells[0][1].cell_id: traced})


@dataclass(frozen=True)
class SyntheticRun:
    """The arguments of a report, and its page."""

    records: list[Record]
    rows: list[Row]
    html: str
    run_context: RunContext


@pytest.fixture(scope="session")
def synthetic() -> SyntheticRun:
    records = synthetic_records()
    rows = table(records)
    run_context = synthetic_context(rows)
    return SyntheticRun(records, rows, report.render(records, result_table(rows, run_context), ABOUT, 2), run_context)


@pytest.fixture(scope="session")
def about() -> dict[str, object]:
    return dict(ABOUT)


@pytest.fixture(scope="session")
def hostile_name() -> str:
    return HOSTILE


@pytest.fixture
def render_of() -> Callable[..., str]:
    """Return a function from records to a page."""

    def page(records: list[Record], **about: Any) -> str:
        return report.render(records, result_table(table(records)), about)

    return page


if __name__ == "__main__":
    import sys

    everything = synthetic_records()
    found = table(everything)
    report.write(Path(sys.argv[1]), report.render(everything, result_table(found, synthetic_context(found)), ABOUT, 2))

"""`runner --matrix` with GPU cells over the fake driver library: the preflight, and the figures in record and report.

The cells compute on the CPU and claim a GPU (tests/workloads/gpu_stand_in.py); everything outside them is real.
"""

from __future__ import annotations

import re
import stat
import sys
from pathlib import Path
from typing import Any

import pytest

from keras_matrix.records.schema import MEASURED, Record, Status
from keras_matrix.records.store import Results, latest_attempts
from keras_matrix.runner.cli.main import main
from keras_matrix.runner.executors.process.executor import ProcessExecutor
from keras_matrix.runner.executors.supervise import epochs
from tests.gpu.fake_nvml import GPU_IS_LOST, NO_PERMISSION, NOT_SUPPORTED, FakeDriver

pytestmark = [pytest.mark.process, pytest.mark.usefixtures("pynvml", "claiming_cells")]

STAND_IN = Path(__file__).parent.parent / "workloads" / "gpu_stand_in.py"
MATRIX = """\
version: 1
backends: [torch]
defaults: {{device: gpu, repeats: 1, epochs: 3, discard: 1, steps_per_epoch: 200}}
cells:
  - workload: tests.workloads.gpu_stand_in:{workload}
    batch_size: 4
    samples: 8
    params: {params}
"""


@pytest.fixture
def claiming_cells(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Have cells claim to be on a GPU: the runner starts them by a script in place of Python.

    The preflight finds a driver, and the GPU build of PyTorch.
    """
    monkeypatch.setattr("keras_matrix.runner.machine.gpus.readings.DRIVER_FILES", ("/proc/version",))
    monkeypatch.setattr("keras_matrix.runner.executors.preflight.installed", lambda: {"torch": "2.13.0"})
    script = tmp_path / "python"
    script.write_text(
        "#!/bin/sh\n"
        f'if [ "$3" = keras_matrix.runner.cell.entry ]; then exec {sys.executable} -P {STAND_IN} "$4"; fi\n'
        f'exec {sys.executable} "$@"\n'
    )
    script.chmod(script.stat().st_mode | stat.S_IXUSR)
    monkeypatch.setattr(sys, "executable", str(script))
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "0")


@pytest.fixture
def no_process(monkeypatch: pytest.MonkeyPatch) -> None:
    """Fail if a cell's process is started."""

    def start(*_: object) -> None:
        raise AssertionError("a process was started")

    monkeypatch.setattr(ProcessExecutor, "start", start)


def run(tmp_path: Path, workload: str = "well", params: str = "{}") -> tuple[int, Record, Path]:
    """Return the exit code, the record of the last attempt and the results folder."""
    return run_matrix(tmp_path, MATRIX.format(workload=workload, params=params))


def run_matrix(tmp_path: Path, text: str) -> tuple[int, Record, Path]:
    matrix, results = tmp_path / "matrix.yaml", tmp_path / "results"
    matrix.write_text(text)
    code = main(["--matrix", str(matrix), "--results", str(results)])
    (record,) = latest_attempts(Results(results).runs()[-1].load()[0])
    return code, record, results


def report_of(results: Path) -> str:
    page = results.parent / "report.html"
    assert main(["report", "--results", str(results), "--output", str(page)]) == 0
    return re.sub(r"\s+", " ", page.read_text(encoding="utf-8"))


def test_power_memory_and_throttling_are_in_the_record_and_in_the_report(tmp_path: Path, driver: FakeDriver) -> None:
    driver.set(power_w=420, memory_used=60 << 30, power_throttled_share=0.4, throttle_mask=4)
    code, record, results = run(tmp_path)
    assert (code, record.status in MEASURED) == (0, True), record.reason
    gpu, used = record.surroundings.gpu, record.usage
    assert gpu is not None
    assert used is not None
    assert gpu.average_powers_w == [pytest.approx(420.0, rel=0.05)] * 2
    assert (gpu.uuid, gpu.compute_capability, gpu.mig) == ("GPU-00000000-0000-0000-0000-000000000000", "9.0", False)
    assert gpu.throttle_reasons == ["power cap"] * 3
    assert used.device_average_power_w == pytest.approx(420.0, rel=0.05)
    assert used.device_power_source == "instant"
    assert used.device_memory is not None
    assert used.device_memory.peak_bytes == 60 << 30
    assert (record.memory.peak_device_memory_bytes, record.memory.peak_device_memory_span) == (
        640 << 20,
        "measured_epochs",
    )
    assert used.samples_per_j is not None
    assert [one.partition(":")[0] for one in record.warnings if one.startswith("gpu")] == ["gpu_throttled"]
    page = report_of(results)
    for text in (
        "device 640 MiB",
        "memory reserved on the device",
        "60.0 GiB",
        "energy over time",
        "gpu_throttled",
    ):
        assert text in page, text


def test_two_gpus_add_up_and_each_is_recorded(
    tmp_path: Path, driver: FakeDriver, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(epochs, "gpus_if_visible", lambda settings, choice: ("0", "1"))
    driver.set(gpu0={"power_w": 300}, gpu1={"power_w": 100, "memory_used": 20 << 30})
    code, record, _ = run(tmp_path)
    assert (code, record.status in MEASURED) == (0, True), record.reason
    gpu, (other,), used = record.surroundings.gpu, record.surroundings.further_gpus, record.usage
    assert gpu is not None
    assert used is not None
    assert [one.average_powers_w[0] for one in (gpu, other)] == [
        pytest.approx(300.0, rel=0.05),
        pytest.approx(100.0, rel=0.05),
    ]
    assert used.device_average_power_w == pytest.approx(400.0, rel=0.05)
    assert used.devices_memory is not None
    assert (used.devices, used.devices_memory.max_bytes) == (2, 21 << 30)


def test_a_mig_device_with_functions_refused_or_missing_is_measured_with_warnings(
    tmp_path: Path, driver: FakeDriver, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "MIG-b")
    driver.set(gpu0={"mig": 1, "mig_uuids": "MIG-a,MIG-b", "mig_memory_used": 3 << 30})
    driver.refuse("nvmlDeviceGetTotalEnergyConsumption", NO_PERMISSION)
    driver.refuse("nvmlDeviceGetTemperature", NOT_SUPPORTED)
    code, record, results = run(tmp_path)
    assert (code, record.status in MEASURED) == (0, True), record.reason
    gpu, used = record.surroundings.gpu, record.usage
    assert gpu is not None
    assert used is not None
    assert (gpu.uuid, gpu.mig, gpu.temperatures_c, gpu.average_powers_w) == ("MIG-b", True, [None] * 3, [None] * 2)
    assert (used.device_energy_j, used.device_average_power_w) == (None, None)
    assert sorted(one.partition(":")[0] for one in record.warnings if one.startswith("gpu")) == [
        "gpu_mig",
        "gpu_unread",
    ]
    assert "nvmlDeviceGetTotalEnergyConsumption" in report_of(results)


def test_gpu_lost_during_a_cell_is_an_infrastructure_failure(tmp_path: Path, driver: FakeDriver, capsys: Any) -> None:
    driver.set(lost_once_file=tmp_path / "lost")
    code, record, results = run(tmp_path, "losing", f"{{lost: {tmp_path / 'lost'}}}")
    assert (code, record.status) == (3, Status.INFRA)
    assert (record.reason or "").startswith(
        "gpu_lost: not started, as 2 attempts in a row lost their GPU; look for Xid"
    )
    [stored] = Results(results).runs()
    for attempt in stored.load()[0][:2]:
        assert (attempt.reason or "").startswith("GPU lost: NVML says GPU 0: ")
        assert "GPU is lost; look for Xid in the kernel's log (dmesg)" in (attempt.reason or "")


@pytest.mark.usefixtures("no_process")
@pytest.mark.parametrize(
    ("reported", "status", "reason"),
    [
        (
            {"driver": "525.60.13", "cuda": 12000},
            Status.DEVICE_MISMATCH,
            "driver_too_old: torch 2.13.0 needs NVIDIA driver 580 or newer for its CUDA 13, got 525.60.13; update",
        ),
        (
            {"compute_capability": "7.0"},
            Status.UNSUPPORTED,
            "no_gpu_code: torch 2.13.0 has no code for this GPU: GPU 0 (NVIDIA H100 80GB HBM3) has compute",
        ),
        ({"error.nvmlDeviceGetHandleByIndex_v2": GPU_IS_LOST}, Status.INFRA, "gpu_lost: GPU 0: NVML: GPU is lost; see"),
    ],
)
def test_a_gpu_that_cannot_run_the_build_is_refused_without_a_process(
    tmp_path: Path, driver: FakeDriver, reported: dict[str, Any], status: Status, reason: str
) -> None:
    driver.set(**reported)
    code, record, _ = run(tmp_path)
    assert (code, record.status) == ({Status.UNSUPPORTED: 0, Status.INFRA: 3}.get(status, 1), status)
    assert (record.reason or "").startswith(reason)


@pytest.mark.usefixtures("no_process")
@pytest.mark.parametrize(
    ("visible", "reason"),
    [
        ("", "gpu_missing: CUDA_VISIBLE_DEVICES is '': no GPU is visible; unset it or name one"),
        ("7", "gpu_missing: CUDA_VISIBLE_DEVICES is '7': index 7 is out of range: the driver lists 2 GPUs"),
        ("GPU-5", "gpu_missing: CUDA_VISIBLE_DEVICES: 'GPU-5' is the UUID of no GPU here; name one of GPU-0"),
        ("MIG-x", "gpu_missing: CUDA_VISIBLE_DEVICES names GPU 'MIG-x': the driver reports 2 GPUs; set"),
    ],
)
def test_a_gpu_that_is_not_visible_is_a_device_mismatch_without_a_process(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, visible: str, reason: str
) -> None:
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", visible)
    code, record, _ = run(tmp_path)
    assert (code, record.status) == (1, Status.DEVICE_MISMATCH)
    assert (record.reason or "").startswith(reason)


@pytest.mark.usefixtures("no_process")
def test_more_workers_than_visible_gpus_is_unsupported_without_a_process(tmp_path: Path) -> None:
    code, record, _ = run_matrix(
        tmp_path,
        "version: 1\nbackends: [torch]\ndefaults: {device: gpu, repeats: 1}\n"
        "cells:\n  - {workload: fc, mode: fc_data, workers: 2}\n",
    )
    assert (code, record.status) == (0, Status.UNSUPPORTED)
    assert (record.reason or "").startswith("too_few_gpus: workers: must be at most the number of visible GPUs (1: ")


def test_busy_gpu_named_by_a_uuid_prefix_is_measured_with_a_warning(
    tmp_path: Path, driver: FakeDriver, monkeypatch: pytest.MonkeyPatch
) -> None:
    uuid = "GPU-5b7e0000-0000-0000-0000-000000000001"
    driver.set(gpu1={"uuid": uuid, "processes": f"1:{4 << 30}"})
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "GPU-5b7e")
    code, record, _ = run(tmp_path)
    assert (code, record.status in MEASURED) == (0, True), record.reason
    assert record.surroundings.gpu is not None
    assert record.surroundings.gpu.uuid == uuid
    (busy,) = [one for one in record.warnings if one.startswith("gpu_busy")]
    assert busy.startswith("gpu_busy: GPU 1 (NVIDIA H100 80GB HBM3) is in use by ")
    assert busy.endswith("stop it, or choose another GPU with CUDA_VISIBLE_DEVICES")


def test_a_gpu_that_nvml_does_not_open_is_measured_with_one_warning(tmp_path: Path, driver: FakeDriver) -> None:
    driver.refuse("nvmlDeviceGetHandleByIndex_v2", NO_PERMISSION)
    code, record, _ = run(tmp_path)
    assert (code, record.status in MEASURED) == (0, True), record.reason
    assert [one.partition(":")[0] for one in record.warnings if "NVML" in one] == ["nvml_unavailable"]

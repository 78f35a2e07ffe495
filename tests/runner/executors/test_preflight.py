"""The preflight through the command line: refused cells start no process, warnings reach terminal and records."""

from __future__ import annotations

import sys
from collections import Counter
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from keras_matrix.records.host.device_lists import ANY_GPU
from keras_matrix.records.host.procfs import ProcTree
from keras_matrix.records.schema import Status
from keras_matrix.records.store import latest_attempts
from keras_matrix.runner.cell.job import Job
from keras_matrix.runner.cli.main import main
from keras_matrix.runner.executors import Outcome
from keras_matrix.runner.executors import preflight as cells
from keras_matrix.runner.executors.preflight import NO_TOOLKIT, Preflight, preflight_of
from keras_matrix.runner.machine.gpus.readings import DRIVER_FILES
from keras_matrix.runner.machine.preflight import NO_DRIVER, GpuFacts, TpuFacts, read_gpus
from keras_matrix.runner.measure.evidence import GPU_LOST, MOST_LOST
from keras_matrix.runner.measure.seams import Seams
from tests.conftest import make_settings
from tests.fakes.executor import FakeExecutor
from tests.fakes.machine import write
from tests.fakes.pynvml import LOST, FakeGpu, FakePynvml
from tests.sessions import newest_records

MATRIX = """\
version: 1
defaults: {repeats: 1, device: gpu}
backends: [tensorflow, jax, torch]
cells:
  - workload: mnist_mlp
"""
GPU_BUILDS = {"tensorflow": "2.21.0", "jax": "0.10.2", "jax-cuda12-plugin": "0.10.2", "torch": "2.13.0"}
V100 = FakeGpu(name="Tesla V100-SXM2-16GB", capability=(7, 0))
HOPPER = FakeGpu(name="NVIDIA H100 80GB HBM3", capability=(9, 0), persistence=0)


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    monkeypatch.delenv("CUDA_VISIBLE_DEVICES", raising=False)
    (tmp_path / "matrix.yaml").write_text(MATRIX)
    return tmp_path


def preflight(folder: Path, library: FakePynvml, versions: dict[str, str] = GPU_BUILDS) -> Preflight:
    write(folder / "machine", DRIVER_FILES[0], "")
    return Preflight(gpus=read_gpus(["0"], ProcTree(folder / "machine"), library), versions=versions)


def measured(folder: Path, executor: FakeExecutor, checked: Preflight) -> dict[str, tuple[Status, str]]:
    main([], Seams(executor=executor, preflight=checked))
    return {
        record.settings.backend: (record.status, record.reason or "; ".join(record.warnings))
        for record in newest_records(folder)
    }


@pytest.mark.fault("F15", mutation="the preflight lets unsupported cells start", recorded=True)
def test_refused_cell_gets_its_status_and_reason_without_a_process(folder: Path) -> None:
    executor = FakeExecutor()
    found = measured(folder, executor, preflight(folder, FakePynvml(V100)))
    assert {job.settings.backend for job in executor.jobs} == {"tensorflow", "jax"}
    assert found["torch"][0] is Status.UNSUPPORTED
    assert found["torch"][1].startswith("no_gpu_code: torch 2.13.0 has no code for this GPU")
    assert (found["tensorflow"][0], found["jax"][0]) == (Status.OK, Status.OK)


@pytest.mark.fault("F13", mutation="the preflight does not refuse cells")
def test_missing_driver_is_explained_once_and_each_cell_names_it(
    folder: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    found = measured(folder, FakeExecutor(), Preflight(gpus=GpuFacts(driver=None)))
    printed = capsys.readouterr()
    assert {reason for _, reason in found.values()} == {f"gpu_missing: {NO_DRIVER}"}
    assert printed.err.count("no NVIDIA driver is loaded") == 1
    assert "no NVIDIA driver is loaded" not in printed.out
    assert printed.out.count(" #0: device_mismatch: gpu_missing") == 3
    assert printed.out.split().count("gpu_missing") == 6  # a line when it ends, and one below the table
    assert "calibrating" not in printed.out


@pytest.mark.parametrize("arguments", [[], ["--json"]])
def test_search_of_the_largest_batch_explains_a_missing_driver_once(
    folder: Path, capsys: pytest.CaptureFixture[str], arguments: list[str]
) -> None:
    seams = Seams(executor=FakeExecutor(), preflight=Preflight(gpus=GpuFacts(driver=None)))
    assert main(["fit-batch", "mnist_mlp", *arguments], seams) == 1
    printed = capsys.readouterr()
    assert printed.err.count("no NVIDIA driver is loaded") == 1
    if not arguments:
        stopped = "mnist_mlp device=gpu  stopped at batch 1: device_mismatch: gpu_missing"
        assert [line.partition("  ")[2].strip() for line in printed.out.splitlines()] == [stopped] * 3


def test_driver_too_old_for_one_backend_leaves_the_others_measured(folder: Path) -> None:
    found = measured(folder, FakeExecutor(), preflight(folder, FakePynvml(FakeGpu(), driver="550.54.14", cuda=12040)))
    assert {backend: status for backend, (status, _) in found.items()} == {
        "tensorflow": Status.OK,
        "jax": Status.OK,
        "torch": Status.DEVICE_MISMATCH,
    }


def test_warnings_are_printed_once_and_stored_in_each_record(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    found = measured(folder, FakeExecutor(), preflight(folder, FakePynvml(HOPPER)))
    assert {status for status, _ in found.values()} == {Status.OK}
    assert all("gpu_persistence: GPU 0 (NVIDIA H100 80GB HBM3)" in text for _, text in found.values())
    assert {backend for backend, (_, text) in found.items() if "gpu_ptx" in text} == {"tensorflow"}
    printed = capsys.readouterr().err
    assert printed.count("preflight: gpu_persistence: ") == 1


@pytest.mark.fault("F14", mutation="the preflight reports a lost GPU as a missing device", recorded=True)
def test_lost_gpu_is_infrastructure_and_the_exit_code_is_3(folder: Path) -> None:
    lost = FakeGpu(errors={"nvmlDeviceGetHandleByIndex": LOST})
    executor = FakeExecutor()
    assert main([], Seams(executor=executor, preflight=preflight(folder, FakePynvml(lost)))) == 3
    assert executor.jobs == []
    assert {record.status for record in newest_records(folder)} == {Status.INFRA}


LOST_MIDWAY = "CUDA_ERROR_ECC_UNCORRECTABLE: uncorrectable ECC error encountered"


@pytest.mark.fault("F14", mutation="cells are started on a GPU that two attempts in a row have lost", recorded=True)
def test_no_cell_is_started_after_two_attempts_lost_the_gpu(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """The workload is fine until the GPU fails: its first cell ends well, and every later one as on a lost GPU."""
    (folder / "matrix.yaml").write_text(MATRIX.replace("repeats: 1", "repeats: 4, steps_per_epoch: 4"))
    broken = FakeExecutor()

    def lost_after_one(job: Job) -> Outcome:
        if len(broken.jobs) == 1:
            return broken.succeed(job)
        return Outcome(signal=6, output_tail=LOST_MIDWAY)

    broken.behaviours = {"mnist_mlp": lost_after_one}
    checked = preflight(folder, FakePynvml(FakeGpu()))
    assert main([], Seams(executor=broken, preflight=checked)) == 3
    assert len(broken.jobs) == 1 + MOST_LOST
    reasons = Counter((record.reason or "").partition(":")[0] for record in newest_records(folder))
    assert reasons == {"": 1, GPU_LOST: MOST_LOST, "gpu_lost": 11}
    repaired = FakeExecutor()
    assert main([], Seams(executor=repaired, preflight=checked)) == 0
    assert len(repaired.jobs) == 11
    assert Counter(record.status for record in latest_attempts(newest_records(folder))) == {Status.OK: 12}


@pytest.mark.fault("F14", mutation="a GPU counts as lost although the attempts in between were measured", recorded=True)
def test_single_lost_attempts_do_not_stop_the_cells_of_a_gpu(folder: Path) -> None:
    (folder / "matrix.yaml").write_text(MATRIX.replace("repeats: 1", "repeats: 4, steps_per_epoch: 4"))
    executor = FakeExecutor()

    def lost_every_other_time(job: Job) -> Outcome:
        lost = len(executor.jobs) % 2 == 0
        return Outcome(signal=6, output_tail=LOST_MIDWAY) if lost else executor.succeed(job)

    executor.behaviours = {"mnist_mlp": lost_every_other_time}
    assert main([], Seams(executor=executor, preflight=preflight(folder, FakePynvml(FakeGpu())))) == 0
    assert Counter(record.status for record in latest_attempts(newest_records(folder))) == {Status.OK: 12}


def test_plan_for_the_cpu_reads_nothing_and_imports_no_nvml(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "pynvml", None)
    monkeypatch.delitem(sys.modules, "keras_matrix.runner.executors.preflight", raising=False)
    (folder / "matrix.yaml").write_text(MATRIX.replace("gpu", "cpu"))
    assert main([], Seams(executor=FakeExecutor())) == 0
    assert "keras_matrix.runner.executors.preflight" not in sys.modules
    assert preflight_of([make_settings(device="cpu")]) is None


def test_preflight_reads_the_gpus_of_the_cells_of_this_machine(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "1")
    write(tmp_path, DRIVER_FILES[0], "")
    library = FakePynvml(V100, FakeGpu())
    found = preflight_of([make_settings(device="gpu")], tree=ProcTree(tmp_path), library=library)
    assert found is not None
    assert found.gpus is not None
    assert set(found.gpus.gpus) == {"1"}


@pytest.mark.parametrize(
    ("visible", "workers", "name", "status"),
    [
        ("", 1, "gpu_missing", Status.DEVICE_MISMATCH),
        ("7", 1, "gpu_missing", Status.DEVICE_MISMATCH),
        ("0,1", 3, "too_few_gpus", Status.UNSUPPORTED),
    ],
)
def test_cell_whose_gpus_are_not_visible_is_refused_with_the_reason(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, visible: str, workers: int, name: str, status: Status
) -> None:
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", visible)
    write(tmp_path, DRIVER_FILES[0], "")
    cell = make_settings(device="gpu", workload="fc", params={"workers": workers})
    found = preflight_of([cell], tree=ProcTree(tmp_path), library=FakePynvml(FakeGpu(), FakeGpu(uuid="GPU-b")))
    assert found is not None
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", visible)
    assert [(one.name, one.status) for one in found.problems(cell) if one.status] == [(name, status)]


@pytest.mark.parametrize(("tool", "expected"), [(None, [NO_TOOLKIT]), ("/usr/bin/nvidia-ctk", [])])
def test_missing_container_toolkit_is_a_warning_for_cells_in_containers(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, tool: str | None, expected: list[object]
) -> None:
    monkeypatch.delenv("CUDA_VISIBLE_DEVICES", raising=False)
    monkeypatch.setattr(cells.shutil, "which", lambda name: tool)
    write(tmp_path, DRIVER_FILES[0], "")
    gpu = make_settings(device="gpu", backend="torch")
    found = preflight_of([gpu], in_containers=True, tree=ProcTree(tmp_path), library=FakePynvml(V100))
    assert found is not None
    assert list(found.problems(gpu)) == expected  # the image's build is not known on the host, and not judged


def test_tpu_cell_without_a_tpu_is_a_device_mismatch() -> None:
    checked = Preflight(tpus=TpuFacts((), has_library=True))
    [problem] = checked.problems(make_settings(device="tpu"))
    assert (problem.name, problem.status) == ("tpu_missing", Status.DEVICE_MISMATCH)
    assert checked.problems(make_settings(device="cpu")) == ()


def test_job_without_problems_is_not_refused_and_has_no_warnings() -> None:
    job: Any = SimpleNamespace(settings=make_settings(device="cpu"), task=None, gpus=ANY_GPU)
    assert (Preflight().refused(job), Preflight().warnings(job)) == (None, ())


def test_refusal_of_a_command_without_a_gpu_is_left_to_its_executor_which_records_the_command() -> None:
    """The record of a command has its task only if the executor that starts commands refuses it."""
    refusing = Preflight(gpus=GpuFacts(driver=None))
    job: Any = SimpleNamespace(settings=make_settings(device="gpu"), task=SimpleNamespace(image=None), gpus=ANY_GPU)
    assert (refusing.refused(job), refusing.warnings(job)) == (None, ())

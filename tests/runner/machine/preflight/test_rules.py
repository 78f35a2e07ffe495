"""Each problem of a GPU results in one message with advice, and in the status of the cell."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from keras_matrix.analysis.surroundings.readings import Driver
from keras_matrix.records.host.procfs import ProcTree
from keras_matrix.records.schema import Status
from keras_matrix.runner.machine.gpus.readings import DRIVER_FILES
from keras_matrix.runner.machine.preflight import (
    BUILDS,
    Build,
    CellProblem,
    CpuBuild,
    GpuFacts,
    TpuFacts,
    build_of,
    gpu_problems,
    numbers,
    read_gpus,
    read_tpus,
    tpu_problems,
)
from tests.fakes.machine import write
from tests.fakes.pynvml import DRIVER_NOT_LOADED, LOST, MISMATCH, NO_PERMISSION, RESET, FakeGpu, FakePynvml, used_by

TENSORFLOW, JAX, TORCH = (
    next(build for build in BUILDS if build.package == name) for name in ("tensorflow", "jax-cuda12-plugin", "torch")
)
V100 = FakeGpu(name="Tesla V100-SXM2-16GB", capability=(7, 0))
H100 = FakeGpu(name="NVIDIA H100 80GB HBM3", capability=(9, 0))
RTX_5090 = FakeGpu(name="NVIDIA GeForce RTX 5090", capability=(12, 0))
K80 = FakeGpu(name="Tesla K80", capability=(3, 7))


def facts(tmp_path: Path, library: FakePynvml, *names: str) -> GpuFacts:
    write(tmp_path, DRIVER_FILES[1], "")
    return read_gpus(names or ("0",), ProcTree(tmp_path), library)


def problems(tmp_path: Path, library: FakePynvml, build: Build | CpuBuild | None = TENSORFLOW) -> list[CellProblem]:
    return gpu_problems(facts(tmp_path, library), ["0"], build)


def only(found: list[CellProblem]) -> tuple[str, Status | None, str]:
    [problem] = found
    return problem.name, problem.status, problem.message


def test_supported_gpu_has_no_problem(tmp_path: Path) -> None:
    for build in BUILDS:
        assert problems(tmp_path, FakePynvml(FakeGpu()), build) == []


@pytest.mark.parametrize(
    ("build", "driver", "cuda"),
    [(TENSORFLOW, "470.82.01", 11040), (JAX, "520.61.05", 11080), (TORCH, "535.104.05", 12020)],
)
def test_driver_below_the_minimum_of_cuda_is_a_device_mismatch(
    tmp_path: Path, build: Build, driver: str, cuda: int
) -> None:
    name, status, message = only(problems(tmp_path, FakePynvml(FakeGpu(), driver=driver, cuda=cuda), build))
    assert (name, status) == ("driver_too_old", Status.DEVICE_MISMATCH)
    assert message == (
        f"{build} needs NVIDIA driver {build.minimum_driver} or newer for its CUDA {build.cuda_major}, got {driver}; "
        "update the driver, or choose another image (docs/gpu.md)"
    )


def test_older_driver_with_nvidias_compatibility_libraries_is_accepted(tmp_path: Path) -> None:
    assert problems(tmp_path, FakePynvml(FakeGpu(), driver="535.104.05", cuda=13000), TORCH) == []


def test_gpu_without_code_in_the_build_is_unsupported_and_the_images_with_code_are_named(tmp_path: Path) -> None:
    name, status, message = only(problems(tmp_path, FakePynvml(V100), TORCH))
    assert (name, status) == ("no_gpu_code", Status.UNSUPPORTED)
    assert "GPU 0 (Tesla V100-SXM2-16GB) has compute capability 7.0" in message
    assert message.endswith("the build supports 7.5, 8.0, 8.6, 9.0, 10.0, 12.0; use tf-gpu or jax-gpu")


def test_gpu_that_no_image_supports_has_other_advice(tmp_path: Path) -> None:
    _, status, message = only(problems(tmp_path, FakePynvml(K80), TORCH))
    assert status is Status.UNSUPPORTED
    assert message.endswith("install a version of the backend that has")


def test_code_for_a_lower_minor_version_runs_and_for_a_higher_one_does_not() -> None:
    assert [TORCH.has_machine_code(one) for one in ((8, 9), (8, 6), (7, 0), (10, 3), (11, 0))] == [
        True,
        True,
        False,
        True,
        False,
    ]


def test_ptx_that_the_driver_is_too_old_for_is_a_device_mismatch(tmp_path: Path) -> None:
    """Hopper and newer have only PTX in TensorFlow 2.21, written by CUDA 12.5: a driver of CUDA 12.2 refuses it."""
    name, status, message = only(problems(tmp_path, FakePynvml(H100, driver="535.104.05", cuda=12020)))
    assert (name, status) == ("driver_too_old", Status.DEVICE_MISMATCH)
    assert "only PTX of CUDA 12.5, and driver 535.104.05 compiles PTX up to CUDA 12.2" in message


def test_ptx_that_the_driver_compiles_is_a_warning_about_the_first_epoch(tmp_path: Path) -> None:
    name, status, message = only(problems(tmp_path, FakePynvml(H100, driver="570.124.06", cuda=12080)))
    assert (name, status) == ("gpu_ptx", None)
    assert "the driver compiles it in the first epoch" in message


def test_gpu_that_users_report_as_failing_is_a_warning_with_the_source(tmp_path: Path) -> None:
    name, status, message = only(problems(tmp_path, FakePynvml(RTX_5090)))
    assert (name, status) == ("gpu_reported_failing", None)
    assert "https://github.com/tensorflow/tensorflow/issues/97387" in message
    assert message.endswith("use jax-gpu or torch-gpu")


def test_build_that_is_not_in_the_table_is_not_judged(tmp_path: Path) -> None:
    assert problems(tmp_path, FakePynvml(K80, driver="390.157", cuda=9010), None) == []


@pytest.mark.parametrize(
    ("backend", "versions", "expected"),
    [
        ("tensorflow", {"tensorflow": "2.21.0"}, TENSORFLOW),
        ("tensorflow", {"tensorflow": "2.99.0"}, None),
        ("tensorflow", {"tensorflow-cpu": "2.21.0"}, CpuBuild("tensorflow-cpu", "2.21.0", "tf-gpu")),
        ("jax", {"jax": "0.10.2", "jax-cuda12-plugin": "0.10.2"}, JAX),
        ("jax", {"jax": "0.10.2", "jax-cuda12-plugin": "0.11.0"}, None),
        ("jax", {"jax": "0.10.2"}, CpuBuild("jax", "0.10.2", "jax-gpu")),
        ("torch", {"torch": "2.13.0"}, TORCH),
        ("torch", {"torch": "2.13.0+cu130"}, TORCH),
        ("torch", {"torch": "2.13.0+cu126"}, None),
        ("torch", {"torch": "2.13.0+cpu"}, CpuBuild("torch", "2.13.0+cpu", "torch-gpu")),
        ("torch", {}, None),
    ],
)
def test_build_is_found_by_the_installed_versions(
    backend: str, versions: dict[str, str], expected: Build | CpuBuild | None
) -> None:
    assert build_of(backend, versions) == expected


def test_build_for_the_cpu_is_a_device_mismatch(tmp_path: Path) -> None:
    found = problems(tmp_path, FakePynvml(FakeGpu()), CpuBuild("tensorflow-cpu", "2.21.0", "tf-gpu"))
    name, status, message = only(found)
    assert (name, status) == ("cpu_build", Status.DEVICE_MISMATCH)
    assert "use the service tf-gpu" in message


def test_machine_without_a_driver_is_a_device_mismatch_and_nothing_is_loaded(tmp_path: Path) -> None:
    library = FakePynvml(init_error=NO_PERMISSION)
    name, status, message = only(gpu_problems(read_gpus(["0"], ProcTree(tmp_path), library), ["0"], TENSORFLOW))
    assert (name, status) == ("gpu_missing", Status.DEVICE_MISMATCH)
    assert "NVIDIA Container Toolkit" in message


def test_gpus_of_another_maker_are_not_judged(tmp_path: Path) -> None:
    write(tmp_path, "/dev/kfd", "")
    assert gpu_problems(read_gpus(["0"], ProcTree(tmp_path)), ["0"], None) == []


@pytest.mark.parametrize(
    ("error", "name", "status", "advice"),
    [
        (NO_PERMISSION, "nvml_unavailable", None, "ask for access to /dev/nvidiactl"),
        (DRIVER_NOT_LOADED, "driver_not_loaded", Status.DEVICE_MISMATCH, "modprobe nvidia"),
        (MISMATCH, "driver_not_loaded", Status.DEVICE_MISMATCH, "restart the machine if the driver was updated"),
    ],
)
def test_nvml_that_cannot_be_opened_is_a_warning_unless_the_driver_does_not_work(
    tmp_path: Path, error: int, name: str, status: Status | None, advice: str
) -> None:
    found = only(problems(tmp_path, FakePynvml(FakeGpu(), init_error=error)))
    assert found[:2] == (name, status)
    assert advice in found[2]


def test_missing_nvml_library_is_a_warning_that_names_the_package(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(__import__("sys").modules, "pynvml", None)
    write(tmp_path, DRIVER_FILES[0], "")
    name, status, message = only(gpu_problems(read_gpus(["0"], ProcTree(tmp_path)), ["0"], TENSORFLOW))
    assert (name, status) == ("nvml_unavailable", None)
    assert "install nvidia-ml-py" in message


CONDITIONS: list[tuple[dict[str, Any], str, str]] = [
    ({"mig": 1}, "gpu_mig", "nvidia-smi -mig 0"),
    ({"persistence": 0}, "gpu_persistence", "nvidia-smi -pm 1"),
    ({"ecc_errors": 2}, "gpu_ecc", "2 uncorrected memory errors since the driver was loaded"),
    ({"ecc_errors": 1}, "gpu_ecc", "1 uncorrected memory error since the driver was loaded"),
    (
        {"users": [used_by(41)]},
        "gpu_busy",
        "in use by trainer (process 41, 512 MiB); stop it, or choose another GPU with CUDA_VISIBLE_DEVICES",
    ),
    ({"users": [used_by(42, None)]}, "gpu_busy", "in use by process 42; stop it"),
]


@pytest.mark.parametrize(("changes", "name", "text"), CONDITIONS)
def test_disturbing_gpu_condition_is_a_warning(tmp_path: Path, changes: dict[str, Any], name: str, text: str) -> None:
    write(tmp_path, "/proc/41/comm", "trainer\n")
    found = only(problems(tmp_path, FakePynvml(replace(FakeGpu(), **changes))))
    assert found[:2] == (name, None)
    assert text in found[2]


def test_mig_slice_named_by_uuid_is_a_warning_and_judged_by_its_gpu(tmp_path: Path) -> None:
    whole = FakeGpu(persistence=0)
    part = FakeGpu(name="NVIDIA A100-SXM4-80GB MIG 1g.10gb", uuid="MIG-1234", capability=(0, 0), slice_of=whole)
    found = gpu_problems(facts(tmp_path, FakePynvml(whole, part), "MIG-1234"), ["MIG-1234"], TENSORFLOW)
    assert [problem.name for problem in found] == ["gpu_mig", "gpu_persistence"]


@pytest.mark.parametrize("name", ["1", "GPU-0000", "-1", "", "MIG-none", "all"])
def test_gpu_that_does_not_exist_is_a_device_mismatch(tmp_path: Path, name: str) -> None:
    found = only(gpu_problems(facts(tmp_path, FakePynvml(FakeGpu()), name), [name], TENSORFLOW))
    assert found[:2] == ("gpu_missing", Status.DEVICE_MISMATCH)
    assert f"CUDA_VISIBLE_DEVICES names GPU {name!r}: " in found[2]


def test_gpu_is_found_by_the_beginning_of_its_uuid_as_cuda_finds_it(tmp_path: Path) -> None:
    assert gpu_problems(facts(tmp_path, FakePynvml(V100, FakeGpu(uuid="GPU-b")), "GPU-8932"), ["GPU-8932"], None) == []


EXCLUSIVE = (
    "GPU 0 (NVIDIA A100-SXM4-80GB) is in compute mode EXCLUSIVE_PROCESS and in use by trainer (process 41, 512 MiB); "
    "stop it, or nvidia-smi -c DEFAULT"
)
PROHIBITED = (
    "GPU 0 (NVIDIA A100-SXM4-80GB) is in compute mode PROHIBITED, in which no process can use it; end it: "
    "nvidia-smi -c DEFAULT"
)


@pytest.mark.parametrize(
    ("gpu", "expected"),
    [
        (FakeGpu(compute_mode=3, users=[used_by(41)]), [EXCLUSIVE]),
        (FakeGpu(compute_mode=2), [PROHIBITED]),
        (FakeGpu(compute_mode=3), []),
        (FakeGpu(compute_mode=0, users=[used_by(41)]), []),
        (FakeGpu(compute_mode=3, users=[used_by(41), used_by(42)]), []),  # 42 is the Multi-Process Service
        (FakeGpu(compute_mode=3, users=[used_by(43)]), []),  # a process without a name
    ],
)
def test_gpu_used_exclusively_by_another_process_is_infrastructure(
    tmp_path: Path, gpu: FakeGpu, expected: list[str]
) -> None:
    write(tmp_path, "/proc/41/comm", "trainer\n")
    write(tmp_path, "/proc/42/comm", "nvidia-cuda-mps\n")
    found = [one for one in problems(tmp_path, FakePynvml(gpu)) if one.name == "gpu_exclusive"]
    assert [(one.message, one.status) for one in found] == [(message, Status.INFRA) for message in expected]


@pytest.mark.parametrize("code", [LOST, RESET])
def test_lost_gpu_is_infrastructure_with_the_advice_to_reset_it(tmp_path: Path, code: int) -> None:
    lost = FakeGpu(errors={"nvmlDeviceGetHandleByIndex": code})
    name, status, message = only(problems(tmp_path, FakePynvml(lost)))
    assert (name, status) == ("gpu_lost", Status.INFRA)
    assert "see the Xid in dmesg" in message


def test_only_the_gpus_of_a_cell_are_judged(tmp_path: Path) -> None:
    found = facts(tmp_path, FakePynvml(FakeGpu(), replace(FakeGpu(), persistence=0)), "0", "1")
    assert gpu_problems(found, ["0"], TENSORFLOW) == []
    assert [problem.name for problem in gpu_problems(found, ["0", "1"], TENSORFLOW)] == ["gpu_persistence"]


@pytest.mark.parametrize(
    ("found", "names"),
    [
        (TpuFacts((), has_library=False), ["tpu_library"]),
        (TpuFacts((), has_library=True), ["tpu_missing"]),
        (TpuFacts(("/dev/accel0",), has_library=True), []),
    ],
)
def test_tpu_needs_its_library_and_its_device_files(found: TpuFacts, names: list[str]) -> None:
    assert [problem.name for problem in tpu_problems(found)] == names
    assert {problem.status for problem in tpu_problems(found)} <= {Status.DEVICE_MISMATCH}


@pytest.mark.parametrize("path", ["/dev/accel0", "/dev/vfio/0"])
def test_tpu_is_recognised_by_its_device_files(tmp_path: Path, path: str) -> None:
    write(tmp_path, "/dev/vfio/vfio", "")
    assert read_tpus(ProcTree(tmp_path)).devices == ()
    write(tmp_path, path, "")
    assert read_tpus(ProcTree(tmp_path)).devices == (path,)


def test_drivers_are_compared_by_their_numbers() -> None:
    assert numbers("580.65.06") > numbers("535.104.05") > numbers("525.60.13")
    assert numbers("580") <= numbers("580.65.06")
    assert numbers("R580 beta") == ()


def test_driver_whose_version_is_unread_is_not_judged(tmp_path: Path) -> None:
    found = facts(tmp_path, FakePynvml(FakeGpu(), cuda=12020))
    assert isinstance(found.driver, Driver)
    unread = replace(found, driver=Driver(found.gpus["0"], found.gpus["0"]))  # type: ignore[arg-type]
    assert gpu_problems(unread, ["0"], TORCH) == []

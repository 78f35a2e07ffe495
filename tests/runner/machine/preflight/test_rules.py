"""Each problem of a GPU results in one message with advice, and in the status of the cell."""

from __future__ import annotations

import sys
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from keras_matrix.analysis.surroundings.readings import Driver
from keras_matrix.records.host.procfs import ProcTree
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
from tests.golden import Golden
from tests.messages import check_messages

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


def test_supported_gpu_has_no_problem(tmp_path: Path) -> None:
    for build in BUILDS:
        assert problems(tmp_path, FakePynvml(FakeGpu()), build) == []


def test_older_driver_with_nvidias_compatibility_libraries_is_accepted(tmp_path: Path) -> None:
    assert problems(tmp_path, FakePynvml(FakeGpu(), driver="535.104.05", cuda=13000), TORCH) == []


def test_code_for_a_lower_minor_version_runs_and_for_a_higher_one_does_not() -> None:
    assert [TORCH.has_machine_code(one) for one in ((8, 9), (8, 6), (7, 0), (10, 3), (11, 0))] == [
        True,
        True,
        False,
        True,
        False,
    ]


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


def test_gpus_of_another_maker_are_not_judged(tmp_path: Path) -> None:
    write(tmp_path, "/dev/kfd", "")
    assert gpu_problems(read_gpus(["0"], ProcTree(tmp_path)), ["0"], None) == []


def test_gpu_is_found_by_the_beginning_of_its_uuid_as_cuda_finds_it(tmp_path: Path) -> None:
    assert gpu_problems(facts(tmp_path, FakePynvml(V100, FakeGpu(uuid="GPU-b")), "GPU-8932"), ["GPU-8932"], None) == []


@pytest.mark.parametrize(
    "gpu",
    [
        FakeGpu(compute_mode=3),
        FakeGpu(compute_mode=0, users=[used_by(41)]),
        FakeGpu(compute_mode=3, users=[used_by(41), used_by(42)]),  # 42 is the Multi-Process Service
        FakeGpu(compute_mode=3, users=[used_by(43)]),  # a process without a name
    ],
)
def test_gpu_that_others_leave_free_is_not_used_exclusively(tmp_path: Path, gpu: FakeGpu) -> None:
    write(tmp_path, "/proc/41/comm", "trainer\n")
    write(tmp_path, "/proc/42/comm", "nvidia-cuda-mps\n")
    assert "gpu_exclusive" not in [problem.name for problem in problems(tmp_path, FakePynvml(gpu))]


def test_only_the_gpus_of_a_cell_are_judged(tmp_path: Path) -> None:
    found = facts(tmp_path, FakePynvml(FakeGpu(), replace(FakeGpu(), persistence=0)), "0", "1")
    assert gpu_problems(found, ["0"], TENSORFLOW) == []
    assert [problem.name for problem in gpu_problems(found, ["0", "1"], TENSORFLOW)] == ["gpu_persistence"]


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


Found = list[CellProblem]


def of_a_build(gpu: FakeGpu, build: Build | CpuBuild = TENSORFLOW, **driver: Any) -> Callable[[Path], Found]:
    return lambda root: problems(root, FakePynvml(gpu, **driver), build)


def in_a_condition(**changes: Any) -> Callable[[Path], Found]:
    return lambda root: problems(root, FakePynvml(replace(FakeGpu(), **changes)))


def of_the_name(name: str) -> Callable[[Path], Found]:
    return lambda root: gpu_problems(facts(root, FakePynvml(FakeGpu()), name), [name], TENSORFLOW)


def without_a_driver(root: Path) -> Found:
    """The library must not be loaded."""
    return gpu_problems(read_gpus(["0"], ProcTree(root), FakePynvml(init_error=NO_PERMISSION)), ["0"], TENSORFLOW)


def without_nvml(root: Path) -> Found:
    write(root, DRIVER_FILES[0], "")
    with pytest.MonkeyPatch.context() as patch:
        patch.setitem(sys.modules, "pynvml", None)
        return gpu_problems(read_gpus(["0"], ProcTree(root)), ["0"], TENSORFLOW)


def of_a_slice(root: Path) -> Found:
    """It is judged by its GPU."""
    whole = FakeGpu(persistence=0)
    part = FakeGpu(name="NVIDIA A100-SXM4-80GB MIG 1g.10gb", uuid="MIG-1234", capability=(0, 0), slice_of=whole)
    return gpu_problems(facts(root, FakePynvml(whole, part), "MIG-1234"), ["MIG-1234"], TENSORFLOW)


# Hopper and newer have only PTX in TensorFlow 2.21, written by CUDA 12.5: a driver of CUDA 12.2 refuses it.
CASES: dict[str, Callable[[Path], Found]] = {
    "a driver older than TensorFlow's CUDA": of_a_build(FakeGpu(), driver="470.82.01", cuda=11040),
    "a driver older than JAX's CUDA": of_a_build(FakeGpu(), JAX, driver="520.61.05", cuda=11080),
    "a driver older than PyTorch's CUDA": of_a_build(FakeGpu(), TORCH, driver="535.104.05", cuda=12020),
    "a GPU that other images have code for": of_a_build(V100, TORCH),
    "a GPU that no image has code for": of_a_build(K80, TORCH),
    "PTX that is newer than the driver": of_a_build(H100, driver="535.104.05", cuda=12020),
    "PTX that the driver compiles": of_a_build(H100, driver="570.124.06", cuda=12080),
    "a GPU that users report as failing": of_a_build(RTX_5090),
    "a build for the CPU": of_a_build(FakeGpu(), CpuBuild("tensorflow-cpu", "2.21.0", "tf-gpu")),
    "no driver": without_a_driver,
    "no right to open the driver": of_a_build(FakeGpu(), init_error=NO_PERMISSION),
    "a driver that is not loaded": of_a_build(FakeGpu(), init_error=DRIVER_NOT_LOADED),
    "a driver and a library of two versions": of_a_build(FakeGpu(), init_error=MISMATCH),
    "no package that reads the driver": without_nvml,
    "a GPU that is lost": in_a_condition(errors={"nvmlDeviceGetHandleByIndex": LOST}),
    "a GPU that must be reset": in_a_condition(errors={"nvmlDeviceGetHandleByIndex": RESET}),
    "a GPU that another process uses exclusively": in_a_condition(compute_mode=3, users=[used_by(41)]),
    "a GPU that no process may use": in_a_condition(compute_mode=2),
    "a GPU in slices": in_a_condition(mig=1),
    "a slice of a GPU": of_a_slice,
    "no persistence": in_a_condition(persistence=0),
    "two memory errors": in_a_condition(ecc_errors=2),
    "one memory error": in_a_condition(ecc_errors=1),
    "a GPU in use": in_a_condition(users=[used_by(41)]),
    "a GPU in use by a process without a name": in_a_condition(users=[used_by(43, None)]),
    **{f"a GPU named {name!r}": of_the_name(name) for name in ("1", "GPU-0000", "-1", "", "MIG-none", "all")},
    "no library of TPUs": lambda root: tpu_problems(TpuFacts((), has_library=False)),
    "no TPU": lambda root: tpu_problems(TpuFacts((), has_library=True)),
}


def test_every_problem_has_a_status_and_a_message_with_advice(tmp_path: Path, golden: Golden) -> None:
    found = {}
    for number, (title, problems_in) in enumerate(CASES.items()):
        root = tmp_path / str(number)
        write(root, "/proc/41/comm", "trainer\n")
        found[title] = [
            f"{problem.name} ({problem.status or 'a warning'}): {problem.message}" for problem in problems_in(root)
        ]
    check_messages(golden, "problems.txt", found)


def test_tpu_with_its_library_and_device_files_has_no_problem() -> None:
    assert tpu_problems(TpuFacts(("/dev/accel0",), has_library=True)) == []

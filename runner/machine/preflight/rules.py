"""Derives problems from the facts about GPUs and TPUs, each with a message and advice. Pure.

A problem with a status ends a cell before its process starts; a problem without is a warning, and the cell is measured.
docs/gpu.md lists every problem.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass

from keras_matrix.analysis.surroundings.readings import Driver, Gpu, process_text
from keras_matrix.records.host.procfs import Unread
from keras_matrix.records.schema import Status
from keras_matrix.runner.machine.gpus.nvml import GpuLost
from keras_matrix.runner.machine.preflight.builds import BUILDS, Build, Capability, CpuBuild, numbers, text
from keras_matrix.runner.machine.preflight.facts import GpuFacts, TpuFacts

NO_DRIVER = (
    "no NVIDIA driver is loaded; install it. In a container, install the NVIDIA Container Toolkit on the host and "
    "start the container with a GPU: docker compose run tf-gpu, or docker run --gpus all"
)
# nvml.h, nvmlComputeMode_t.
PROHIBITED, EXCLUSIVE_PROCESS = 2, 3
# The Multi-Process Service uses a GPU in exclusive mode to share it; the kernel stores 15 characters of a name.
SHARING_SERVICE = "nvidia-cuda-mps"
NO_TPU = "no TPU in /dev/accel* or /dev/vfio; use a Cloud TPU virtual machine and, in containers, the service jax-tpu"
NO_LIBTPU = "the package libtpu is not installed; install keras-matrix[jax-tpu], or use the service jax-tpu"


@dataclass(frozen=True, slots=True)
class CellProblem:
    """A problem of a cell by name, with the status that it causes; None for a warning."""

    name: str
    message: str
    status: Status | None = None

    def __str__(self) -> str:
        return f"{self.name}: {self.message}"


def gpu_problems(facts: GpuFacts, names: Iterable[str], build: Build | CpuBuild | None) -> list[CellProblem]:
    """Return the problems of a cell with this build on the named GPUs; None for an unknown build."""
    if facts.driver is None:
        return [] if facts.other_maker else [CellProblem("gpu_missing", NO_DRIVER, Status.DEVICE_MISMATCH)]
    if isinstance(build, CpuBuild):
        advice = f"use the service {build.service}, or install keras-matrix[{build.service}] in a separate environment"
        return [CellProblem("cpu_build", f"{build} is installed for the CPU only; {advice}", Status.DEVICE_MISMATCH)]
    if isinstance(facts.driver, Unread):
        return [_unread_driver(facts.driver)]
    found = []
    for name in names:
        gpu = facts.gpus.get(name, Unread("not read", absent=True))
        if isinstance(gpu, Unread):
            found.append(_unread_gpu(name, gpu))
        else:
            found += [*build_problems(facts.driver, gpu, build), *_exclusive(gpu), *_conditions(gpu)]
    return list(dict.fromkeys(found))


def tpu_problems(facts: TpuFacts) -> list[CellProblem]:
    """Return the problems of a cell on a TPU."""
    if not facts.has_library:
        return [CellProblem("tpu_library", NO_LIBTPU, Status.DEVICE_MISMATCH)]
    return [] if facts.devices else [CellProblem("tpu_missing", NO_TPU, Status.DEVICE_MISMATCH)]


def build_problems(driver: Driver, gpu: Gpu, build: Build | None) -> Iterator[CellProblem]:
    """Yield why a build cannot use a GPU: its driver is too old, or the build has no code for it."""
    if build is None:
        return
    if _too_old(driver, build):
        yield CellProblem(
            "driver_too_old",
            f"{build} needs NVIDIA driver {build.minimum_driver} or newer for its CUDA {build.cuda_major}, got "
            f"{driver.version}; update the driver, or choose an image from docs/compatibility.md",
            Status.DEVICE_MISMATCH,
        )
    elif not isinstance(gpu.capability, Unread) and not build.has_machine_code(gpu.capability):
        yield from _without_machine_code(driver, gpu, gpu.capability, build)


def _too_old(driver: Driver, build: Build) -> bool:
    """Return whether a driver is too old for CUDA; NVIDIA's compatibility libraries add CUDA to older drivers."""
    if isinstance(driver.cuda, tuple) and driver.cuda[0] >= build.cuda_major:
        return False
    return isinstance(driver.version, str) and numbers(driver.version) < numbers(build.minimum_driver)


def _without_machine_code(driver: Driver, gpu: Gpu, capability: Capability, build: Build) -> Iterator[CellProblem]:
    where = f"{_title(gpu)} has compute capability {text(capability)}"
    services = [one.service for one in BUILDS if one.has_machine_code(capability)]
    if build.ptx is None or build.ptx > capability:  # a driver compiles PTX of the same or a lower capability
        advice = f"use {' or '.join(services)}" if services else "install a version of the backend that has"
        message = f"{build} has no code for this GPU: {where}, the build supports {build.supported()}; {advice}"
        yield CellProblem("no_gpu_code", message, Status.UNSUPPORTED)
        return
    cuda = build.ptx_cuda
    if cuda is not None and isinstance(driver.cuda, tuple) and driver.cuda < cuda:
        yield CellProblem(
            "driver_too_old",
            f"{where}, for which {build} has only PTX of CUDA {text(cuda)}, and driver {driver.version} compiles PTX "
            f"up to CUDA {text(driver.cuda)}; update the driver to one for CUDA {text(cuda)} or newer",
            Status.DEVICE_MISMATCH,
        )
        return
    if build.reported_failing is not None and capability >= build.reported_failing[0]:
        source = build.reported_failing[1]
        yield CellProblem(
            "gpu_reported_failing",
            f"{where}: users report that {build.package} fails there with CUDA_ERROR_INVALID_PTX ({source}); if "
            f"it does, use {' or '.join(services)}",
        )
        return
    yield CellProblem(
        "gpu_ptx",
        f"{where}, for which {build} has only PTX: the driver compiles it in the first epoch, which takes longer; "
        "the compiled code is reused only with a permanent CUDA cache",
    )


def _exclusive(gpu: Gpu) -> Iterator[CellProblem]:
    """Yield why no cell can use a GPU: its compute mode, and in exclusive mode another process.

    Processes without a name, as in a container, may belong to the sharing service and cause only a warning.
    """
    advice = "nvidia-smi -c DEFAULT"
    if gpu.compute_mode == PROHIBITED:
        message = f"{_title(gpu)} is in compute mode PROHIBITED, in which no process can use it; end it: {advice}"
        yield CellProblem("gpu_exclusive", message, Status.INFRA)
    users = gpu.users if isinstance(gpu.users, tuple) else ()
    names = [one.name for one in users if one.name]
    is_shared = any(name.startswith(SHARING_SERVICE) for name in names)
    if gpu.compute_mode == EXCLUSIVE_PROCESS and names and not is_shared:
        listed = ", ".join(process_text(one) for one in users)
        message = f"{_title(gpu)} is in compute mode EXCLUSIVE_PROCESS and in use by {listed}; stop it, or {advice}"
        yield CellProblem("gpu_exclusive", message, Status.INFRA)


def _conditions(gpu: Gpu) -> Iterator[CellProblem]:
    """Yield the warnings about a GPU."""
    title = _title(gpu)
    if gpu.mig is True:
        yield CellProblem(
            "gpu_mig",
            f"{title} is divided by Multi-Instance GPU: figures are of one slice, but power and clocks of the full "
            "GPU; to measure the full GPU: nvidia-smi -mig 0",
        )
    if gpu.persistence is False:
        yield CellProblem(
            "gpu_persistence",
            f"{title}: persistence mode is off, so the driver restarts after an idle time and the first run is "
            "slower; turn it on: nvidia-smi -pm 1",
        )
    if isinstance(gpu.ecc_errors, int) and gpu.ecc_errors > 0:
        yield CellProblem(
            "gpu_ecc",
            f"{title}: {gpu.ecc_errors} uncorrected memory error{'s'[: gpu.ecc_errors != 1]} since the driver was "
            "loaded; reset the GPU (nvidia-smi --gpu-reset), and replace it if they return",
        )
    if isinstance(gpu.users, tuple) and gpu.users:
        listed = ", ".join(process_text(one) for one in gpu.users)
        advice = "stop it, or choose another GPU with CUDA_VISIBLE_DEVICES"
        yield CellProblem("gpu_busy", f"{title} is in use by {listed}; {advice}")


def _unread_driver(reason: Unread) -> CellProblem:
    if reason.absent:
        advice = "load the driver (modprobe nvidia), or restart the machine if the driver was updated"
        return CellProblem("driver_not_loaded", f"{reason.why}; {advice}", Status.DEVICE_MISMATCH)
    return CellProblem(
        "nvml_unavailable",
        f"driver and GPU cannot be checked, and no clocks or power are recorded: {reason.why}; install nvidia-ml-py "
        "and, in a container, set NVIDIA_DRIVER_CAPABILITIES=compute,utility; without permission, ask for access to "
        "/dev/nvidiactl",
    )


def _unread_gpu(name: str, reason: Unread) -> CellProblem:
    if isinstance(reason, GpuLost):
        advice = "see the Xid in dmesg, and reset the GPU (nvidia-smi --gpu-reset) or restart the machine"
        return CellProblem("gpu_lost", f"GPU {name}: {reason.why}; {advice}", Status.INFRA)
    if reason.absent:
        advice = "set CUDA_VISIBLE_DEVICES to one of those that nvidia-smi -L lists"
        message = f"CUDA_VISIBLE_DEVICES names GPU {name!r}: {reason.why}; {advice}"
        return CellProblem("gpu_missing", message, Status.DEVICE_MISMATCH)
    return CellProblem("nvml_unavailable", f"GPU {name} cannot be checked: {reason.why}; ask for access to it")


def _title(gpu: Gpu) -> str:
    return f"GPU {gpu.index} ({gpu.name})"

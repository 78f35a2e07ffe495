"""Problems with the GPUs or TPUs of cells, found before their processes start: the facts, and rules with advice.

A problem with a status ends a cell before its process starts; a problem without is a warning, and the cell is measured.
docs/troubleshooting.md#on-a-gpu lists every problem.

Without an NVIDIA driver, no module is imported and no library is loaded to read the facts.

Which GPUs a backend's GPU build was compiled for is in the only such table, also used by ci/compatibility.py.
Sources:
- Code in the wheels: read from the locked files with `python ci/gpu_code.py WHEEL`. TensorFlow states the same in
  `tensorflow/python/platform/build_info.py`, PyTorch in `torch.cuda.get_arch_list()`.
- Minimum drivers: NVIDIA, CUDA Compatibility (docs.nvidia.com/deploy/cuda-compatibility), "Minor Version
  Compatibility", and the CUDA 13.0 release notes. JAX's installation page has the same two numbers.
- A driver compiles PTX only up to its own CUDA version: CUDA Compatibility, "Application Considerations". The CUDA that
  wrote the PTX: TensorFlow's `build_info.py`; for JAX the PTX's own `.version 8.8`, which is CUDA 12.9's,
  and `.version 9.0`, which is CUDA 13.0's.

A version that is not in the table is not judged; add an entry together with the lock.
"""

from __future__ import annotations

import importlib.util
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any

from keras_matrix.analysis.surroundings.readings import Driver, Gpu, process_text
from keras_matrix.records.backends import TABLE, service_name
from keras_matrix.records.host.procfs import ProcTree, Unread
from keras_matrix.records.schema import Status
from keras_matrix.runner.machine.gpus.nvml import GpuLost, open_nvml
from keras_matrix.runner.machine.gpus.readings import driver, has_driver, read_gpu

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
# AMD's compute device; AMD's GPUs are not judged.
AMD_DEVICE = "/dev/kfd"
TPU_FOLDERS = (("/dev", "accel*"), ("/dev/vfio", "[0-9]*"))
Capability = tuple[int, int]
# The lowest driver for each major version of CUDA.
MINIMUM_DRIVERS = {12: "525.60.13", 13: "580"}


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
    problems = []
    for name in names:
        gpu = facts.gpus.get(name, Unread("not read", absent=True))
        if isinstance(gpu, Unread):
            problems.append(_unread_gpu(name, gpu))
        else:
            problems += [*build_problems(facts.driver, gpu, build), *_exclusive(gpu), *_conditions(gpu)]
    return list(dict.fromkeys(problems))


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
            f"{driver.version}; update the driver, or choose another image (docs/troubleshooting.md#on-a-gpu)",
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
    capability_text = f"{_title(gpu)} has compute capability {text(capability)}"
    services = list(dict.fromkeys(other.service for other in BUILDS if other.has_machine_code(capability)))
    if build.ptx is None or build.ptx > capability:  # a driver compiles PTX of the same or a lower capability
        advice = f"use {' or '.join(services)}" if services else "install a version of the backend that has"
        message = (
            f"{build} has no code for this GPU: {capability_text}, the build supports {build.supported()}; {advice}"
        )
        yield CellProblem("no_gpu_code", message, Status.UNSUPPORTED)
        return
    cuda = build.ptx_cuda
    if cuda is not None and isinstance(driver.cuda, tuple) and driver.cuda < cuda:
        yield CellProblem(
            "driver_too_old",
            f"{capability_text}, for which {build} has only PTX of CUDA {text(cuda)}, and driver {driver.version} "
            f"compiles PTX up to CUDA {text(driver.cuda)}; update the driver to one for CUDA {text(cuda)} or newer",
            Status.DEVICE_MISMATCH,
        )
        return
    if build.reported_failing is not None and capability >= build.reported_failing[0]:
        source = build.reported_failing[1]
        yield CellProblem(
            "gpu_reported_failing",
            f"{capability_text}: users report that {build.package} fails there with CUDA_ERROR_INVALID_PTX ({source}); "
            f"if it does, use {' or '.join(services)}",
        )
        return
    yield CellProblem(
        "gpu_ptx",
        f"{capability_text}, for which {build} has only PTX: the driver compiles it in the first epoch, which takes "
        "longer; the compiled code is reused only with a permanent CUDA cache",
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
    names = [user.name for user in users if user.name]
    is_shared = any(name.startswith(SHARING_SERVICE) for name in names)
    if gpu.compute_mode == EXCLUSIVE_PROCESS and names and not is_shared:
        users_text = ", ".join(process_text(user) for user in users)
        message = f"{_title(gpu)} is in compute mode EXCLUSIVE_PROCESS and in use by {users_text}; stop it, or {advice}"
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
        users_text = ", ".join(process_text(user) for user in gpu.users)
        advice = "stop it, or choose another GPU with CUDA_VISIBLE_DEVICES"
        yield CellProblem("gpu_busy", f"{title} is in use by {users_text}; {advice}")


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


@dataclass(frozen=True, slots=True)
class GpuFacts:
    """The driver, and each GPU by its name in CUDA_VISIBLE_DEVICES.

    `driver` is None without an NVIDIA driver, `Unread` if NVML cannot be opened, with `absent` if the driver does not
    work at all. A GPU is `Unread` if NVML cannot open it, with `absent` if it does not exist.
    """

    driver: Driver | Unread | None
    gpus: Mapping[str, Gpu | Unread] = field(default_factory=dict)
    other_maker: bool = False


@dataclass(frozen=True, slots=True)
class TpuFacts:
    """The device files of TPU chips, and whether their library is installed."""

    devices: tuple[str, ...]
    has_library: bool


def read_gpus(names: Iterable[str], tree: ProcTree | None = None, library: Any = None) -> GpuFacts:
    """Return the facts about these GPUs. `library` is `pynvml`, or a test's stand-in for it."""
    tree = tree or ProcTree()
    if not has_driver(tree):
        return GpuFacts(None, other_maker=tree.at(AMD_DEVICE).exists())
    nvml = open_nvml(library)
    if isinstance(nvml, Unread):
        return GpuFacts(nvml)
    handles = {name: nvml.gpu(name) for name in names}
    gpu_by_name = {
        name: handle if isinstance(handle, Unread) else read_gpu(tree, nvml, handle) for name, handle in handles.items()
    }
    return GpuFacts(driver(nvml), gpu_by_name)


def read_tpus(tree: ProcTree | None = None) -> TpuFacts:
    """Return the facts about the TPU of this machine."""
    tree = tree or ProcTree()
    device_files = [f"{folder}/{name}" for folder, pattern in TPU_FOLDERS for name in tree.names(folder, pattern)]
    return TpuFacts(tuple(device_files), importlib.util.find_spec("libtpu") is not None)


@dataclass(frozen=True, slots=True)
class Build:
    """A GPU build of a backend.

    `compiled` lists the compute capabilities with machine code (sm_80: 8.0); `ptx` is the one of its PTX, which the
    driver compiles for newer GPUs, and `ptx_cuda` the CUDA version of that PTX. `reported_failing` is the lowest
    compute capability for which users report failures despite the PTX, with the source.
    """

    package: str
    version: str
    service: str
    cuda_major: int
    compiled: tuple[Capability, ...]
    ptx: Capability | None = None
    ptx_cuda: tuple[int, int] | None = None
    reported_failing: tuple[Capability, str] | None = None

    def __str__(self) -> str:
        return f"{self.package} {self.version}"

    @property
    def minimum_driver(self) -> str:
        """The lowest driver for this build's CUDA."""
        return MINIMUM_DRIVERS[self.cuda_major]

    def has_machine_code(self, gpu: Capability) -> bool:
        """Return whether machine code runs on a GPU: code for its major version and the same or a lower minor one."""
        return any(major == gpu[0] and minor <= gpu[1] for major, minor in self.compiled)

    def supported(self) -> str:
        """Return the supported compute capabilities in words."""
        capabilities_text = ", ".join(text(capability) for capability in self.compiled)
        return capabilities_text if self.ptx is None else f"{capabilities_text}; PTX from {text(self.ptx)} on"


@dataclass(frozen=True, slots=True)
class CpuBuild:
    """An installed backend without GPU code, and the service that has one with it."""

    package: str
    version: str
    service: str

    def __str__(self) -> str:
        return f"{self.package} {self.version}"


BUILDS = (
    Build(
        package="tensorflow",
        version="2.21.0",
        service="tf-gpu",
        cuda_major=12,
        compiled=((6, 0), (7, 0), (8, 0), (8, 9)),
        ptx=(9, 0),
        ptx_cuda=(12, 5),
        reported_failing=((12, 0), "https://github.com/tensorflow/tensorflow/issues/97387"),
    ),
    *(
        Build(
            package="jax-cuda12-plugin",
            version=version,
            service="jax-gpu",
            cuda_major=12,
            compiled=((5, 0), (6, 0), (7, 0), (8, 0), (9, 0), (10, 0), (10, 1), (12, 0)),
            ptx=(12, 0),
            ptx_cuda=(12, 9),
        )
        for version in ("0.10.2", "0.12.0.1")
    ),
    *(
        Build(
            package="jax-cuda13-plugin",
            version=version,
            service="jax-gpu",
            cuda_major=13,
            compiled=((7, 5), (8, 0), (9, 0), (10, 0), (11, 0), (12, 0)),
            ptx=(12, 0),
            ptx_cuda=(13, 0),
        )
        for version in ("0.10.2", "0.12.0.1")
    ),
    Build(
        package="torch",
        version="2.13.0",
        service="torch-gpu",
        cuda_major=13,
        compiled=((7, 5), (8, 0), (8, 6), (9, 0), (10, 0), (12, 0)),
    ),
)


def build_of(backend: str, versions: Mapping[str, str]) -> Build | CpuBuild | None:
    """Return the build of a backend from the installed versions, or None if it is not in the table or for no GPU."""
    row = TABLE[backend]
    if "gpu" not in row.devices:
        return None
    build_versions = {name: versions[name] for name in row.build_packages if name in versions}
    for build in BUILDS:
        # Without the label of this build's CUDA; another label belongs to another build.
        if build_versions.get(build.package, "").removesuffix(f"+cu{build.cuda_major}0") == build.version:
            return build
    if set(build_versions) != {row.cpu_package} or not build_versions[row.cpu_package].endswith(row.cpu_version_suffix):
        return None
    return CpuBuild(row.cpu_package, build_versions[row.cpu_package], service_name(backend, "gpu"))


def text(capability: Capability) -> str:
    """Return a compute capability in NVIDIA's notation."""
    return f"{capability[0]}.{capability[1]}"


def numbers(version: str) -> tuple[int, ...]:
    """Return the numbers of a driver's version ("535.104.05") up to the first part that is not a number."""
    version_numbers = []
    for number_text in version.split("."):
        if not (number_text.isascii() and number_text.isdigit()):
            break
        version_numbers.append(int(number_text))
    return tuple(version_numbers)

"""Which GPUs each backend's GPU build was compiled for. The only such table, also used by docs/compatibility.md.

Sources:
- Code in the wheels: read from the locked files with `python ci/gpu_code.py WHEEL`. TensorFlow states the same in
  `tensorflow/python/platform/build_info.py`, PyTorch in `torch.cuda.get_arch_list()`.
- Minimum drivers: NVIDIA, CUDA Compatibility (docs.nvidia.com/deploy/cuda-compatibility), "Minor Version
  Compatibility", and the CUDA 13.0 release notes. JAX's installation page has the same two numbers.
- A driver compiles PTX only up to its own CUDA version: CUDA Compatibility, "Application Considerations". The CUDA that
  wrote the PTX: TensorFlow's `build_info.py`; for JAX the PTX's own `.version 8.8`, which is CUDA 12.9's.

A version that is not in the table is not judged; add an entry together with the lock.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from keras_matrix.records.backends import TABLE, service_name

Capability = tuple[int, int]

# The lowest driver for each major version of CUDA.
MINIMUM_DRIVERS = {12: "525.60.13", 13: "580"}


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
        listed = ", ".join(text(one) for one in self.compiled)
        return listed if self.ptx is None else f"{listed}; PTX from {text(self.ptx)} on"


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
    Build(
        package="jax-cuda12-plugin",
        version="0.10.2",
        service="jax-gpu",
        cuda_major=12,
        compiled=((5, 0), (6, 0), (7, 0), (8, 0), (9, 0), (10, 0), (10, 1), (12, 0)),
        ptx=(12, 0),
        ptx_cuda=(12, 9),
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
    """Return the build of a backend from the installed versions, or None if it is not in the table."""
    row = TABLE[backend]
    found = {name: versions[name] for name in row.build_packages if name in versions}
    for build in BUILDS:
        # Without the label of this build's CUDA; another label belongs to another build.
        if found.get(build.package, "").removesuffix(f"+cu{build.cuda_major}0") == build.version:
            return build
    if set(found) != {row.cpu_package} or not found[row.cpu_package].endswith(row.cpu_version_suffix):
        return None
    return CpuBuild(row.cpu_package, found[row.cpu_package], service_name(backend, "gpu"))


def text(capability: Capability) -> str:
    """Return a compute capability in NVIDIA's notation."""
    return f"{capability[0]}.{capability[1]}"


def numbers(version: str) -> tuple[int, ...]:
    """Return the numbers of a driver's version ("535.104.05") up to the first part that is not a number."""
    found = []
    for part in version.split("."):
        if not (part.isascii() and part.isdigit()):
            break
        found.append(int(part))
    return tuple(found)

"""The page docs/compatibility.md: which backend, CUDA, driver and Python each image has, and how large it is.

Read from the locks, from the table of GPU builds (runner/machine/preflight.py) and, for the images' Python, from
compose.yaml. The sizes were measured: `SIZES_MB`. ci/pages.py writes the page for a build of the site.
"""

from __future__ import annotations

import re
import tomllib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from packaging.markers import Marker

from keras_matrix.runner.machine.preflight import BUILDS, MINIMUM_DRIVERS, Build, text

ROOT = Path(__file__).parent.parent
SERVICES = ("tf-cpu", "tf-gpu", "jax-cpu", "jax-gpu", "torch-cpu", "torch-gpu", "jax-tpu")
BACKENDS = {"tf": ("tensorflow", "tensorflow-cpu"), "jax": ("jax",), "torch": ("torch",)}
# The CPU build of PyTorch for other Pythons could not be had where this project is tested.
RUN = {"torch-cpu": ("3.11",)}
RUNTIMES = ("nvidia-cuda-runtime", "nvidia-cuda-runtime-cu12")
# The packages of an image, and the image in addition to its base, in MB, as `ci/images` prints them. A test of the
# images compares the second.
SIZES_MB = {
    "tf-cpu": (1505, 1616),
    "jax-cpu": (765, 858),
    "torch-cpu": (1073, 1201),
    "tf-cpu-ray": (1718, 1844),
    "jax-cpu-ray": (1015, 1121),
    "torch-cpu-ray": (1297, 1433),
    "dashboard": (307, 359),
    "uploader": (137, 182),
}
# Debian's releases and the `python3` of each; the tests of the images check this.
DEBIANS = {"bookworm": ("Debian 12", "3.11"), "trixie": ("Debian 13", "3.13")}
BASE = re.compile(r"^  BASE: \$\{(\w+):-debian:(\w+)-slim\}$", re.MULTILINE)
HEAD = """\
# What works with what

Generated from `locks/` and `compose.yaml`. Each service of `compose.yaml` is an image of its own: the GPU builds of two
frameworks bring CUDA and cuDNN in different versions, and in one environment the last one installed breaks the other.

| service | system | backend | Keras | CUDA | cuDNN | NCCL | driver of the host | compiled for | PTX for newer GPUs |
|---|---|---|---|---|---|---|---|---|---|
"""
TAIL = """
CUDA, cuDNN and NCCL come with the wheels; of the host only the NVIDIA driver and the NVIDIA Container Toolkit are
needed. The driver is the lowest for any release of that major version of CUDA; a newer one works too, and a feature of
a newer minor version may need it.

"Compiled for" lists compute capabilities. The code runs on GPUs of the same major capability and the same or a higher
minor one. On newer GPUs the driver compiles the build's PTX in the first epoch, if its CUDA version (top right in
`nvidia-smi`) is at least the one named. So TensorFlow needs a driver for CUDA 12.5 (555 or newer) on Hopper (9.0) and
newer; on 12.0 users report that it fails (tensorflow/tensorflow issue 97387). A GPU with neither is `unsupported`, a
driver that is too old `device_mismatch`, both before anything is measured ([gpu.md](gpu.md)). The capabilities were
read from the wheels of the locks with `ci/gpu_code.py`.

## Pythons

Each image has the Python of its Debian. `torch-cpu` and the nodes of a cluster, which need one Python, have that of
Debian 12, with which alone PyTorch's CPU build was run; `TORCH_BASE` selects another
([container-cells.md](container-cells.md#building)). The locks are for Python {pythons}, each with the newest versions
that it allows:

{table}

"Not run here": the versions were resolved, and no test has run with them. An index may lack their builds: `ci/setup`
takes the newest Python for which it has them. The GPU and TPU locks have one version for every Python, since the table
above is read from the wheels of one. PyTorch's CPU build is another file in each index, and is locked without a hash
(`locks/torch-build-cpu.txt`). Proofs of equal work ([parity.md](parity.md)) ship for the versions of Python 3.11.

## Sizes

What an image has in addition to its base, and how much of that is the packages of its lock. `ci/images` prints both,
and refuses more than 1.15 times the packages and 100 MB (`uploader`: 250 MB). With CUDA it is 5 to 7 GB, most of it
CUDA's wheels (not built since).

{sizes}

Byte code is only of the modules that cells import (`docker/byte_code.py`). `torch-gpu` has a C compiler and Python's
headers, with which Triton builds the launchers of the kernels of `torch.compile`.

## Not run

No cell was run on a GPU or a TPU with these images: none was at hand. `jax-tpu` is unverified altogether.
"""


@dataclass(frozen=True, slots=True)
class Row:
    """The contents of one image."""

    service: str
    system: str
    backend: str
    keras: str
    cuda: str | None
    cudnn: str | None
    nccl: str | None
    build: Build | None = None

    @property
    def driver(self) -> str | None:
        """The lowest driver of the host."""
        return None if self.cuda is None else f">= {MINIMUM_DRIVERS[int(self.cuda.partition('.')[0])]}"

    def text(self) -> str:
        """The row of the table."""
        compiled = None if self.build is None else ", ".join(map(text, self.build.compiled))
        cells = (
            self.service,
            self.system,
            self.backend,
            self.keras,
            self.cuda,
            self.cudnn,
            self.nccl,
            self.driver,
            compiled,
            self.ptx,
        )
        return f"| {' | '.join(cell or '-' for cell in cells)} |"

    @property
    def ptx(self) -> str | None:
        """The compute capability of the build's PTX, with the CUDA that the driver needs to compile it."""
        if self.build is None or self.build.ptx is None or self.build.ptx_cuda is None:
            return None
        return f"from {text(self.build.ptx)} on, with a driver for CUDA {text(self.build.ptx_cuda)}"


def pins(lock: str, python: str) -> dict[str, str]:
    """The versions that a lock pins for a Python, by name."""
    lines = re.findall(r"^([a-z0-9][a-z0-9._-]*)==([^\s;\\]+)(?: ; ([^\\\n]+))?", lock, re.MULTILINE)
    environment = {"python_version": python, "python_full_version": f"{python}.0", "platform_machine": "x86_64"}
    return {name: version for name, version, marker in lines if not marker or Marker(marker).evaluate(environment)}


def gpu_build(service: str, pinned: dict[str, str]) -> Build | None:
    """The GPU build that a lock pins; None for a service without a GPU. Raises for a build that is not in the table."""
    if not service.endswith("-gpu"):
        return None
    builds = [build for build in BUILDS if build.service == service and pinned.get(build.package) == build.version]
    assert builds, (
        f"{service}: add the GPU build of its lock to runner/machine/preflight.py (python ci/gpu_code.py WHEEL)"
    )
    return builds[0]


def row(service: str, system: str, pinned: dict[str, str]) -> Row:
    """The row of a service, from the pins of its lock. Raises `KeyError` for a CUDA with unknown drivers."""
    name = next(name for name in BACKENDS[service.partition("-")[0]] if name in pinned)
    cuda = next((pinned[runtime] for runtime in RUNTIMES if runtime in pinned), None)
    cudnn, nccl = (
        next((version for name, version in pinned.items() if name.startswith(f"nvidia-{library}-")), None)
        for library in ("cudnn", "nccl")
    )
    service_row = Row(service, system, f"{name} {pinned[name]}", pinned["keras"], cuda, cudnn, nccl)
    assert (cuda is not None) == service.endswith("-gpu"), f"{service}: CUDA {cuda}"
    return service_row


def by_python(locks: Mapping[str, str], pythons: Sequence[str]) -> str:
    """The table of what each Python gets on a CPU, with what was run; the other locks do not depend on the Python."""
    lines = [f"| service | {' | '.join(f'Python {python}' for python in pythons)} |", "|---" * (len(pythons) + 1) + "|"]
    for service in (service for service in locks if service.endswith("-cpu")):
        cells = []
        for python in pythons:
            pinned = pins(locks[service], python)
            name = next(name for name in BACKENDS[service.partition("-")[0]] if name in pinned)
            mark = "" if python in RUN.get(service, pythons) else ", not run here"
            cells.append(f"{name} {pinned[name]}, Keras {pinned['keras']}{mark}")
        lines.append(f"| {service} | {' | '.join(cells)} |")
    return "\n".join(lines)


def sizes() -> str:
    """The table of the images' sizes."""
    rows = (f"| {image} | {packages:,} MB | {added:,} MB |" for image, (packages, added) in SIZES_MB.items())
    return "\n".join(("| image | packages | in addition to the base |", "|---|---:|---:|", *rows))


def image_python(compose: str, service: str) -> tuple[str, str]:
    """The base system of a service's image and its Python. Raises `KeyError` for a system with unknown Python."""
    bases = dict(BASE.findall(compose))
    return DEBIANS[bases["TORCH_BASE" if service == "torch-cpu" else "BASE"]]


def page(root: Path = ROOT) -> str:
    """docs/compatibility.md."""
    rows, texts = [], {}
    compose = (root / "compose.yaml").read_text(encoding="utf-8")
    project = tomllib.loads((root / "pyproject.toml").read_text(encoding="utf-8"))["project"]
    pythons = [line.rpartition(" ")[2] for line in project["classifiers"] if re.search(r":: 3\.\d+$", line)]
    for service in SERVICES:
        lock = (root / "locks" / f"{service}.txt").read_text(encoding="utf-8")
        if service == "torch-cpu":
            lock += (root / "locks" / "torch-build-cpu.txt").read_text(encoding="utf-8")
        texts[service] = lock
        debian, python = image_python(compose, service)
        assert python in pythons, f"the locks do not support the images' Python {python}"
        pinned = pins(lock, python)
        system = f"{debian}, Python {python}"
        rows.append(replace(row(service, system, pinned), build=gpu_build(service, pinned)).text())
    versions = f"{', '.join(pythons[:-1])} and {pythons[-1]}"
    tail = TAIL.format(pythons=versions, table=by_python(texts, pythons), sizes=sizes())
    return HEAD + "\n".join(rows) + "\n" + tail

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

from ci.check_locks import pythons_of, supported_pythons, versions
from keras_matrix.runner.machine.preflight import BUILDS, MINIMUM_DRIVERS, Build, text

ROOT = Path(__file__).parent.parent
SERVICES = ("tf-cpu", "tf-gpu", "jax-cpu", "jax-gpu", "torch-cpu", "torch-gpu", "openvino-cpu", "jax-tpu")
# Of a second CUDA: a lock and an extra, without a service.
LOCK_ONLY = ("jax-gpu-cuda13",)
BACKENDS = {"tf": ("tensorflow", "tensorflow-cpu"), "jax": ("jax",), "torch": ("torch",), "openvino": ("openvino",)}
# The Pythons with which tests have run, or cells in the image. PyTorch's CPU build could be had for one only; there was
# no GPU and no TPU.
RUN = {
    "tf-cpu": ("3.11", "3.12", "3.13"),
    "jax-cpu": ("3.11", "3.12", "3.13"),
    "torch-cpu": ("3.11",),
    "openvino-cpu": ("3.11", "3.13"),
}
RUNTIMES = ("nvidia-cuda-runtime", "nvidia-cuda-runtime-cu12")
# The packages of an image, and the image in addition to its base, in MB, as `ci/images` prints them. A test of the
# images compares the second.
SIZES_MB = {
    "tf-cpu": (1505, 1616),
    "jax-cpu": (765, 858),
    "torch-cpu": (1073, 1201),
    "openvino-cpu": (599, 680),
    "tf-cpu-ray": (1718, 1844),
    "jax-cpu-ray": (1015, 1121),
    "torch-cpu-ray": (1297, 1433),
    "dashboard": (289, 342),
    "uploader": (119, 164),
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
([container-cells.md](container-cells.md#building)). The locks are for Python {pythons}; on 3.14 nothing has run, they
are resolved. Each lock has the newest versions that a Python allows:

{table}

"-": the backend has no wheel for this Python, and pip finds none. "Not run here": the versions were resolved, and no
test has run with them. An index may lack their builds: `ci/setup` takes the newest Python for which it has them.
PyTorch's CPU build is another file in each index, and is locked without a hash (`locks/torch-build-cpu.txt`); its
builds for other CUDA versions are only in PyTorch's own indexes, and have no lock. `jax-gpu-cuda13` is a lock and an
extra (`pip install keras-matrix[jax-gpu-cuda13]`), without a service. Proofs of equal work
([work.md](work.md#shipped-evidence)) ship for the versions of Python 3.11.

## Sizes

What an image has in addition to its base, and how much of that is the packages of its lock. `ci/images` prints both,
and refuses more than 1.15 times the packages and 100 MB (`uploader`: 178 MB). With CUDA it is 5 to 7 GB, most of it
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


def gpu_build(service: str, pinned: dict[str, str]) -> Build | None:
    """The GPU build that a lock pins; None for a service without a GPU. Raises for a build that is not in the table."""
    if "-gpu" not in service:
        return None
    builds = [build for build in BUILDS if pinned.get(build.package) == build.version]
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
    assert (cuda is not None) == ("-gpu" in service), f"{service}: CUDA {cuda}"
    return service_row


def by_python(locks: Mapping[str, str], pythons: Sequence[str]) -> str:
    """The table of what each Python gets from each lock, with what was run."""
    lines = [f"| lock | {' | '.join(f'Python {python}' for python in pythons)} |", "|---" * (len(pythons) + 1) + "|"]
    for service, lock in locks.items():
        cells = []
        for python in pythons:
            if python not in pythons_of(lock):
                cells.append("-")
                continue
            contents = row(service, "", versions(lock, python))
            mark = "" if python in RUN.get(service, ()) else ", not run here"
            cells.append(f"{contents.backend}, Keras {contents.keras}{mark}")
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
    pythons = supported_pythons(tomllib.loads((root / "pyproject.toml").read_text(encoding="utf-8")))
    for service in (*SERVICES, *LOCK_ONLY):
        lock = (root / "locks" / f"{service}.txt").read_text(encoding="utf-8")
        if service == "torch-cpu":
            lock += (root / "locks" / "torch-build-cpu.txt").read_text(encoding="utf-8")
        texts[service] = lock
        debian, python = image_python(compose, service)
        system = "no image" if service in LOCK_ONLY else f"{debian}, Python {python}"
        assert python in pythons_of(lock), f"locks/{service}.txt does not support the image's Python {python}"
        pinned = versions(lock, python)
        rows.append(replace(row(service, system, pinned), build=gpu_build(service, pinned)).text())
    names = f"{', '.join(pythons[:-1])} and {pythons[-1]}"
    tail = TAIL.format(pythons=names, table=by_python(texts, pythons), sizes=sizes())
    return HEAD + "\n".join(rows) + "\n" + tail

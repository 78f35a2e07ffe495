"""The environment of a cell: an allowlist of the caller's variables, its matrix's own, and those for its settings.

Of a GPU cell it also says how a backend's autotuners choose their kernels.
Kernels are tuned by timing them, so that processes may choose differently: a user has this scatter between processes
(`fresh`), the choice of the first process for all of them (`pinned`), or each library's own guess (`off`).

Sources: XLA's own descriptions of the flags (xla/debug_options_flags.cc); TensorFlow's use_cudnn.cc; of PyTorch
torch/_inductor/config.py. Derived from these sources, not tested on a GPU.
"""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from pathlib import Path

from keras_matrix.records.backends import TABLE
from keras_matrix.records.fc import network, spec
from keras_matrix.records.host import device_lists, inherited_environment
from keras_matrix.records.host.inherited_environment import (
    CREDENTIAL,
    MARK,
    THREAD_VARIABLES,
    has_user,
    variables_of,
)
from keras_matrix.records.host.platform import PLATFORM, Facility
from keras_matrix.records.host.procfs import ProcTree
from keras_matrix.records.settings import Settings
from keras_matrix.runner.cell.job import Job
from keras_matrix.runner.executors.supervise.visible_gpus import gpus_of
from keras_matrix.runner.machine.surroundings.processors import pinned

# What a process needs for its libraries and locale. These variables contain no secrets; those that may change a figure
# are recorded (`records.host.inherited_environment`). Variables for a backend's allocation of GPU memory are left out
# (XLA_PYTHON_CLIENT_PREALLOCATE, XLA_PYTHON_CLIENT_MEM_FRACTION, TF_FORCE_GPU_ALLOW_GROWTH): cells use the defaults.
ALLOWED = ("PATH", "LANG", "LC_ALL", "TZ", "LD_LIBRARY_PATH", "CUDA_HOME", "VIRTUAL_ENV")
# At levels below 2 TensorFlow logs why it does not use a GPU, such as "Cannot dlopen some GPU libraries".
LOG_LEVELS = {"cpu": "2", "gpu": "0", "tpu": "2"}
# The maximum size of the driver's cache of kernels compiled from PTX: the largest that the driver allows.
CUDA_CACHE_BYTES = 4 << 30
# Read by glibc, no effect elsewhere. At every step PyTorch's optimisers allocate and free as much memory as the
# weights: if it is returned to the kernel, page faults take a fifth of the time of mnist_mlp, and adjacent epochs of
# two processes scatter by 14 % instead of 3 to 5 %.
KEEP_FREED = {
    "MALLOC_MMAP_THRESHOLD_": str(32 << 20),
    "MALLOC_TRIM_THRESHOLD_": str(8 << 30),
    "MALLOC_TOP_PAD_": str(64 << 20),
}
INDUCTOR_CACHE = "inductor"


def cell_environment(
    settings: Settings, mark: str, caller_environment: Mapping[str, str] | None = None, gpus: Sequence[str] = ()
) -> dict[str, str]:
    """Return all variables of a cell's process; without `gpus` it gets the first visible ones.

    Raises `GpusUnavailable`.
    """
    gpus = gpus or gpus_of(settings, caller_environment)
    caller_environment = os.environ if caller_environment is None else caller_environment
    environment = {name: caller_environment[name] for name in ALLOWED if name in caller_environment}
    environment |= variables_of(settings.env) | _xla_flags(settings)
    environment |= {"KERAS_BACKEND": settings.backend, "TF_CPP_MIN_LOG_LEVEL": LOG_LEVELS[settings.device], MARK: mark}
    environment |= device_environment(settings.device, gpus)
    # Only if the cell's settings request it: the network of its workers is part of the cell's identity.
    if spec.network_of(settings) != spec.LOCAL and network.VARIABLE in caller_environment:
        environment[network.VARIABLE] = caller_environment[network.VARIABLE]
    if settings.freed_memory == "kept":
        environment |= KEEP_FREED
    cpus = pinned(settings.cpus, ProcTree(), PLATFORM.usable_cpus())
    if cpus is not None:
        environment[device_lists.CPUS_VARIABLE] = device_lists.cpu_text(cpus)
    if settings.threads != "all":
        environment |= dict.fromkeys(THREAD_VARIABLES, str(settings.threads))
    elif cpus is not None:
        environment |= dict.fromkeys(THREAD_VARIABLES, str(len(cpus)))
    return environment


def without_credentials(caller: Mapping[str, str]) -> dict[str, str]:
    """Return the caller's variables other than those that are known to contain credentials."""
    return {name: value for name, value in caller.items() if not CREDENTIAL.fullmatch(name) and not has_user(value)}


def device_environment(device: str, gpus: Sequence[str] = ()) -> dict[str, str]:
    """Return the variables that make only the cell's devices visible, for a GPU cell these GPUs."""
    if device == "cpu":
        return {"CUDA_VISIBLE_DEVICES": "-1", "JAX_PLATFORMS": "cpu", "KERAS_TORCH_DEVICE": "cpu"}
    if device == "gpu":
        # In the order of the bus, as the driver's own tools count them; by default CUDA begins with the fastest.
        return {"CUDA_DEVICE_ORDER": "PCI_BUS_ID", "CUDA_VISIBLE_DEVICES": ",".join(gpus)}
    return {"JAX_PLATFORMS": "tpu", "PJRT_DEVICE": "TPU"}  # not tested on such a device


def cuda_cache(job: Job) -> dict[str, str]:
    """Return the variables that make all GPU cells of a run share the driver's cache of compiled kernels.

    By default it is in the home folder, and a cell has a new one: the driver of each process would again compile what a
    backend ships only as PTX, such as all of TensorFlow's kernels on Hopper. CUDA C++ Programming Guide, "CUDA
    Environment Variables"; tensorflow/tensorflow#62320.
    """
    return {} if job.cuda_cache_dir is None else cuda_cache_in(job.cuda_cache_dir)


def cuda_cache_in(folder: str) -> dict[str, str]:
    """Return the variables that set the folder of the driver's cache."""
    return {inherited_environment.CUDA_CACHE: folder, "CUDA_CACHE_MAXSIZE": str(CUDA_CACHE_BYTES)}


def allowed_cpus(settings: Settings) -> list[int] | None:
    """Return the CPUs a cell is bound to, None for all: those it names, else as many as its threads need.

    The last ones, since the first handle most interrupts.
    """
    available = sorted(PLATFORM.usable_cpus())
    cpus = pinned(settings.cpus, ProcTree(), available)
    if cpus is not None or settings.threads == "all":
        return None if cpus is None else list(cpus)
    if PLATFORM.lacks(Facility.AFFINITY):  # the variables of THREAD_VARIABLES limit the threads all the same
        return None
    return available[-int(settings.threads) :]


def autotuning(job: Job) -> dict[str, str]:
    """Return the variables for the cell's setting `autotune`; flags of XLA follow those of its matrix."""
    variables, flags = _autotuning(job), _flags_of(job.settings)
    return variables | (
        {"XLA_FLAGS": f"{flags} {variables['XLA_FLAGS']}"} if flags and "XLA_FLAGS" in variables else {}
    )


def _xla_flags(settings: Settings) -> dict[str, str]:
    """Return the variable of the matrix's flags of XLA, those of `env` first."""
    return {"XLA_FLAGS": flags} if (flags := _flags_of(settings)) else {}


def _flags_of(settings: Settings) -> str:
    return f"{variables_of(settings.env).get('XLA_FLAGS', '')} {settings.xla_flags}".strip()


def _autotuning(job: Job) -> dict[str, str]:
    backend = TABLE[job.settings.backend]
    if job.settings.autotune == "off":
        return dict(backend.autotune_off)
    if job.autotune_dir is None:
        return {}
    if not backend.autotune_in_xla:
        return {"TORCHINDUCTOR_CACHE_DIR": str(Path(job.autotune_dir) / INDUCTOR_CACHE)}
    if job.tuned_path.exists():
        return {"XLA_FLAGS": f"--xla_gpu_load_autotune_results_from={job.tuned_path}"}
    # Written at every compilation: into the cell's own folder, and moved to its final path after the cell's work.
    return {"XLA_FLAGS": f"--xla_gpu_dump_autotune_results_to={job.tuning_path}"}

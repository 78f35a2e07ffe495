"""The environment of a cell: an allowlist and what the cell's settings ask for; nothing else of the caller's."""

from __future__ import annotations

import os
from collections.abc import Mapping

from records.settings import Settings

# What a process needs to find its libraries and speak its language; no name here carries a secret or changes a figure.
ALLOWED = (
    "PATH",
    "LANG",
    "LC_ALL",
    "TZ",
    "LD_LIBRARY_PATH",
    "CUDA_HOME",
    "XLA_PYTHON_CLIENT_PREALLOCATE",
    "VIRTUAL_ENV",
)
THREAD_VARIABLES = ("OMP_NUM_THREADS", "MKL_NUM_THREADS", "OPENBLAS_NUM_THREADS", "TF_NUM_INTRAOP_THREADS")

# Marks every process of a cell with the folder it works for, so that what a killed runner left can be found.
MARK = "KERAS_BENCHMARK_RESULTS"


def cell_environment(settings: Settings, mark: str, caller: Mapping[str, str] | None = None) -> dict[str, str]:
    """Return the variables of a cell's process, all of them."""
    caller = os.environ if caller is None else caller
    found = {name: caller[name] for name in ALLOWED if name in caller}
    found |= {"KERAS_BACKEND": settings.backend, "TF_CPP_MIN_LOG_LEVEL": "2", MARK: mark}
    found |= device_environment(settings.device, caller)
    if settings.threads != "all":
        found |= dict.fromkeys(THREAD_VARIABLES, str(settings.threads))
    return found


def device_environment(device: str, caller: Mapping[str, str]) -> dict[str, str]:
    """Return what shows the cell its device and hides every other; a GPU cell gets one index for itself."""
    if device == "cpu":
        return {"CUDA_VISIBLE_DEVICES": "-1", "JAX_PLATFORMS": "cpu", "KERAS_TORCH_DEVICE": "cpu"}
    if device == "gpu":
        visible = caller.get("CUDA_VISIBLE_DEVICES", "0").split(",")
        return {"CUDA_VISIBLE_DEVICES": visible[0]}
    return {"JAX_PLATFORMS": "tpu", "PJRT_DEVICE": "TPU"}  # unverified: no such device was at hand


def allowed_cpus(settings: Settings) -> list[int] | None:
    """Return the CPUs a cell is held to, None for all: the threads a setting asks for need no more."""
    if settings.threads == "all":
        return None
    available = sorted(os.sched_getaffinity(0))
    return available[: int(settings.threads)]

"""What a record says of the environment that a cell's process inherited.

Promise: no value of a variable is recorded as it is, since a path may hold a user's name: two processes with the same
text have the same value here, and others do not.
"""

from __future__ import annotations

import hashlib
from collections.abc import Mapping
from pathlib import Path

# Which libraries a backend loads, such as another cuDNN or CUDA than that of its own packages.
RECORDED = ("CUDA_HOME", "LD_LIBRARY_PATH")
CUDA_CACHE = "CUDA_CACHE_PATH"


def recorded(environment: Mapping[str, str]) -> list[str]:
    """Return `NAME=sha256:...` of each variable that is passed on and may change a figure, in their order."""
    return [f"{name}=sha256:{_digest(environment[name])}" for name in RECORDED if environment.get(name)]


def cuda_cache_state(environment: Mapping[str, str]) -> str | None:
    """Return `empty` or `filled`, as the run's cache of kernels compiled by the driver is now; None without one."""
    folder = environment.get(CUDA_CACHE)
    if not folder or not Path(folder).is_dir():
        return None
    return "filled" if any(Path(folder).iterdir()) else "empty"


def _digest(text: str) -> str:
    return hashlib.sha256(text.encode("utf-8", "surrogateescape")).hexdigest()[:16]

"""The inherited environment of a cell's process as stored in its record, and addresses without their passwords.

Values are recorded as hashes, since a path may contain a user's name: equal hashes mean equal values.
"""

from __future__ import annotations

import hashlib
import re
from collections.abc import Iterator, Mapping, MutableMapping
from contextlib import contextmanager
from pathlib import Path

# They determine which libraries a backend loads, such as another cuDNN or CUDA than that of its own packages.
RECORDED = ("CUDA_HOME", "LD_LIBRARY_PATH")
CUDA_CACHE = "CUDA_CACHE_PATH"
# The number of threads of the libraries that compute.
THREAD_VARIABLES = ("OMP_NUM_THREADS", "MKL_NUM_THREADS", "OPENBLAS_NUM_THREADS", "TF_NUM_INTRAOP_THREADS")
# Marks every process of a cell with the folder it works for, so that what a killed runner left can be found.
MARK = "KERAS_BENCHMARK_RESULTS"
# `http://user:password@proxy:3128`, `https://token@host/repository`, and without a scheme `user:password@proxy`.
# A password may contain a slash or an @.
USER = re.compile(r"(?P<scheme>[A-Za-z][A-Za-z0-9+.-]*://)\S*@|[^/\s:@=]+:\S*@")


def recorded(environment: Mapping[str, str]) -> list[str]:
    """Return `NAME=sha256:...` for each inherited variable that may change a figure."""
    digests = {
        name: hashlib.sha256(value.encode("utf-8", "surrogateescape")).hexdigest()[:16]
        for name in RECORDED
        if (value := environment.get(name))
    }
    return [f"{name}=sha256:{digest}" for name, digest in digests.items()]


@contextmanager
def kept(environment: MutableMapping[str, str]) -> Iterator[None]:
    """Restore the recorded variables at the end: OpenCV, which Keras imports if it is there, changes one of them."""
    previous_values = {name: environment[name] for name in RECORDED if name in environment}
    try:
        yield
    finally:
        for name in RECORDED:
            environment.pop(name, None)
        environment.update(previous_values)


def cuda_cache_state(environment: Mapping[str, str]) -> str | None:
    """Return whether the run's cache of kernels compiled by the driver is `empty` or `filled`; None without one."""
    folder = environment.get(CUDA_CACHE)
    if not folder or not Path(folder).is_dir():
        return None
    return "filled" if any(Path(folder).iterdir()) else "empty"


def has_user(text: str) -> bool:
    """Return whether a text contains an address with a user."""
    return USER.search(text) is not None


def without_user(text: str) -> str:
    """Return a text whose addresses name no user."""
    return USER.sub(lambda match: match["scheme"] or "", text)

"""What the processes of a workload share: their common end, their CPUs, float64 and garbage collection."""

from __future__ import annotations

import gc
import multiprocessing
import signal
from collections.abc import Callable
from multiprocessing.connection import Connection
from multiprocessing.process import BaseProcess
from typing import Any

from keras_matrix.records.host.platform import PLATFORM, StartMethod


def start_method(device: str) -> StartMethod:
    """Return how processes that use a device are started."""
    return PLATFORM.start_method(device)


def started(
    live: Callable[..., None], start: Any, requests: Connection, not_its: list[Connection], method: StartMethod
) -> BaseProcess:
    """Start a process that calls `live(start, requests, not_its)`; `not_its` are open here and those of others."""
    # A copy also has these ends of the pipes; a new interpreter only has its arguments.
    arguments = (start, requests, not_its if method == "fork" else [])
    context: Any = multiprocessing.get_context(method)
    process: BaseProcess = context.Process(target=live, args=arguments, daemon=True)
    process.start()
    requests.close()
    return process


def end_with_parent() -> None:
    """Let the kernel kill this process with the thread that started it: during steps no pipe is read."""
    parent = multiprocessing.parent_process()
    PLATFORM.end_with_parent(-1 if parent is None or parent.pid is None else parent.pid)


def end_of(exit_code: int) -> str:
    """Return in words how a process ended."""
    if exit_code < 0:
        return f"was ended by signal {-exit_code} ({signal.Signals(-exit_code).name})"
    return f"ended with exit code {exit_code}"


def take_share(rank: int, size: int) -> int:
    """Bind this process to its share of the CPUs, if there is at least one for each; return how many it may use."""
    cpus = sorted(PLATFORM.usable_cpus())
    share = len(cpus) // size
    if share and size > 1:
        PLATFORM.bind(cpus[rank * share : (rank + 1) * share])
    return max(1, share)


def keep_float64() -> None:
    """Let Keras compute in float64 if that was requested.

    Keras 3.15 on JAX and PyTorch converts every float64 result of its type promotion to float32 (on TensorFlow the
    table below has no such entry), so that normalisations and means, on PyTorch also dense layers, compute in float32
    under a float64 policy. Timed cells keep this behaviour of Keras; parity processes and the FC modes disable it,
    since float64 distinguishes errors from rounding.
    """
    from keras.src.backend.common import dtypes

    dtypes.BIT64_TO_BIT32_DTYPE["float64"] = "float64"


def settle() -> None:
    """Collect garbage now, and exclude all remaining objects from later collections.

    A full collection with an imported backend takes 0.2 s. The epoch in which it happens would depend on the number of
    objects: on the version of Python and the location of its files. Objects of later epochs are collected as usual.
    """
    gc.collect()
    gc.freeze()


def end_with(parent: int | None, number: signal.Signals) -> None:
    """Have the kernel send this process a signal when its parent, with this process id, ends; None: do nothing."""
    if parent is not None:
        PLATFORM.end_with_parent(parent, number)

"""Starts processes that end with this one: workers of the FC modes, and replicas of a Keras workload on PyTorch."""

from __future__ import annotations

import ctypes
import multiprocessing
import os
import signal
from collections.abc import Callable
from multiprocessing.connection import Connection
from multiprocessing.process import BaseProcess
from typing import Any, Literal

PR_SET_PDEATHSIG = 1
StartMethod = Literal["fork", "spawn"]


def start_method(device: str) -> StartMethod:
    """Return how processes that use a device are started: CUDA cannot be used in a forked one."""
    return "fork" if device == "cpu" else "spawn"


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
    refused = ctypes.CDLL(None, use_errno=True).prctl(PR_SET_PDEATHSIG, signal.SIGKILL, 0, 0, 0)
    if refused:
        raise OSError(ctypes.get_errno(), "prctl(PR_SET_PDEATHSIG) was refused")
    if parent is None or os.getppid() != parent.pid:  # it ended before the call
        os._exit(0)


def end_of(exit_code: int) -> str:
    """Return in words how a process ended."""
    if exit_code < 0:
        return f"was ended by signal {-exit_code} ({signal.Signals(-exit_code).name})"
    return f"ended with exit code {exit_code}"

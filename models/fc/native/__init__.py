"""What each backend brings to the FC modes: its workers' collectives and gradients, and how a step is built and run.

`assemble` creates the worker group: a process per worker for PyTorch, and for every backend over a network.

A network is that of `ci/netns` or of several machines. Without one, workers of JAX and TensorFlow are devices of this
process.
"""

from __future__ import annotations

import importlib
from typing import cast

from keras_matrix.models.fc.worker_group import WorkerGroup, WorkerSpec
from keras_matrix.models.process import keep_float64
from keras_matrix.records.backends import TABLE


def reserve(backend: str, workers: int, device: str) -> None:
    """Ensure that the backend has a device for each worker; must be called before the backend is used.

    Raises `NoDevice` if there is no such device at all, `NoSuchDevices` if there are too few.
    """
    importlib.import_module(f"keras_matrix.models.fc.native.{backend}").reserve(workers, device)


def assemble(backend: str, order: WorkerSpec, *, apart: bool = False) -> WorkerGroup:
    """Return the worker group of a problem; with `apart` even a single PyTorch worker is in a separate process.

    On a CPU worker processes are forked from this one, which therefore must not have used the backend before: without
    `reserve` for workers that communicate over a network.
    """
    if order.problem.precision == "float64":
        keep_float64()
    if order.apart or (TABLE[backend].fc_in_processes and (apart or order.problem.workers > 1)):
        from keras_matrix.models.fc.ranks import Ranks

        return Ranks(order, backend=backend)
    return cast(WorkerGroup, importlib.import_module(f"keras_matrix.models.fc.native.{backend}").make(order))

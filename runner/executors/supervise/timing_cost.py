"""Measures in a child process what timing costs on a backend."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from keras_matrix.runner.errors import InfrastructureError
from keras_matrix.runner.executors.probe import ProbeFailed, probe_settings
from keras_matrix.runner.executors.process.probe import ProcessProbe
from keras_matrix.runner.matrix.catalog import load

TARGET = 0.01
WORKLOAD = "mnist_mlp"
START_LIMIT_S = 120.0


def cost_of_timing(backend: str, limit_s: float) -> dict[str, Any]:
    """Return the ratio of our timed epochs to bare ones, with its interval and pairs. Raises `InfrastructureError`."""
    workload = load().workloads[WORKLOAD]
    settings = replace(
        probe_settings(backend, threads=1),
        workload=WORKLOAD,
        batch_size=workload.batch_size,
        samples=workload.samples,
        freed_memory="kept",  # else PyTorch's page faults dominate what is measured
    )
    order = {"settings": settings, "target": TARGET, "limit_s": limit_s}
    try:
        found: dict[str, Any] = ProcessProbe().ask(
            "keras_matrix.runner.cell.checks.timing_cost", order, settings, limit_s + START_LIMIT_S
        )
    except ProbeFailed as error:
        raise InfrastructureError(f"cost of timing on {backend}: {error}") from error
    return found

"""Asking a child process what timing costs on a backend."""

from __future__ import annotations

import json
import subprocess
import sys
import tempfile
from dataclasses import asdict, replace
from typing import Any

from keras_matrix.runner.checks.peaks import probe_settings
from keras_matrix.runner.errors import InfrastructureError
from keras_matrix.runner.executors.supervise.environment import cell_environment
from keras_matrix.runner.matrix.catalog import load

TARGET = 0.01
WORKLOAD = "mnist_mlp"
START_LIMIT_S = 120.0


def cost_of_timing(backend: str, limit_s: float) -> dict[str, Any]:
    """Return the ratio of our timed epochs to bare ones, with its interval and pairs. Raises `InfrastructureError`."""
    workload = load().workloads[WORKLOAD]
    settings = replace(
        probe_settings(backend),
        workload=WORKLOAD,
        batch_size=workload.batch_size,
        samples=workload.samples,
        freed_memory="kept",  # else PyTorch's page faults drown what is measured
    )
    asked = json.dumps(asdict(settings) | {"threads": 1})
    with tempfile.TemporaryDirectory(prefix="runner-cost-") as home:
        places = {"HOME": home, "KERAS_HOME": home, "TMPDIR": home, "OMP_NUM_THREADS": "1"}
        command = [
            sys.executable,
            "-P",
            "-m",
            "keras_matrix.runner.cell.checks.timing_cost",
            asked,
            str(TARGET),
            str(limit_s),
        ]
        try:
            done = subprocess.run(
                command,
                env=cell_environment(settings, "") | places,
                capture_output=True,
                text=True,
                timeout=limit_s + START_LIMIT_S,
                check=True,
            )
            found: dict[str, Any] = json.loads(done.stdout.splitlines()[-1])
        except (subprocess.SubprocessError, ValueError, IndexError) as error:
            told = getattr(error, "stderr", None) or str(error)
            raise InfrastructureError(f"cost of timing on {backend}: {str(told).strip()[-400:]}") from error
    return found

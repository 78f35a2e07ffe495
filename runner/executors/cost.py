"""Asking a child process what timing costs on a backend."""

from __future__ import annotations

import json
import subprocess
import sys
import tempfile
from dataclasses import asdict
from typing import Any

from records.settings import Settings
from runner.catalog import load
from runner.errors import InfrastructureError
from runner.executors.environment import cell_environment
from runner.grammar import SETTINGS

TARGET = 0.01
WORKLOAD = "mnist_mlp"
START_LIMIT_S = 120.0
# Freed memory stays with the process. PyTorch's optimisers allocate and free as much as the model has weights at every
# step; without this the kernel's page faults take a fifth of the time, and a pair scatters by 14 % instead of 3 to 5 %.
KEEP_FREED = {
    "MALLOC_MMAP_THRESHOLD_": str(32 << 20),
    "MALLOC_TRIM_THRESHOLD_": str(8 << 30),
    "MALLOC_TOP_PAD_": str(64 << 20),
}


def cost_of_timing(backend: str, limit_s: float) -> dict[str, Any]:
    """Return the ratio of our timed epochs to bare ones, with its interval and pairs. Raises `InfrastructureError`."""
    workload = load().workloads[WORKLOAD]
    usual = {key: rule.default for key, rule in SETTINGS.items() if rule.default is not None}
    size = {"batch_size": workload.batch_size, "samples": workload.samples}
    settings = Settings(**(usual | size), backend=backend, workload=WORKLOAD, params={})  # type: ignore[arg-type]
    asked = json.dumps(asdict(settings) | {"threads": 1})
    with tempfile.TemporaryDirectory(prefix="runner-cost-") as home:
        places = {"HOME": home, "KERAS_HOME": home, "TMPDIR": home, "OMP_NUM_THREADS": "1", **KEEP_FREED}
        command = [sys.executable, "-P", "-m", "runner.cell.cost", asked, str(TARGET), str(limit_s)]
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

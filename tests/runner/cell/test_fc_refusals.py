"""A cell of the FC modes that is impossible here ends with its reason before anything is allocated.

`unsupported`, except where there is no device of the requested kind at all: `device_mismatch`, as of any other cell.
"""

from __future__ import annotations

import json
from typing import Any

import pytest

from keras_matrix.records.backends import TRAINING_BACKENDS
from tests.imported import ran

# Pretends that there are three GPUs and then none (but, as JAX has it then, a CPU), and that 1 MiB of memory is free;
# prints the class and the message of each refusal. The host's memory says nothing of the GPUs'.
ASKED = """
import importlib, json, os, sys, types
from keras_matrix.runner.cell import fc
from keras_matrix.runner.cell.backends import Unsupported
from keras_matrix.runner.cell.job import Job
from keras_matrix.runner.cell.checks.devices import DeviceMismatch
from tests.conftest import make_settings

def refused(backend, free_bytes, **changes):
    fc.system.free_memory_bytes = lambda: free_bytes
    params = {"mode": "fc_data", "workers": 4, "level": 2, "weight_size": 512}
    settings = make_settings(workload="fc", backend=backend, params=params, batch_size=128, **changes)
    try:
        fc.measure_fc(Job("nonce", "cell", 0, 0, settings, 1, ".", [], None, None), 0.0, "fresh")
    except (Unsupported, DeviceMismatch) as reason:
        return type(reason).__name__, str(reason)

def assemble(*arguments, **named):
    raise AssertionError("workers were made")

fc.assemble = assemble
backend, gpus = os.environ["KERAS_BACKEND"], 3
if backend == "torch":
    importlib.import_module("torch").cuda.device_count = lambda: gpus
elif backend == "jax":
    seen = [types.SimpleNamespace(platform=platform) for platform in ("gpu", "gpu", "gpu", "cpu")]
    importlib.import_module("jax").devices = lambda: seen[3 - gpus:]
else:
    importlib.import_module("tensorflow").config.list_physical_devices = lambda *arguments: ["gpu"] * gpus
found = [refused(backend, 1 << 20, device="gpu"), refused(backend, 1 << 20)]
gpus = 0
print(json.dumps([*found, refused(backend, 1 << 20, device="gpu")]))
"""


def printed(script: str, backend: str) -> Any:
    """Run a script in a process of its own, as a cell is, and return what it printed as JSON."""
    done = ran(backend, script)
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout)


@pytest.mark.one_backend
@pytest.mark.process
@pytest.mark.parametrize("backend", TRAINING_BACKENDS)
def test_too_few_devices_and_too_little_memory_are_unsupported_and_no_device_is_a_mismatch(backend: str) -> None:
    few, memory, none = printed(ASKED, backend)
    assert none == [
        "DeviceMismatch",
        f"device: gpu was requested, but {backend} finds no such device; check the device, and install the build of "
        f"{backend} for it",
    ]
    assert few == [
        "Unsupported",
        f"workers: must be at most the number of GPUs that {backend} finds in this cell (3), got 4; name more in "
        "CUDA_VISIBLE_DEVICES, or set device: cpu to use more workers than devices",
    ]
    # Weights and gradients of two layers of 512 x 512 and one of 512, four times; three layers' inputs of 128 x 512.
    needed = (2 * 4 * (2 * 512**2 + 512) + 3 * 128 * 512) * 4
    assert memory == [
        "Unsupported",
        f"weight_size: 512 at level 2 and batch_size 128 needs at least {needed / 2**20:.1f} MiB in fc_data with 4 "
        "workers, but 1.00 MiB are free; lower weight_size, level or workers",
    ]


# Pretends that the workers of a CPU's cell, processes of their own, are found on GPUs.
ELSEWHERE = """
import json
from keras_matrix.runner.cell import fc
from keras_matrix.runner.cell.job import Job
from keras_matrix.runner.cell.checks.devices import DeviceMismatch
from keras_matrix.records.fc.spec import WorkerPlacement
from tests.conftest import make_settings

class Workers:
    closed = False
    def places(self):
        return [WorkerPlacement(worker, f"cuda:{worker}", [], [], [], process=1) for worker in range(2)]
    def close(self):
        self.closed = True

workers = Workers()
fc.assemble = lambda *arguments, **named: workers
settings = make_settings(workload="fc", backend="torch", params={"mode": "fc_data", "workers": 2}, batch_size=128)
try:
    fc.measure_fc(Job("nonce", "cell", 0, 0, settings, 1, ".", [], None, None), 0.0, "fresh")
except DeviceMismatch as reason:
    print(json.dumps([str(reason), workers.closed]))
"""


@pytest.mark.process
def test_workers_on_another_device_are_ended_without_a_measurement() -> None:
    assert printed(ELSEWHERE, "torch") == ["device: cpu was requested, but workers are on cuda:0", True]

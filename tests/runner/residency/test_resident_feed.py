"""`feed: device_resident`: no measured step copies a batch to the device, on any backend.

TensorFlow runs on two logical CPUs, JAX with forbidden transfers, PyTorch on fake tensors.
"""

from __future__ import annotations

import json
import subprocess
from functools import cache
from pathlib import Path
from typing import Any

import pytest

from tests.imported import ran

pytestmark = [pytest.mark.process, pytest.mark.xdist_group("residency")]
HERE = Path(__file__).parent


def finished(backend: str, script: str, *options: str) -> subprocess.CompletedProcess[str]:
    return ran(backend, HERE / script, *options)


@cache
def seen(backend: str, script: str, *options: str) -> dict[str, Any]:
    done = finished(backend, script, *options)
    assert done.returncode == 0, done.stderr
    found: dict[str, Any] = json.loads(done.stdout.splitlines()[-1])
    return found


@pytest.mark.parametrize("jit", ["", "jit"])
def test_a_resident_step_of_tensorflow_receives_only_the_bounds_of_its_row_from_the_host(jit: str) -> None:
    found = seen("tensorflow", "two_devices.py", "1", jit, "")
    assert (found["devices"], found["sent"]) == (["CPU:1"], ["Reshape", "add"])


def test_several_resident_steps_in_one_call_pass_row_numbers_and_conditions_between_the_devices() -> None:
    found = seen("tensorflow", "two_devices.py", "2", "", "")
    operations = {name.rpartition("/")[2].rstrip("0123456789_") for name in found["sent"] if "input" not in name}
    assert found["devices"] == ["CPU:1"]
    assert operations - {""} <= {"IteratorGetNext", "Reshape", "add", "Less"}
    assert found["same_batches"]


@pytest.mark.parametrize("options", [("1", "", ""), ("2", "", ""), ("1", "", "eager")])
def test_resident_batches_of_tensorflow_are_equal_counted_and_do_not_retrace(options: tuple[str, str, str]) -> None:
    found = seen("tensorflow", "two_devices.py", *options)
    assert (found["same_batches"], found["drawn"], found["new_traces"]) == (True, 20, 0)


def test_a_resident_step_of_jax_runs_with_implicit_transfers_forbidden() -> None:
    assert finished("jax", "guarded_jax.py", "device_resident").returncode == 0


def test_a_host_fed_step_of_jax_makes_an_implicit_transfer() -> None:
    assert "Disallowed host-to-device transfer" in finished("jax", "guarded_jax.py", "host_fed").stderr


def test_no_value_is_read_from_torch_tensors_before_the_end_of_an_epoch() -> None:
    # Six steps, and the batch from which Keras builds the model's metrics.
    expected = {"drawn": 7, "read_in_step": False, "read": True, "same_tensors": True}
    assert expected == seen("torch", "fake_torch.py", "plain")


def test_a_torch_step_that_reads_its_loss_is_detected() -> None:
    assert seen("torch", "fake_torch.py", "reading")["read_in_step"]

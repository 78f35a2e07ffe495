"""A backend that cannot use any GPU, because there is none or because its driver does not work: `device_mismatch`."""

from __future__ import annotations

import os
import subprocess
import sys
from types import SimpleNamespace
from typing import Any

import pytest

from keras_matrix.runner.cell.checks.devices import DeviceMismatch, prove
from keras_matrix.runner.executors.process.executor import ProcessExecutor
from tests.conftest import make_settings

# A machine with a GPU's device file, but whose driver JAX cannot use; the message is JAX's own.
BROKEN_DRIVER = """
import sys
from keras_matrix.runner.cell.backends.jax import Adapter
from keras_matrix.runner.cell.checks.devices import DeviceMismatch, prove
from tests.conftest import make_settings
if sys.argv[1] == "device file":
    import jax._src.hardware_utils
    jax._src.hardware_utils.has_visible_nvidia_gpu = lambda: True
try:
    prove(Adapter(), make_settings(backend="jax", device="gpu"))
except DeviceMismatch as reason:
    print(reason)
"""


def adapter(error: Exception) -> Any:
    def proof() -> Any:
        raise error

    return SimpleNamespace(proof=proof)


@pytest.mark.parametrize(
    "message",
    [
        "Unable to initialize backend 'cuda': INTERNAL: CUDA error: Failed call to cuInit: CUDA_ERROR_NO_DEVICE",
        "no supported devices found for platform CUDA",
        "The NVIDIA driver on your system is too old (found version 11040)",
        "CUDA driver version is insufficient for CUDA runtime version",
    ],
)
def test_an_error_that_names_a_missing_device_or_driver_is_a_device_mismatch(message: str) -> None:
    with pytest.raises(DeviceMismatch) as caught:
        prove(adapter(RuntimeError(f"{message}\nand more")), make_settings(device="gpu"))
    assert str(caught.value) == (
        f"device: gpu was requested, but jax cannot use one: {message}; check nvidia-smi, and the driver "
        "that this build needs (docs/troubleshooting.md#on-a-gpu)"
    )


@pytest.mark.parametrize(
    ("message", "device"),
    [
        ("Unable to initialize backend 'cuda': RESOURCE_EXHAUSTED: out of memory", "gpu"),
        ("Unable to initialize backend 'cuda': INTERNAL: CUDA_ERROR_OUT_OF_MEMORY: out of memory", "gpu"),
        ("CUDA error: unspecified launch failure", "gpu"),
        ("Unable to initialize backend 'cuda'", "cpu"),
    ],
)
def test_other_errors_are_unchanged(message: str, device: str) -> None:
    with pytest.raises(RuntimeError, match=message[:20]):
        prove(adapter(RuntimeError(message)), make_settings(device=device))


@pytest.mark.process
@pytest.mark.parametrize(
    ("machine", "reason"),
    [
        ("device file", "Unable to initialize backend 'cuda'"),
        ("nothing", "no platform named in JAX_PLATFORMS is available; "),
    ],
)
def test_jax_without_a_usable_gpu_is_a_device_mismatch(machine: str, reason: str) -> None:
    environment = os.environ | {"JAX_PLATFORMS": "cuda", "KERAS_BACKEND": "jax"}
    command = [sys.executable, "-c", BROKEN_DRIVER, machine]
    done = subprocess.run(command, env=environment, capture_output=True, text=True, timeout=120, check=False)
    assert done.returncode == 0, done.stderr
    assert done.stdout.startswith(f"device: gpu was requested, but jax cannot use one: {reason}")


@pytest.mark.parametrize("device", ["cpu", "gpu", "tpu"])
def test_the_advice_for_a_missing_backend_names_the_extra_of_the_device(device: str) -> None:
    interpreter: Any = SimpleNamespace(
        python="python", absent=lambda names: ["jax"], foreign=False, version=lambda: (3, 14)
    )
    why = ProcessExecutor(interpreter=interpreter).missing("jax", device)
    assert why == (
        "backend_not_installed: jax cannot be found by python; "
        f"install it with: pip install 'keras-matrix[jax-{device}]', or choose other backends with --backend"
    )


def test_the_advice_for_a_backend_without_a_wheel_names_the_newest_python_with_one() -> None:
    """Mutation: an extra is named that pip cannot install."""
    interpreter: Any = SimpleNamespace(
        python="python", absent=lambda names: ["tensorflow"], foreign=False, version=lambda: (3, 14)
    )
    why = ProcessExecutor(interpreter=interpreter).missing("tensorflow", "cpu")
    assert why == (
        "backend_not_installed: tensorflow cannot be found by python; tensorflow has no wheel for Python 3.14; "
        "the newest with one is 3.13, or choose other backends with --backend"
    )

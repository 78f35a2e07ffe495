"""Checks of a cell's devices inside its process: that there are enough, of the requested kind, and that they work."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

from keras_matrix.models.fc.worker_group import NoDevice, NoSuchDevices
from keras_matrix.records import replicas
from keras_matrix.records.fc import rules
from keras_matrix.records.host.platform import PLATFORM
from keras_matrix.records.host.system import says_out_of_memory
from keras_matrix.records.schema import DeviceProof
from keras_matrix.records.settings import Settings
from keras_matrix.runner.cell.backends import BackendAdapter, Unsupported

# The meaning of an assertion of JAX without a message (`jax._src.xla_bridge.backends`).
NO_PLATFORM = "no platform named in JAX_PLATFORMS is available"
# Messages of backends and CUDA if there is no device of the kind, or its driver cannot be used.
NO_DEVICE_TEXTS = (
    "Unable to initialize backend",
    NO_PLATFORM,
    "no supported devices found",
    "No visible GPU",
    "no CUDA-capable device",
    "No CUDA GPUs are available",
    "NO_DEVICE",
    "driver version is insufficient",
    "INSUFFICIENT_DRIVER",
    "driver on your system is too old",
    "Found no NVIDIA driver",
)


class DeviceMismatch(Exception):
    """Tensors are not placed on the requested device."""


def refuse_several_machines(settings: Settings) -> None:
    """Raise `Unsupported` if the cell is to be divided among several machines, which `fit` is not."""
    if reason := rules.undivided(settings):
        raise Unsupported(reason)


def refuse_devices(settings: Settings) -> None:
    """Raise `Unsupported` if the backend or the cell's CPUs do not allow its phase or its number of devices."""
    problems = (*replicas.problems(settings), replicas.backend_problem(settings))
    cpu_count = len(PLATFORM.usable_cpus())
    if reasons := [reason for reason in (*problems, replicas.too_few_cpus(settings, cpu_count)) if reason]:
        raise Unsupported("; ".join(reasons))


@contextmanager
def reserving(settings: Settings) -> Iterator[None]:
    """Raise `DeviceMismatch` if there is no device of the kind within, `Unsupported` if there are too few."""
    try:
        yield
    except NoDevice as error:
        raise DeviceMismatch(str(error)) from error
    except NoSuchDevices as error:
        raise Unsupported(str(error)) from error
    except (RuntimeError, AssertionError) as error:
        check_initialised(error, settings)
        raise


def prove(adapter: BackendAdapter, settings: Settings) -> DeviceProof:
    """Return the device of tensors. Raises `DeviceMismatch` if it is not the requested one."""
    try:
        proof = adapter.proof()
    except (RuntimeError, AssertionError) as error:
        check_initialised(error, settings)
        raise
    if proof.platform != settings.device:
        raise DeviceMismatch(
            f"device: {settings.device} was requested, but {settings.backend} places tensors on {proof.name}; check "
            f"that there is such a device, and that the build of {settings.backend} for it is installed"
        )
    return proof


def check_initialised(error: Exception, settings: Settings) -> None:
    """Raise `DeviceMismatch` for a backend's error that it cannot use any device of the kind.

    TensorFlow and PyTorch fall back to the CPU; JAX does so without a GPU, but raises if its driver does not work,
    and fails an assertion if `JAX_PLATFORMS` names only missing devices (`jax._src.xla_bridge`).
    """
    text = str(error) or NO_PLATFORM
    is_missing = any(phrase in text for phrase in NO_DEVICE_TEXTS)
    if settings.device != "cpu" and is_missing and not says_out_of_memory(text):
        raise DeviceMismatch(
            f"device: {settings.device} was requested, but {settings.backend} cannot use one: {text.splitlines()[0]}; "
            "check nvidia-smi, and the driver that this build needs (docs/troubleshooting.md#on-a-gpu)"
        ) from error

"""The allocator's peak is reset before the measured epochs; on a CPU nothing is done."""

from __future__ import annotations

import pytest

from tests.imported import ran

pytestmark = pytest.mark.process  # it imports a backend

TORCH = """
import torch
from keras_matrix.runner.cell import backends
torch.cuda.reset_peak_memory_stats = lambda: calls.append("reset")
adapter = backends.load("torch")
assert (adapter.reset_peak_device_memory(), calls) == (None, []), calls
torch.cuda.is_initialized = lambda: True
assert (adapter.reset_peak_device_memory(), calls) == (True, ["reset"]), calls
"""
TENSORFLOW = """
import tensorflow as tf
from keras_matrix.runner.cell import backends
tf.config.experimental.reset_memory_stats = calls.append
adapter = backends.load("tensorflow")
assert (adapter.reset_peak_device_memory(), calls) == (None, []), calls
tf.config.list_physical_devices = tf.config.list_logical_devices = lambda kind: [kind, kind]
assert (adapter.reset_peak_device_memory(), calls) == (True, ["GPU:0", "GPU:1"]), calls
"""
JAX = """
import jax
from keras_matrix.runner.cell import backends
adapter = backends.load("jax")
assert adapter.reset_peak_device_memory() is None
jax.default_backend = lambda: "gpu"
assert adapter.reset_peak_device_memory() is False
"""


@pytest.mark.parametrize(("backend", "script"), [("torch", TORCH), ("tensorflow", TENSORFLOW), ("jax", JAX)])
def test_the_peak_is_reset_on_a_gpu_and_left_alone_on_a_cpu(backend: str, script: str) -> None:
    done = ran(backend, f"calls = []\n{script}")
    assert done.returncode == 0, done.stderr

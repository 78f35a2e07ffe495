"""A call whose outputs stay on the device ends when a GPU has computed them; on a CPU there is nothing to wait for."""

from __future__ import annotations

import pytest

from tests.imported import ran

pytestmark = pytest.mark.process  # it imports a backend

TORCH = """
import torch
from keras_matrix.runner.cell import backends
torch.cuda.synchronize = lambda: calls.append("waited")
adapter = backends.load("torch")
adapter.wait(None)
assert calls == [], calls
torch.cuda.is_initialized = lambda: True
adapter.wait(None)
assert calls == ["waited"], calls
"""
TENSORFLOW = """
from types import SimpleNamespace
import tensorflow as tf
from keras_matrix.runner.cell import backends
tf.test.experimental.sync_devices = lambda: calls.append("waited")
adapter = backends.load("tensorflow")
adapter.wait(None)
assert calls == [], calls
tf.config.experimental.set_synchronous_execution(False)
adapter.wait(None)
assert calls == ["waited"], calls
tf.config.experimental.set_synchronous_execution(True)
tf.config.list_logical_devices = lambda: [SimpleNamespace(device_type=kind) for kind in ("CPU", "GPU")]
adapter.wait(None)
assert calls == ["waited", "waited"], calls
"""
JAX = """
import jax
from keras_matrix.runner.cell import backends
jax.block_until_ready = calls.append
backends.load("jax").wait("outputs")
assert calls == ["outputs"], calls
"""


@pytest.mark.nightly(beyond=1)
@pytest.mark.parametrize(("backend", "script"), [("torch", TORCH), ("tensorflow", TENSORFLOW), ("jax", JAX)])
def test_a_call_waits_for_a_gpu(backend: str, script: str) -> None:
    """Mutation: TensorFlow waits for its devices only where it is asked for an operation of theirs."""
    done = ran(backend, f"calls = []\n{script}")
    assert done.returncode == 0, done.stderr

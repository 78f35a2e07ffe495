"""Count recurrent layers and attention in the form a GPU runs them, on KERAS_BACKEND, without a GPU; print JSON.

Keras takes the GPU's path once it believes that there is a GPU. The operations are traced, never run: in a function's
graph on TensorFlow, as a jaxpr on JAX, with fake tensors on PyTorch. That a GPU takes these paths only a GPU can show.
"""

from __future__ import annotations

import importlib
import json
from functools import partial
from typing import Any

import keras

from keras_matrix.models.registry import load
from keras_matrix.models.workload import Request
from keras_matrix.runner.matrix.catalog import CATALOG_PATH

BATCH = 32
ATTENTION = (2, 16, 4, 64)  # batch, positions, heads, features


def built(workload: str) -> tuple[Any, Any]:
    made = load(workload)(Request({}, "synthetic", None))
    return made.model, made.samples(BATCH, 0)[0]


def pretend_a_gpu(backend: str) -> None:
    module = importlib.import_module(f"keras.src.backend.{backend}.rnn")
    module._is_gpu_available = lambda: True  # type: ignore[attr-defined]


def on_tensorflow() -> dict[str, int]:
    import tensorflow as tf

    from keras_matrix.models.flops.tensorflow import forward

    pretend_a_gpu("tensorflow")
    found = {}
    for workload in ("lstm", "gru"):
        counts: list[int] = []
        traced = tf.function(partial(_into, counts, forward, *built(workload)), autograph=False)
        operations = traced.get_concrete_function().graph.get_operations()
        found[workload] = counts[0]
        assert "CudnnRNNV3" in {operation.type for operation in operations}
    query = tf.zeros(ATTENTION, tf.bfloat16)
    found["attention"] = forward(lambda q, training: keras.ops.dot_product_attention(q, q, q), query)
    return found


def _into(counts: list[int], forward: Any, model: Any, x: Any) -> None:
    counts.append(forward(model, x))


def on_jax() -> dict[str, int]:
    import jax
    import jax.numpy as jnp
    from jax._src.cudnn import fused_attention_stablehlo as fused
    from jaxlib import gpu_rnn

    from keras_matrix.models.flops.jax import _flops, forward

    pretend_a_gpu("jax")
    fused.check_cudnn_version = lambda: 91000
    gpu_rnn.compute_rnn_workspace_reserve_space_sizes = lambda *sizes: (0, 0)
    query = jnp.zeros(ATTENTION, jnp.bfloat16)
    program = jax.make_jaxpr(lambda q: jax.nn.dot_product_attention(q, q, q, implementation="cudnn"))(query)
    assert "dot_product_attention_fwd" in str(program)
    return {workload: forward(*built(workload)) for workload in ("lstm", "gru")} | {"attention": _flops(program.jaxpr)}


def on_torch() -> dict[str, int]:
    import torch
    from torch._subclasses.fake_tensor import FakeTensorMode

    from keras_matrix.models.flops.torch import counted

    # cuDNN's numbers of the cells, and their gates.
    cells = {"lstm": (2, 4), "gru": (3, 3)}
    with FakeTensorMode(), torch.no_grad():
        found = {}
        for workload, (mode, gates) in cells.items():
            found[workload] = counted(partial(cudnn, *shapes(workload), mode, gates))
        query = torch.empty(ATTENTION, device="cuda", dtype=torch.bfloat16).transpose(1, 2)
        found["attention"] = counted(
            lambda: torch.ops.aten._scaled_dot_product_cudnn_attention(*(query,) * 3, None, False)
        )
    return found | {"training": training_on_torch()}


def training_on_torch() -> int:
    """Count forward and backward of PyTorch's own LSTM layer, which oneDNN runs as one operation on a CPU."""
    import torch

    from keras_matrix.models.flops.torch import counted

    layer = torch.nn.LSTM(60, 128, num_layers=2, batch_first=True)
    x = torch.zeros(BATCH, 40, 60, requires_grad=True)
    return counted(lambda: layer(x)[0].sum().backward())


def shapes(workload: str) -> tuple[int, tuple[int, int]]:
    entry = json.loads(CATALOG_PATH.read_text())["workloads"][workload]
    return entry["params"]["units"]["default"], (entry["params"]["sequence_length"]["default"], 60)


def cudnn(units: int, shape: tuple[int, int], mode: int, gates: int) -> None:
    """Run the layer as `_cudnn_lstm` and `_cudnn_gru` of Keras do on a GPU, and the softmax's product."""
    import torch

    def empty(*size: int) -> Any:
        return torch.empty(*size, device="cuda")

    weights = [empty(gates * units, size) for size in (shape[1], units)] + [empty(gates * units) for _ in range(2)]
    state = empty(1, BATCH, units)
    options: tuple[Any, ...] = (units, 0, 1, True, 0.0, False, False, [], None)
    torch.ops.aten._cudnn_rnn(
        empty(BATCH, *shape), weights, 4, None, state, state if gates == 4 else None, mode, *options
    )
    torch.mm(empty(BATCH, units), empty(units, 60))


if __name__ == "__main__":
    print(json.dumps({"tensorflow": on_tensorflow, "jax": on_jax, "torch": on_torch}[keras.backend.backend()]()))

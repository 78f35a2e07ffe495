"""JAX: every call is compiled by XLA; arrays that are written are donated, so that their memory is reused."""

from __future__ import annotations

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from keras_matrix.records.settings import Settings
from keras_matrix.runner.cell import peaks
from keras_matrix.runner.cell.backends import BackendAdapter
from keras_matrix.runner.cell.peaks import SCALAR, DeviceMemory, TimedOperation

# What XLA may do with float32 products on an accelerator; on a CPU both mean float32.
PRODUCTS = {"float32": "highest", "tf32": "tensorfloat32"}


class Bench(peaks.Bench):
    """Timed with JAX."""

    def __init__(self, settings: Settings, adapter: BackendAdapter) -> None:
        jax.config.update("jax_enable_x64", True)

    def memory(self) -> DeviceMemory:
        memory_stats = jax.devices()[0].memory_stats()
        if not memory_stats or "bytes_limit" not in memory_stats:
            return DeviceMemory()  # on a CPU
        # Of the share of the device that JAX may take; a third of that is less than a third of the free memory.
        return DeviceMemory(memory_stats["bytes_limit"] - memory_stats["bytes_in_use"])

    def gemm(self, size: int, precision: str) -> TimedOperation:
        draw = np.random.default_rng(0)
        dtype = "float32" if precision == "tf32" else precision
        left, right = (jnp.asarray(draw.standard_normal((size, size)), dtype=dtype) for _ in range(2))
        with jax.default_matmul_precision(PRODUCTS.get(precision, "default")):
            product = jax.jit(jnp.matmul).lower(left, right).compile()

        pending_products: list[Any] = []

        def start() -> None:
            pending_products[:] = [product(left, right)]

        def finish() -> None:
            jax.block_until_ready(pending_products)
            pending_products.clear()  # before the next call, which then reuses this memory

        return TimedOperation(start, finish)

    def copy(self, elements: int) -> TimedOperation:
        return _written(lambda a, b, c: b, elements)

    def triad(self, elements: int) -> TimedOperation:
        return _written(lambda a, b, c: b + SCALAR * c, elements)


def _written(kernel: Any, elements: int) -> TimedOperation:
    """Return a call that writes into the array of the previous call."""
    b, c = (jnp.full((elements,), value, dtype="float64") for value in (2.0, 1.0))
    arrays = [jnp.zeros_like(b)]
    # The donated array is not an input of the kernel: unused inputs must be kept for its memory to be reused.
    compiled = jax.jit(kernel, donate_argnums=0, keep_unused=True).lower(arrays[0], b, c).compile()

    def start() -> None:
        arrays[0] = compiled(arrays[0], b, c)

    return TimedOperation(start, lambda: jax.block_until_ready(arrays[0]))

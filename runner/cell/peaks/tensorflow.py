"""TensorFlow: eager matrix products; memory traffic on an accelerator only.

TensorFlow has no operation that writes into a given array, and on a CPU a fresh result is pages that the kernel must
clear first: that would time the kernel. The memory is the machine's, which the other backends time.
"""

from __future__ import annotations

from typing import Any

import tensorflow as tf

from keras_matrix.runner.cell import peaks
from keras_matrix.runner.cell.peaks import SCALAR, TimedOperation


class Bench(peaks.Bench):
    """Timed with TensorFlow, which reports the memory it uses, not what is free."""

    def gemm(self, size: int, precision: str) -> TimedOperation:
        tf.config.experimental.enable_tensor_float_32_execution(precision == "tf32")
        dtype = tf.as_dtype("float32" if precision == "tf32" else precision)
        left, right = (tf.cast(tf.random.normal((size, size)), dtype) for _ in range(2))
        return self.until_done(tf.matmul, left, right)

    def copy(self, elements: int) -> TimedOperation:
        (b,) = self._arrays(elements, 1)
        return self.until_done(tf.function(lambda b: -b, jit_compile=True), b)  # a bare copy would copy nothing

    def triad(self, elements: int) -> TimedOperation:
        b, c = self._arrays(elements, 2)
        return self.until_done(tf.function(lambda b, c: b + SCALAR * c, jit_compile=True), b, c)

    def _arrays(self, elements: int, count: int) -> list[Any]:
        return [tf.ones((elements,), dtype=tf.float64) for _ in range(count)]

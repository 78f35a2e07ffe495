"""TensorFlow's own pipeline, tf.data, its JPEG decoder, and a timed wait within the graph."""

from __future__ import annotations

import time
from typing import Any

import numpy as np
import tensorflow as tf

from keras_matrix.models.inputs.pipelines.decode import JpegHeader
from keras_matrix.models.inputs.pipelines.interface import ENDLESS, Loader, PipelineWorkers, as_asked

PIPELINE = "tf_data"
KINDS = ("thread",)
DECODES = True
WAITS_IN_COMPILED_STEP = False
depth = as_asked


def source(loader: Loader, batch_size: int, workers: PipelineWorkers, timed: bool) -> Any:
    """Return a `tf.data.Dataset` of batches in the order of their numbers.

    Its threads call the loader in Python, as `tf.numpy_function` does for any Python code. tf.data's own pool has a
    thread per CPU, whatever `num_parallel_calls` is; with a pool for this data set, more workers than CPUs can wait for
    storage at the same time.
    """
    load = loader.timed if timed else loader.__call__
    types = (tf.as_dtype(loader.dtype), tf.int32, *((tf.float64,) if timed else ()))
    shapes = ((batch_size, *loader.sample_shape), (batch_size,), (6,))

    def loaded(batch: Any) -> Any:
        arrays = tf.numpy_function(load, [batch], types)
        return tuple(tf.ensure_shape(array, shape) for array, shape in zip(arrays, shapes, strict=False))

    batches = tf.data.Dataset.range(ENDLESS)
    if workers.count == 0:
        return _as_stated(batches.map(loaded), threads=1)
    ready = batches.map(loaded, num_parallel_calls=workers.count, deterministic=True)
    return _as_stated(ready.prefetch(workers.prefetch) if workers.prefetch else ready, threads=workers.count)


def _as_stated(dataset: Any, threads: int) -> Any:
    """Keep tf.data from adding prefetching and from changing workers and prefetching; give it a pool of threads."""
    options = tf.data.Options()
    options.autotune.enabled = False
    options.experimental_optimization.inject_prefetch = False
    options.threading.private_threadpool_size = threads
    return dataset.with_options(options)


def decode_jpeg(data: bytes, header: JpegHeader, divisor: int) -> Any:
    """Decode a JPEG image with TensorFlow's libjpeg-turbo: (height, width, 3) uint8. Raises ValueError.

    Operations run at once, in the calling thread, so that its CPU time is that of the decoder.
    """
    try:
        with tf.device("CPU:0"):
            return tf.io.decode_jpeg(data, channels=3, ratio=divisor)
    except tf.errors.InvalidArgumentError as error:
        raise ValueError(error.message) from None


def resize(pixels: Any, out: Any) -> None:
    """Resize bilinearly, with half-pixel centres, into `out` (size, size, 3) uint8."""
    if tuple(pixels.shape) != out.shape:
        with tf.device("CPU:0"):
            resized = tf.raw_ops.ResizeBilinear(images=pixels[None], size=out.shape[:2], half_pixel_centers=True)
            pixels = tf.cast(tf.round(resized[0]), tf.uint8)
    out[...] = np.asarray(pixels)


def timed_wait(after: Any, seconds: float) -> Any:
    """Return a zero of the dtype of `after` once `seconds` have passed since `after` was computed. No gradient.

    A Python function with state is neither removed nor folded; XLA cannot compile it.
    """

    def wait(_: Any) -> Any:
        time.sleep(seconds)
        return np.float32(0)

    scalar = tf.cast(tf.stop_gradient(tf.reshape(after, [-1])[0]), tf.float32)  # bfloat16 is not passed to Python
    zero = tf.numpy_function(wait, [scalar], tf.float32, stateful=True)
    return tf.stop_gradient(tf.cast(tf.ensure_shape(zero, ()), after.dtype))

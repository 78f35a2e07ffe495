"""A stand-in device: a layer that takes a known time per batch and no CPU time, as a training step on a GPU does.

On a CPU, training and decoding share the cores, so that the share of time spent waiting for input has no true value.
With this layer it has one: a step takes its wait and little else, whatever the workers do.
"""

from __future__ import annotations

from typing import Any

import keras
from keras import ops

from keras_matrix.models.inputs.pipelines.pipeline import native
from keras_matrix.models.workload import UnsupportedWorkload

# Of the image only every so manyth pixel in both directions is read: a full mean takes milliseconds of CPU time.
STRIDE = 16


@keras.saving.register_keras_serializable("keras_matrix")
class TimedWait(keras.layers.Layer):  # type: ignore[misc]
    """Waits `step_time_s` once per call, inside the compiled step, and returns the mean colour of each image.

    Input: (batch, height, width, 3). Output: (batch, 3), in [0, 1] for pixels 0..255. Gradients do not wait again.
    """

    def __init__(self, step_time_s: float, **options: Any) -> None:
        super().__init__(**options)
        native_module = native()
        if native_module is None:
            raise UnsupportedWorkload(f"base: timed_wait has no wait for the backend {keras.backend.backend()}")
        self.step_time_s = step_time_s
        self._wait = native_module.timed_wait
        # Keras then compiles the step without XLA on a backend whose wait XLA cannot compile.
        self.supports_jit = native_module.WAITS_IN_COMPILED_STEP

    def call(self, inputs: Any) -> Any:
        """Return the mean colours after the wait."""
        sampled_pixels = ops.cast(inputs[:, ::STRIDE, ::STRIDE], self.compute_dtype)
        colours = ops.mean(sampled_pixels, axis=(1, 2)) / 255
        return colours + self._wait(colours, self.step_time_s)

    def compute_output_spec(self, inputs: Any) -> Any:
        """Return the output's shape without running the wait."""
        return keras.KerasTensor((inputs.shape[0], inputs.shape[-1]), dtype=self.compute_dtype)

    def get_config(self) -> dict[str, Any]:
        """Return what the layer is made from."""
        return {**super().get_config(), "step_time_s": self.step_time_s}

"""The pixel values that a network was trained on: each channel scaled and shifted, sometimes in reverse order.

`keras.applications` does this in `preprocess_input`, or in layers of the network itself, in one of four ways. All are
one affine function per channel, so that the same definition runs on the host and on the device.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

Channels = tuple[float, float, float]


@dataclass(frozen=True, slots=True)
class PixelScaling:
    """y = x * scale + shift per channel, of pixels 0..255 in the order RGB, or BGR if `reverses`."""

    scale: Channels
    shift: Channels
    reverses: bool = False

    def on_host(self, pixels: NDArray[np.uint8]) -> NDArray[np.float32]:
        """Return float32 values. Input and output: (..., 3)."""
        ordered = pixels[..., ::-1] if self.reverses else pixels
        values = np.multiply(ordered, np.array(self.scale, np.float32), dtype=np.float32)
        values += np.array(self.shift, np.float32)
        return values

    def on_device(self, pixels: Any) -> Any:
        """Return the same values as a tensor of the dtype of `pixels`, which is a floating-point one."""
        from keras import ops

        ordered = ops.flip(pixels, axis=-1) if self.reverses else pixels
        scale = ops.convert_to_tensor(np.array(self.scale, np.float32), dtype=pixels.dtype)
        return ordered * scale + ops.convert_to_tensor(np.array(self.shift, np.float32), dtype=pixels.dtype)


def _standardised(mean: Channels, deviation: Channels) -> PixelScaling:
    """Pixels in 0..1 less their mean, over their standard deviation."""
    scale = (1 / 255 / deviation[0], 1 / 255 / deviation[1], 1 / 255 / deviation[2])
    return PixelScaling(scale, (-mean[0] / deviation[0], -mean[1] / deviation[1], -mean[2] / deviation[2]))


# Named as the `mode` of keras.applications.imagenet_utils.preprocess_input.
TF = PixelScaling((1 / 127.5,) * 3, (-1.0,) * 3)
PLAIN = PixelScaling((1.0,) * 3, (0.0,) * 3)
CAFFE = PixelScaling((1.0,) * 3, (-103.939, -116.779, -123.68), reverses=True)
TORCH = _standardised((0.485, 0.456, 0.406), (0.229, 0.224, 0.225))

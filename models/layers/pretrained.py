"""Networks of keras.applications as frozen feature extractors, with the pixels that each was trained on.

Published weights are a file of Keras: `--datasets` names a folder that may contain it, otherwise Keras downloads it. A
file of one's own is the weights of the network without its classifier (`*.weights.h5`), or a saved model (`*.keras`).
"""

from __future__ import annotations

import contextlib
import math
import socket
import sys
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import keras

from keras_matrix.models.inputs.images import NETWORK_TIMEOUT_S
from keras_matrix.models.inputs.pipelines import pixels
from keras_matrix.models.inputs.pipelines.pixels import PixelScaling

_PUBLISHED_AT = "https://storage.googleapis.com/tensorflow/keras-applications/"


class WeightsUnavailable(ValueError):
    """Weights cannot be read; the message names the file and what to do."""


@dataclass(frozen=True, slots=True)
class Base:
    """A network: its name in keras.applications, its pixels, and where its weights are published.

    `file` gives the file's name for an image size. `scales_itself`: it has layers for its pixels, which are left out.
    """

    application: str
    scaling: PixelScaling
    folder: str
    file: Callable[[int], str]
    scales_itself: bool = False

    def network(self, image_size: int) -> Any:
        """Return the network without classifier and with random weights, frozen."""
        options = {"include_preprocessing": False} if self.scales_itself else {}
        make = getattr(keras.applications, self.application)
        network = make(weights=None, include_top=False, input_shape=(image_size, image_size, 3), **options)
        network.trainable = False
        return network


def scale_depthwise(network: Any) -> None:
    """Scale the random depthwise kernels of a network to the variance of He et al. (2015): 2 / values in an output.

    Keras's default, `GlorotUniform`, counts all channels as inputs of each output of a depthwise convolution: with C
    channels its kernels are sqrt(C + 1) times smaller. After the 13 of MobileNet features were about 1e-19, whose
    gradients changed no weight of the layer above. Networks with an initializer of their own stay as they are.
    """
    for layer in network.layers:
        if isinstance(layer, keras.layers.DepthwiseConv2D) and isinstance(
            layer.depthwise_initializer, keras.initializers.GlorotUniform
        ):
            channels, multiplier = layer.kernel.shape[-2:]
            factor = math.sqrt(channels + multiplier)
            layer.kernel.assign(keras.ops.convert_to_numpy(layer.kernel) * factor)


def _mobilenet_file(sizes: tuple[int, ...], pattern: str) -> Callable[[int], str]:
    """Return the name for an image size; weights are published for `sizes`, and those of 224 serve the others."""
    return lambda size: pattern.format(size if size in sizes else 224)


BASES = {
    "mobilenet": Base(
        "MobileNet",
        pixels.TF,
        "mobilenet",
        _mobilenet_file((128, 160, 192, 224), "mobilenet_1_0_{}_tf_no_top.h5"),
    ),
    "mobilenet_v2": Base(
        "MobileNetV2",
        pixels.TF,
        "mobilenet_v2",
        _mobilenet_file((96, 128, 160, 192, 224), "mobilenet_v2_weights_tf_dim_ordering_tf_kernels_1.0_{}_no_top.h5"),
    ),
    "mobilenet_v3_small": Base(
        "MobileNetV3Small",
        pixels.TF,
        "mobilenet_v3",
        lambda size: "weights_mobilenet_v3_small_224_1.0_float_no_top_v2.h5",
        scales_itself=True,
    ),
    "mobilenet_v3_large": Base(
        "MobileNetV3Large",
        pixels.TF,
        "mobilenet_v3",
        lambda size: "weights_mobilenet_v3_large_224_1.0_float_no_top_v2.h5",
        scales_itself=True,
    ),
    "resnet50": Base(
        "ResNet50",
        pixels.CAFFE,
        "resnet",
        lambda size: "resnet50_weights_tf_dim_ordering_tf_kernels_notop.h5",
    ),
    "efficientnet_v2_b0": Base(
        "EfficientNetV2B0",
        pixels.TORCH,
        "efficientnet_v2",
        lambda size: "efficientnetv2-b0_notop.h5",
        scales_itself=True,
    ),
}


@keras.saving.register_keras_serializable("keras_matrix")
class ChannelScaling(keras.layers.Layer):  # type: ignore[misc]
    """A `PixelScaling` on the device, of uint8 pixels."""

    def __init__(self, scale: Any, shift: Any, reverses: bool, **options: Any) -> None:
        super().__init__(**options)
        self._scaling = PixelScaling(tuple(scale), tuple(shift), reverses)

    def call(self, inputs: Any) -> Any:
        """Return the scaled values in the layer's compute dtype."""
        return self._scaling.on_device(keras.ops.cast(inputs, self.compute_dtype))

    def get_config(self) -> dict[str, Any]:
        """Return what the layer is made from."""
        config = {"scale": self._scaling.scale, "shift": self._scaling.shift, "reverses": self._scaling.reverses}
        return {**super().get_config(), **config}


def load_published(network: Any, base: Base, image_size: int, dataset_dir: str | None) -> None:
    """Load the published ImageNet weights. Raises `WeightsUnavailable`."""
    name = base.file(image_size)
    url = f"{_PUBLISHED_AT}{base.folder}/{name}"
    folders = [Path(dataset_dir) / "models", Path(dataset_dir)] if dataset_dir else []
    path = next((folder / name for folder in folders if (folder / name).is_file()), None)
    load_weights(network, path or _downloaded(name, url, dataset_dir))


def _downloaded(name: str, url: str, dataset_dir: str | None) -> Path:
    """Return the file in Keras's folder, after a download if it is missing."""
    previous_timeout_s = socket.getdefaulttimeout()
    socket.setdefaulttimeout(NETWORK_TIMEOUT_S)
    try:
        with contextlib.redirect_stdout(sys.stderr):
            return Path(keras.utils.get_file(name, url, cache_subdir="models"))
    except Exception as error:  # Keras raises a bare Exception when a download fails
        reason = " ".join(str(error).split()) or type(error).__name__
        place_text = f"{dataset_dir} (--datasets)" if dataset_dir else "a folder, and name that with --datasets"
        raise WeightsUnavailable(
            f"base_model: imagenet needs the file {name}, which cannot be downloaded: {reason}. Get {url} where there "
            f"is a network and put it in {place_text}; or use base_model: none"
        ) from error
    finally:
        socket.setdefaulttimeout(previous_timeout_s)


def load_weights(network: Any, path: Path) -> None:
    """Load weights from a file: `*.h5`, or a saved model `*.keras`. Raises `WeightsUnavailable`."""
    if path.suffix not in (".h5", ".keras"):
        raise WeightsUnavailable(f"base_model: must be none, imagenet, or a *.weights.h5 or *.keras file, got {path}")
    try:
        if path.suffix == ".h5":
            network.load_weights(path)
        else:
            network.set_weights(_saved_network(network, path).get_weights())
    except (OSError, ValueError, KeyError) as error:
        reason = next(iter(str(error).strip().splitlines()), type(error).__name__)
        raise WeightsUnavailable(
            f"base_model: {path} has no weights of {network.name} without its classifier: {reason}"
        ) from error


def _saved_network(network: Any, path: Path) -> Any:
    """Return the network in a saved model: the model itself, or the layer of its name, as in our own checkpoints."""
    model = keras.saving.load_model(path, compile=False)
    return next((layer for layer in model.layers if layer.name == network.name), model)

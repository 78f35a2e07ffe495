"""Switches off the layers that draw random numbers, which backends and devices draw differently."""

from __future__ import annotations

from typing import Any

from keras_matrix.runner.cell.backends import Unsupported

# Keras's random layers and the attribute of their rate. Attention layers of the multi-head kind keep their rate, so
# that they take the same path as in the timed cell; the Dropout inside them is disabled like any other.
RATES = {
    **dict.fromkeys(("Dropout", "SpatialDropout1D", "SpatialDropout2D", "SpatialDropout3D"), ("rate",)),
    **dict.fromkeys(("AlphaDropout", "GaussianDropout"), ("rate",)),
    "GaussianNoise": ("stddev",),
    **dict.fromkeys(("Attention", "AdditiveAttention"), ("dropout",)),
    **dict.fromkeys(("SimpleRNNCell", "LSTMCell", "GRUCell"), ("dropout", "recurrent_dropout")),
}
# These have a generator for the cell or the Dropout inside them, and draw nothing themselves.
HOLDERS = ("SimpleRNN", "LSTM", "GRU", "RNN", "Bidirectional", "MultiHeadAttention", "GroupedQueryAttention")


def switch_off(model: Any) -> list[str]:
    """Set the rate of every random layer to 0 and return the names of these layers.

    Raises `Unsupported` for a layer that draws random numbers and has no known rate: backends draw differently, so that
    the layers after it could not be compared.
    """
    off = []
    for layer in model._flatten_layers():
        kind = type(layer).__name__ if type(layer).__module__.startswith("keras.") else ""
        for name in RATES.get(kind, ()):
            if getattr(layer, name):
                setattr(layer, name, 0.0)
                off.append(layer.name)
        if kind not in RATES and kind not in HOLDERS and layer._seed_generators:
            raise Unsupported(
                f"parity: the layer {layer.name!r} ({type(layer).__name__}) draws random numbers as it runs"
            )
    return sorted(set(off))

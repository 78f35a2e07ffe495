"""Transformer blocks from public Keras layers, and two small layers that Keras does not have."""

from __future__ import annotations

from typing import Any

from keras import layers, ops


class Positions(layers.Layer):  # type: ignore[misc]  # Keras is untyped
    """Adds a learned vector per position. Input and output: (batch, length, width), length <= `rows`."""

    def __init__(self, rows: int) -> None:
        super().__init__()
        self.rows = rows

    def build(self, shape: tuple[int | None, int, int]) -> None:
        """Make the table of (rows, width)."""
        self.table = self.add_weight(shape=(self.rows, shape[-1]), initializer="truncated_normal", name="table")

    def call(self, inputs: Any) -> Any:
        """Add the first rows of the table."""
        return inputs + ops.cast(self.table[: inputs.shape[1]], inputs.dtype)


class ClassToken(layers.Layer):  # type: ignore[misc]  # Keras is untyped
    """Puts a learned vector before each sequence. Input: (batch, length, width). Output: (batch, length + 1, width)."""

    def build(self, shape: tuple[int | None, int, int]) -> None:
        """Make the token."""
        self.token = self.add_weight(shape=(1, 1, shape[-1]), initializer="zeros", name="token")

    def call(self, inputs: Any) -> Any:
        """Prepend the token."""
        token = ops.cast(self.token, inputs.dtype)
        tokens = ops.broadcast_to(token, (ops.shape(inputs)[0], 1, inputs.shape[-1]))
        return ops.concatenate([tokens, inputs], axis=1)


def post_norm_block(x: Any, heads: int, hidden: int, dropout: float) -> Any:
    """BERT's block: attend, add, normalise; feed forward, add, normalise. (batch, length, width) throughout."""
    width = x.shape[-1]
    attended = layers.MultiHeadAttention(heads, width // heads, dropout=dropout)(x, x)
    x = layers.LayerNormalization(epsilon=1e-12)(x + layers.Dropout(dropout)(attended))
    fed = layers.Dense(width)(layers.Dense(hidden, activation="gelu")(x))
    return layers.LayerNormalization(epsilon=1e-12)(x + layers.Dropout(dropout)(fed))


def pre_norm_block(x: Any, heads: int, hidden: int, causal: bool = False) -> Any:
    """GPT-2's and ViT's block: normalise, attend, add; normalise, feed forward, add. No dropout."""
    width = x.shape[-1]
    normal = layers.LayerNormalization(epsilon=1e-6)(x)
    x = x + layers.MultiHeadAttention(heads, width // heads)(normal, normal, use_causal_mask=causal)
    normal = layers.LayerNormalization(epsilon=1e-6)(x)
    return x + layers.Dense(width)(layers.Dense(hidden, activation="gelu")(normal))


def check_heads(name: str, width: int, heads: int) -> None:
    """Raises ValueError unless `width` divides into `heads` equal parts."""
    if width % heads:
        raise ValueError(f"{name}: heads must divide width. Received: width={width}, heads={heads}")

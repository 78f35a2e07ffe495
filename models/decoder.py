"""Decoder-only language models."""

from __future__ import annotations

from typing import Any

from keras_matrix.models.workload import Built, Param, Request, workload


@workload(
    batch_size=16,
    params=(
        Param("sequence_length", 128, "Tokens in a sequence.", minimum=1, maximum=8192),
        Param("width", 256, "Width of the residual stream.", minimum=1, maximum=16384),
        Param("depth", 4, "Number of blocks.", minimum=1, maximum=128),
        Param("heads", 4, "Attention heads; they divide the width.", minimum=1, maximum=256),
        Param("vocabulary", 8192, "Number of different tokens.", minimum=2, maximum=1_000_000),
    ),
)
def decoder_lm(request: Request) -> Built:
    """Causal transformer in GPT-2's shape without dropout, predicting the next of random tokens."""
    import keras
    from keras import layers

    from keras_matrix.models.inputs import synthetic
    from keras_matrix.models.layers.attention import Positions, check_heads, pre_norm_block
    from keras_matrix.models.layers.heads import float_logits

    length, width, heads, vocabulary = map(request.integer, ("sequence_length", "width", "heads", "vocabulary"))
    check_heads("decoder_lm", width, heads)
    inputs = keras.Input((length,), dtype="int32")
    x = Positions(length)(layers.Embedding(vocabulary, width)(inputs))
    for _ in range(request.integer("depth")):
        x = pre_norm_block(x, heads, 4 * width, causal=True)
    x = layers.LayerNormalization(epsilon=1e-6)(x)
    model = keras.Model(inputs, float_logits(layers.Dense(vocabulary, use_bias=False)(x)), name="decoder_lm")
    loss = keras.losses.SparseCategoricalCrossentropy(from_logits=True)
    model.compile(optimizer=keras.optimizers.AdamW(3e-4, weight_decay=0.1), loss=loss)

    def samples(count: int, seed: int) -> tuple[Any, Any]:
        tokens = synthetic.tokens(count, length + 1, vocabulary, seed)
        return tokens[:, :-1].copy(), tokens[:, 1:].copy()

    return Built(model, samples)

"""Transformer encoders over tokens."""

from __future__ import annotations

from typing import Any

from keras_matrix.models.workload import Built, Param, Request, workload

VOCABULARY = 30522
POSITIONS = 512
CLASSES = 2
# Depth, width, heads, width of the feed-forward layer.
SIZES = {"tiny": (2, 128, 2, 512), "base": (12, 768, 12, 3072)}


@workload(
    batch_size=32,
    params=(
        Param("size", "tiny", "tiny: 2 layers, 128 wide. base: 12 layers, 768 wide.", choices=tuple(SIZES)),
        Param("sequence_length", 128, "Tokens in a sequence.", minimum=1, maximum=POSITIONS),
    ),
    corrections=("One segment per sequence: BERT's token-type table (2 x width) is left out.",),
)
def bert(request: Request) -> Built:
    """BERT encoder with pooler, classifying sequences of random tokens into two classes."""
    import keras
    from keras import layers

    from keras_matrix.models.inputs import synthetic
    from keras_matrix.models.layers.attention import Positions, post_norm_block
    from keras_matrix.models.layers.heads import float_logits

    depth, width, heads, hidden = SIZES[request.text("size")]
    length = request.integer("sequence_length")
    inputs = keras.Input((length,), dtype="int32")
    x = Positions(POSITIONS)(layers.Embedding(VOCABULARY, width)(inputs))
    x = layers.Dropout(0.1)(layers.LayerNormalization(epsilon=1e-12)(x))
    for _ in range(depth):
        x = post_norm_block(x, heads, hidden, dropout=0.1)
    pooled = layers.Dropout(0.1)(layers.Dense(width, activation="tanh")(x[:, 0]))
    model = keras.Model(inputs, float_logits(layers.Dense(CLASSES)(pooled)), name="bert")
    loss = keras.losses.SparseCategoricalCrossentropy(from_logits=True)
    optimizer = keras.optimizers.AdamW(1e-4, weight_decay=0.01)
    model.compile(optimizer=optimizer, loss=loss, metrics=["accuracy"])

    def samples(count: int, seed: int) -> tuple[Any, Any]:
        return synthetic.tokens(count, length, VOCABULARY, seed), synthetic.labels(count, CLASSES, seed)

    return Built(model, samples)

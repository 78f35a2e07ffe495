"""A task of KerasHub without a preset: a small BERT of one's own that classifies sequences of numbers.

Written for JAX, TensorFlow and PyTorch; KerasHub must be installed.
"""

import keras
import keras_hub
import numpy as np

keras.utils.set_random_seed(7)
rng = np.random.default_rng(7)
tokens = rng.integers(1, 200, (480, 32)).astype("int32")
labels = (tokens[:, :16].mean(axis=1) > tokens[:, 16:].mean(axis=1)).astype("int32")
features = {
    "token_ids": tokens,
    "segment_ids": np.zeros_like(tokens),
    "padding_mask": np.ones_like(tokens),
}
backbone = keras_hub.models.BertBackbone(
    vocabulary_size=200,
    num_layers=2,
    num_heads=2,
    hidden_dim=32,
    intermediate_dim=64,
    max_sequence_length=32,
)
classifier = keras_hub.models.BertTextClassifier(backbone, num_classes=2, preprocessor=None)
classifier.compile(
    optimizer=keras.optimizers.AdamW(5e-4),
    loss=keras.losses.SparseCategoricalCrossentropy(from_logits=True),
    metrics=["accuracy"],
)
classifier.fit(features, labels, batch_size=16, epochs=4, validation_split=0.1)
print(classifier.predict({name: part[:3] for name, part in features.items()}, verbose=0))

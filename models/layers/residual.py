"""ResNet50 as subclassed models, which measures the cost of a model that is not a graph of layers.

Source: K. He et al., "Deep Residual Learning for Image Recognition", 2015, arXiv:1512.03385.
"""

from __future__ import annotations

from typing import Any

from keras import Model, layers, ops

from keras_matrix.models.layers.heads import loss_dtype

# Width and number of blocks of each stage.
STAGES = ((64, 3), (128, 4), (256, 6), (512, 3))


class Bottleneck(Model):  # type: ignore[misc]  # Keras is untyped
    """1x1, 3x3, 1x1 convolutions with a shortcut. Output: (batch, h / strides, w / strides, 4 * filters)."""

    def __init__(self, filters: int, strides: int, projects: bool) -> None:
        super().__init__()
        widths = ((filters, 1, strides), (filters, 3, 1), (4 * filters, 1, 1))
        self.convolutions = [layers.Conv2D(width, size, step, padding="same") for width, size, step in widths]
        self.normalisations = [layers.BatchNormalization() for _ in widths]
        self.projection = layers.Conv2D(4 * filters, 1, strides) if projects else None
        self.projection_normalisation = layers.BatchNormalization() if projects else None

    def call(self, inputs: Any, training: bool | None = None) -> Any:
        """Input: (batch, h, w, channels)."""
        x, shortcut = inputs, inputs
        last_index = len(self.convolutions) - 1
        for i, (convolve, normalise) in enumerate(zip(self.convolutions, self.normalisations, strict=True)):
            x = normalise(convolve(x), training=training)
            x = x if i == last_index else ops.relu(x)
        if self.projection is not None and self.projection_normalisation is not None:
            shortcut = self.projection_normalisation(self.projection(inputs), training=training)
        return ops.relu(x + shortcut)


class ResNet50(Model):  # type: ignore[misc]  # Keras is untyped
    """Images to class probabilities. Output: (batch, classes)."""

    def __init__(self, classes: int) -> None:
        super().__init__(name="resnet50_subclass")
        self.convolution = layers.Conv2D(64, 7, 2, padding="same")
        self.normalisation = layers.BatchNormalization()
        self.pool = layers.MaxPooling2D(3, 2)
        self.blocks = [
            Bottleneck(filters, strides=2 if block == 0 and stage > 0 else 1, projects=block == 0)
            for stage, (filters, count) in enumerate(STAGES)
            for block in range(count)
        ]
        self.average = layers.GlobalAveragePooling2D()
        self.classify = layers.Dense(classes)
        self.softmax = layers.Activation("softmax", dtype=loss_dtype())

    def call(self, inputs: Any, training: bool | None = None) -> Any:
        """Input: (batch, h, w, 3), at least 32 pixels each way."""
        x = ops.relu(self.normalisation(self.convolution(inputs), training=training))
        x = self.pool(x)
        for block in self.blocks:
            x = block(x, training=training)
        return self.softmax(self.classify(self.average(x)))

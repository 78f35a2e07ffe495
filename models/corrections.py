"""Errors of the 2017 Keras benchmark suite, and their corrections in these workloads. Shown in the catalogue."""

from __future__ import annotations

PIXELS = (
    "Pixels are scaled to [0, 1) in floating point: the 2017 suite's `x /= 255` on integers gave all zeros (Python 2) "
    "or an error (Python 3)."
)
LABELS = (
    "Labels are one-hot and cover every class: the 2017 suite drew ten-class labels with `randint(0, 9)`, "
    "never the last."
)
LAYOUT = (
    "Images are channels_last on every backend: the 2017 suite compared the function `keras.backend.backend` with a "
    "string, so its choice of layout never took effect."
)
TRANSPOSED_TWICE = (
    "Images are transposed no more: the 2017 suite transposed them twice under channels_last, to a wrong shape."
)
DECAY = (
    "Keras 3 optimisers have no `decay` argument; its meaning, learning_rate / (1 + 1e-6 * step), is kept as "
    "InverseTimeDecay(decay_steps=1)."
)
TF_DECAY = (
    "The 2017 suite passed decay=1e-6 to tf.train.RMSPropOptimizer, where it is the moving average's discount and no "
    "decay of the learning rate; here the discount is Keras's 0.9 and the rate decays as in vgg16."
)
SOFTMAX = "The output is a softmax: the 2017 suite fed logits to a cross-entropy that expects probabilities."
FROM_LOGITS = (
    "The model is trained on probabilities like the rest of the suite; the 2017 suite's logits loss is equivalent."
)
POOLING = (
    "Global average pooling, which equals the 2017 suite's 7x7 pooling at 224 pixels and also works at other sizes."
)
TRAINING = "`training` follows fit and predict: the 2017 suite fixed training=True."
TEXT_TARGETS = (
    "Targets are one-hot: the 2017 suite drew sixty coin flips per sample, which is no distribution for a softmax."
)
BOOLEANS = "The boolean sequences are given as float32 0 and 1, so that no backend pays for a cast in the step."
UNITS = "The number of units is a parameter: the 2017 suite passed the batch size as the number of units."
RESCALING = "Input in [0, 1) as for the rest of the suite; the application's own Rescaling layer is left out."

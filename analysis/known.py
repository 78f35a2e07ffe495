"""Deviations between backends whose cause was found: each shown by itself in a test, and explained up to a size.

A limit is about ten times what the twins of the small presets showed: enough for another machine, and far below what a
fault makes. `tests/analysis/test_known.py` shows each cause in a few lines, without any workload of ours.
"""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Known:
    """A deviation whose cause was found: of these workloads, with this backend on one side, up to `limit`."""

    workloads: frozenset[str]
    backend: str
    precision: str
    figures: frozenset[str]
    limit: float
    cause: str


_ATTENTION = (
    "Keras on JAX takes the softmax of attention without dropout in float32, whatever the precision "
    "(jax.nn.dot_product_attention and Keras's own form of it)"
)
_GELU = "tf.nn.gelu multiplies by 1/sqrt(2) rounded to float32, also in float64"
_REPEATED_TOKENS = (
    "Keras on TensorFlow hands an embedding's gradient to Adam as rows, and squares the rows of a token that comes "
    "twice in a batch one by one instead of their sum: its second moment is too small and its step too long"
)
_SCHEDULE = (
    "Keras on TensorFlow computes a schedule's learning rate in float32, also in float64: 3e-8 off, which training "
    "amplifies as it does float32's rounding"
)
_FORWARD = frozenset({"loss", "gradient_norm", "gradient", "losses"})
_UPDATE, _LOSSES = frozenset({"update"}), frozenset({"losses"})
_SCHEDULED = frozenset({"cifar10_cnn", "resnet50_subclass", "vgg16", "xception"})
KNOWN = (
    Known(_SCHEDULED, "tensorflow", "float64", _LOSSES, 0.3, _SCHEDULE),
    Known(frozenset({"decoder_lm", "vit_tiny"}), "jax", "float64", _FORWARD, 1e-4, _ATTENTION),
    Known(frozenset({"decoder_lm", "vit_tiny"}), "jax", "float64", _UPDATE, 1e-3, _ATTENTION),
    Known(frozenset({"bert", "decoder_lm", "vit_tiny"}), "tensorflow", "float64", _FORWARD, 1e-7, _GELU),
    Known(frozenset({"bert", "decoder_lm", "vit_tiny"}), "tensorflow", "float64", _UPDATE, 1e-4, _GELU),
    Known(frozenset({"bert", "decoder_lm"}), "tensorflow", "float64", _UPDATE, 0.3, _REPEATED_TOKENS),
    Known(frozenset({"bert", "decoder_lm"}), "tensorflow", "float32", _UPDATE, 0.3, _REPEATED_TOKENS),
    Known(frozenset({"bert", "decoder_lm"}), "tensorflow", "float64", _LOSSES, 1e-4, _REPEATED_TOKENS),
)

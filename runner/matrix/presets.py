"""Small presets of the catalog's workloads for comparisons without timing: every layer runs, within seconds.

Images are large enough that the last normalisation of a deep network still averages over some tens of values: over two
or three values it amplifies rounding beyond any tolerance.
"""

from __future__ import annotations

from collections.abc import Mapping

from keras_matrix.records.settings import Scalar

BATCH_SIZE = 8
# XLA has no fast float64 convolution: xception, at the smallest image it takes, would need minutes more.
BATCH_SIZES: Mapping[str, int] = {"xception": 4}
DEEP_IMAGE: Mapping[str, Scalar] = {"image_size": 64}
SHORT_SEQUENCE: Mapping[str, Scalar] = {"max_length": 16}
SMALL: Mapping[str, Mapping[str, Scalar]] = {
    "mnist_mlp": {"image_size": 8},
    "cifar10_cnn": {"image_size": 16},
    "lstm": {"sequence_length": 10, "units": 32},
    "gru": {"sequence_length": 10, "units": 32},
    "lstm_text_generation": {"sequence_length": 10, "units": 32},
    "mnist_irnn": {"image_size": 6, "units": 32},
    "resnet50": DEEP_IMAGE,
    "vgg16": {"image_size": 32},
    "xception": {"image_size": 71},
    "mobilenet_v3_small": DEEP_IMAGE,
    "efficientnet_v2_b0": DEEP_IMAGE,
    "resnet50_subclass": DEEP_IMAGE,
    "bert": {"sequence_length": 16},
    "decoder_lm": {"sequence_length": 16, "width": 64, "depth": 2, "vocabulary": 512},
    "gpt2": SHORT_SEQUENCE,
    "gemma": SHORT_SEQUENCE,
    "llama": SHORT_SEQUENCE,
    "mistral": SHORT_SEQUENCE,
    "sam": {},
    "stable_diffusion_3": {},
    "vit_tiny": {"image_size": 32, "patch_size": 8, "depth": 3},
    "fc": {"level": 3, "weight_size": 64},
    "finetune": DEEP_IMAGE,
}


def small(workload: str) -> dict[str, Scalar]:
    """Return the parameters of a workload's small preset; an empty dict for a user's own workload."""
    return dict(SMALL.get(workload, {}))


def small_batch(workload: str) -> int:
    """Return the batch size of a workload's small preset, or of a user's own workload."""
    return BATCH_SIZES.get(workload, BATCH_SIZE)

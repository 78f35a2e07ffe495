"""Builds the image models of KerasHub and their samples."""

from __future__ import annotations

import importlib
import math
from collections.abc import Iterator
from contextlib import contextmanager
from functools import partial
from typing import Any

import keras
import numpy as np

from keras_matrix.models.image_models.shapes import (
    ALL,
    CHANNELS,
    IMAGE_ENCODER,
    MASKS,
    PATCH,
    DiffuserShape,
    SamShape,
    diffuser_shape,
    sam_shape,
)
from keras_matrix.models.inputs import synthetic
from keras_matrix.models.language_models.hub import keras_hub
from keras_matrix.models.language_models.shapes import ARRAYS_PER_TRAINED_WEIGHT, Memory
from keras_matrix.models.layers.heads import loss_dtype
from keras_matrix.models.workload import Built, Request, Samples, UnsupportedWorkload

# Two points on the image, one inside of the mask and one outside, and the padding that KerasHub wants without a box.
LABELS = (1, 0, -1)
TIMES = 1000


def sam(request: Request) -> Built:
    """Return Segment Anything or its image encoder. Raises UnsupportedWorkload if the weights do not fit the memory."""
    shape, part = sam_shape(request.text("size"), request.integer("image_size")), request.text("part")
    weights = shape.encoder_parameters if part == IMAGE_ENCODER else shape.parameters
    check_memory("sam", weights, shape.trained(part), request)
    layers = sam_layers(shape)
    model = segmenter(*layers) if part == ALL else encoder(layers[0])
    # Mean squared errors against random targets and this optimizer, as in Keras's published benchmark.
    model.compile(optimizer="adam", loss="mse")
    return Built(model, sam_samples(shape) if part == ALL else encoder_samples(shape))


def sam_layers(shape: SamShape) -> tuple[Any, Any, Any]:
    """Return KerasHub's image encoder, prompt encoder and mask decoder of a shape."""
    hub = keras_hub()
    image_encoder = hub.models.ViTDetBackbone(
        hidden_size=shape.width,
        num_layers=shape.blocks,
        intermediate_dim=4 * shape.width,
        num_heads=shape.heads,
        global_attention_layer_indices=list(shape.global_blocks),
        patch_size=shape.patch,
        num_output_channels=shape.channels,
        window_size=shape.window,
        image_shape=(shape.image, shape.image, 3),
    )
    with _policy(loss_dtype()):
        prompt_encoder = hub.layers.SAMPromptEncoder(
            hidden_size=shape.channels,
            image_embedding_size=(shape.grid, shape.grid),
            input_image_size=(shape.image, shape.image),
            mask_in_channels=shape.mask_channels,
        )
    mask_decoder = hub.layers.SAMMaskDecoder(
        num_layers=shape.decoder_layers,
        hidden_size=shape.channels,
        intermediate_dim=shape.decoder_hidden,
        num_heads=8,
        embedding_dim=shape.channels,
        num_multimask_outputs=MASKS - 1,
        iou_head_hidden_dim=shape.channels,
    )
    return image_encoder, prompt_encoder, mask_decoder


@contextmanager
def _policy(name: str) -> Iterator[None]:
    """Build layers with another policy than the cell's.

    Coordinates have more digits than bfloat16, and KerasHub multiplies them by frequencies in float32, which fails on
    TensorFlow and PyTorch if they are not.
    """
    policy = keras.config.dtype_policy()
    keras.config.set_dtype_policy(name)
    try:
        yield
    finally:
        keras.config.set_dtype_policy(policy)


def segmenter(image_encoder: Any, prompt_encoder: Any, mask_decoder: Any) -> Any:
    """Return the model of images with points: masks, and how well each may cover the object.

    KerasHub's `SAMImageSegmenter` has the same layers, and refuses `fit`. What only prompts by boxes and masks use is
    not trained, because it has no gradient.
    """
    points, labels = keras.Input((len(LABELS), 2), name="points"), keras.Input((len(LABELS),), name="labels")
    prompts = prompt_encoder(points=points, labels=labels)
    found = mask_decoder(image_embeddings=image_encoder.output, **prompts)
    for unused in (
        prompt_encoder.mask_downscaler,
        prompt_encoder.top_left_corner_embed,
        prompt_encoder.bottom_right_corner_embed,
    ):
        unused.trainable = False
    outputs = [_for_loss(found["masks"], "masks"), _for_loss(found["iou_pred"], "iou_pred")]
    return keras.Model({"images": image_encoder.input, "points": points, "labels": labels}, outputs, name="sam")


def encoder(image_encoder: Any) -> Any:
    """Return the model of images alone: their features."""
    return keras.Model(image_encoder.input, _for_loss(image_encoder.output, "features"), name="sam_image_encoder")


def sam_samples(shape: SamShape) -> Samples:
    """Return images with points, and random masks with their quality."""

    def samples(count: int, seed: int) -> tuple[Any, Any]:
        points = synthetic.tokens(count, 2 * len(LABELS), shape.image, seed).reshape(count, len(LABELS), 2)
        points[:, LABELS.index(-1)] = 0
        x = {
            "images": synthetic.images(count, (shape.image, shape.image, 3), seed),
            "points": points.astype(np.float32),
            "labels": np.tile(np.array(LABELS, np.float32), (count, 1)),
        }
        masks = synthetic.booleans(count, (MASKS, 4 * shape.grid, 4 * shape.grid), seed)
        return x, (masks, synthetic.images(count, (MASKS,), seed))

    return samples


def encoder_samples(shape: SamShape) -> Samples:
    """Return images and random features."""

    def samples(count: int, seed: int) -> tuple[Any, Any]:
        features = synthetic.images(count, (shape.grid, shape.grid, shape.channels), seed)
        return synthetic.images(count, (shape.image, shape.image, 3), seed), features

    return samples


def stable_diffusion_3(request: Request) -> Built:
    """Return the diffusion transformer. Raises ValueError, and UnsupportedWorkload if its weights do not fit."""
    shape = diffuser_shape(request.text("size"), request.integer("image_size"))
    check_memory("stable_diffusion_3", shape.parameters, shape.parameters, request)
    transformer = diffuser(shape)
    model = keras.Model(transformer.input, _for_loss(transformer.output, "velocity"), name="stable_diffusion_3")
    # As KerasHub compiles its text-to-image models.
    optimizer = keras.optimizers.AdamW(1e-4, weight_decay=1e-2, epsilon=1e-8, clipnorm=1.0)
    model.compile(optimizer=optimizer, loss="mse")
    return Built(model, diffusion_samples(shape))


def diffuser(shape: DiffuserShape) -> Any:
    """Return KerasHub's diffusion transformer.

    KerasHub exports it only as part of a backbone with three more models, which would be built for nothing.
    """
    keras_hub()
    module = importlib.import_module("keras_hub.src.models.stable_diffusion_3.mmdit")
    transformer = module.MMDiT(
        patch_size=PATCH,
        hidden_dim=shape.width,
        num_layers=shape.blocks,
        num_heads=shape.heads,
        position_size=shape.positions,
        latent_shape=(shape.latent, shape.latent, CHANNELS),
        context_shape=(None, shape.text_width),
        pooled_projection_shape=(shape.pooled_width,),
        qk_norm="rms_norm" if shape.normalizes else None,
    )
    if loss_dtype() == "float64":
        # There KerasHub mixes indices of two types, which JAX refuses. On the instance, bypassing Keras's tracking.
        positions = transformer.position_embedding
        positions.__dict__["call"] = partial(_cropped, positions)
    return transformer


def _cropped(positions: Any, inputs: Any, height: int, width: int) -> Any:
    """Return the middle of a table of positions, as KerasHub's layer does."""
    table = keras.ops.reshape(positions.position_embeddings, (positions.height, positions.width, -1))
    top, left = (positions.height - height) // 2, (positions.width - width) // 2
    middle = table[top : top + height, left : left + width]
    return keras.ops.reshape(middle, (1, height * width, -1))


def diffusion_samples(shape: DiffuserShape) -> Samples:
    """Return noised latents with texts and times, and the velocities from latents to noise (rectified flow).

    Latents z, noise e and texts are uniform in [-1, 1), times t uniform in [0, 1): x = (1 - t) z + t e, v = e - z.
    Source: Esser et al., "Scaling rectified flow transformers for high-resolution image synthesis", 2024, section 2.
    """
    latent = (shape.latent, shape.latent, CHANNELS)
    shapes = (latent, latent, (shape.tokens, shape.text_width), (shape.pooled_width,))
    ends = np.cumsum([math.prod(one) for one in shapes])

    def samples(count: int, seed: int) -> tuple[Any, Any]:
        drawn = synthetic.images(count, (int(ends[-1]) + 1,), seed)
        time = drawn[:, -1:].copy()
        pieces = np.split(2 * drawn[:, :-1] - 1, ends[:-1], axis=1)
        z, noise, context, pooled = (piece.reshape(count, *one) for piece, one in zip(pieces, shapes, strict=True))
        mixed = time.reshape(count, 1, 1, 1)
        x = {
            "latent": (1 - mixed) * z + mixed * noise,
            "context": context,
            "pooled_projection": pooled,
            "timestep": TIMES * time,
        }
        return x, noise - z

    return samples


def check_memory(name: str, weights: int, trained: int, request: Request) -> None:
    """Raise UnsupportedWorkload if weights, and in fit their gradients and moments, exceed the free memory."""
    size = np.dtype(keras.config.dtype_policy().variable_dtype).itemsize
    training = ARRAYS_PER_TRAINED_WEIGHT * trained * size if request.phase == "fit" else 0
    if problem := Memory(weights * size, training=training).problem(request.free_bytes, "size"):
        raise UnsupportedWorkload(f"{name}: {weights / 1e9:.3g} billion weights: it {problem}")


def _for_loss(output: Any, name: str) -> Any:
    return keras.layers.Activation("linear", dtype=loss_dtype(), name=name)(output)

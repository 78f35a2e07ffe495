"""Builds a language model of KerasHub and its samples."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from contextlib import suppress
from functools import partial
from typing import Any

import keras
import ml_dtypes  # noqa: F401 - teaches NumPy the name bfloat16
import numpy as np

from keras_matrix.models.inputs import synthetic
from keras_matrix.models.language_models.hub import keras_hub
from keras_matrix.models.language_models.presets import configuration, of_preset
from keras_matrix.models.language_models.shapes import (
    GEMMA,
    GPT2,
    LLAMA,
    MISTRAL,
    UNQUANTISED,
    Shape,
    Use,
    least_memory,
    shape_of,
)
from keras_matrix.models.layers.heads import float_logits
from keras_matrix.models.workload import Built, Request, UnsupportedWorkload
from keras_matrix.records.settings import FROZEN_QUANTIZATIONS

NAMES = {GPT2: "GPT2", GEMMA: "Gemma", LLAMA: "Llama", MISTRAL: "Mistral"}


def built(architecture: str, request: Request) -> Built:
    """Return the workload. Raises ValueError, and UnsupportedWorkload if its weights do not fit the memory."""
    task = task_of(architecture, request)
    model = task if request.phase == "generate" else plain(task)
    return Built(model, samples_of(request, shape_of_model(architecture, task).vocabulary))


def plain(task: Any) -> Any:
    """Return the layers of KerasHub's task as a `keras.Model` of its own, compiled with KerasHub's loss and optimizer.

    The task's `fit` and `predict` put KerasHub's own input pipeline, for preprocessing, around those of Keras.
    """
    model = keras.Model(task.input, float_logits(task.output), name=task.name)
    model.compile(
        optimizer=keras.optimizers.Adam(2e-5),
        loss=keras.losses.SparseCategoricalCrossentropy(from_logits=True),
        weighted_metrics=[keras.metrics.SparseCategoricalAccuracy()],
    )
    return model


def task_of(architecture: str, request: Request) -> Any:
    """Return KerasHub's task of a request, compiled for generating."""
    check(architecture, request)
    preset = request.text("preset")
    if preset:
        task = _task(keras_hub(), architecture)
        check_size = partial(_check_preset, task, architecture, request)
        model = of_preset(task, architecture, preset, request, check_size)
    else:
        shape = shape_of(architecture, request.params)
        _check_memory(shape, request)
        model = of_shape(shape)
    return prepared(model, request)


def check(architecture: str, request: Request) -> None:
    """Raise ValueError for parameters that do not fit each other."""
    prompt, longest = request.integer("prompt_length"), request.integer("max_length")
    if request.phase == "generate" and prompt >= longest:
        raise ValueError(f"{architecture}: prompt_length: must be below max_length ({longest}). Received: {prompt}")
    if request.integer("lora_rank") and request.phase == "predict":
        raise ValueError(f"{architecture}: lora_rank: must be 0 with phase: predict, which trains nothing")
    mode = request.text("quantization")
    if mode in FROZEN_QUANTIZATIONS and request.phase == "fit" and not request.integer("lora_rank"):
        raise ValueError(
            f"{architecture}: quantization: {mode} has no trainable weights; set lora_rank, or "
            "phase: predict or generate"
        )


def of_shape(shape: Shape) -> Any:
    """Return a model of a shape with random weights."""
    hub = keras_hub()
    backbone = getattr(hub.models, f"{NAMES[shape.architecture]}Backbone")(**_configuration(shape))
    return _task(hub, shape.architecture)(backbone=backbone, preprocessor=None)


def shape_of_model(architecture: str, model: Any) -> Shape:
    """Return the shape of a built model."""
    return _shape_of(architecture, model.backbone.get_config())


def _shape_of(architecture: str, config: Mapping[str, Any]) -> Shape:
    """Return the shape of a backbone's configuration. Raises KeyError for one without its sizes."""
    heads = config.get("num_query_heads") or config["num_heads"]
    width, hidden = config["hidden_dim"], config["intermediate_dim"]
    return Shape(
        architecture,
        config["num_layers"],
        width,
        heads,
        config.get("num_key_value_heads") or heads,
        config.get("head_dim") or width // heads,
        hidden // 2 if architecture == GEMMA else hidden,
        config["vocabulary_size"],
        positions=config["max_sequence_length"] if architecture == GPT2 else 0,
        window=config["sliding_window"] if architecture == MISTRAL else 0,
    )


def looked_up(shape: Shape, model: Any) -> list[Any]:
    """Return the variables of the tables of which a decoding step reads a few rows only."""
    backbone = model.backbone
    if shape.architecture == GPT2:
        return list(backbone.position_embedding.weights)
    table = backbone.token_embedding
    return [] if table.tie_weights else [one for one in table.weights if "reverse" not in one.name]


def prepared(model: Any, request: Request) -> Any:
    """Quantise a model, add LoRA, and compile it."""
    mode = request.text("quantization")
    if mode != UNQUANTISED:
        model.quantize(mode)
    return _finished(model, request)


def unquantised(shape: Shape, request: Request) -> Any:
    """Return a model of a shape as `prepared` does, with weights in full. Raises UnsupportedWorkload, see `built`."""
    _check_memory(shape, request)
    return _finished(of_shape(shape), request)


def _finished(model: Any, request: Request) -> Any:
    if rank := request.integer("lora_rank"):
        model.backbone.enable_lora(rank)
    for layer in model.backbone.transformer_layers:
        if hasattr(layer, "sliding_window") and keras.config.floatx() != "float32":
            layer._compute_self_attention_mask = _with_int32_positions(layer._compute_self_attention_mask)
    model.compile(sampler="greedy")
    return model


def _with_int32_positions(mask: Callable[..., Any]) -> Callable[..., Any]:
    """Return KerasHub's mask of a sliding window with positions that are int32 in float64, too.

    Keras gives integers as many bits as `floatx`. TensorFlow adds no int64 to the int32 of KerasHub's position in the
    cache.
    """

    def masked(*arguments: Any, **named: Any) -> Any:
        floatx = keras.config.floatx()
        keras.config.set_floatx("float32")
        try:
            return mask(*arguments, **named)
        finally:
            keras.config.set_floatx(floatx)

    return masked


def samples_of(request: Request, vocabulary: int) -> Callable[[int, int], tuple[Any, Any]]:
    """Return the samples of a cell: prompts to continue, or sequences with their next tokens."""
    length = request.integer("max_length")

    def samples(count: int, seed: int) -> tuple[Any, Any]:
        tokens = synthetic.tokens(count, length + 1, vocabulary, seed)
        ids, mask = tokens[:, :-1].copy(), np.ones((count, length), np.int32)
        if request.phase == "generate":
            prompt = request.integer("prompt_length")
            ids[:, prompt:], mask[:, prompt:] = 0, 0
        return {"token_ids": ids, "padding_mask": mask}, tokens[:, 1:].copy()

    return samples


def _task(hub: Any, architecture: str) -> Any:
    return getattr(hub.models, f"{NAMES[architecture]}CausalLM")


def _configuration(shape: Shape) -> dict[str, Any]:
    """Return the arguments of KerasHub's backbone."""
    common = {"vocabulary_size": shape.vocabulary, "num_layers": shape.layers, "hidden_dim": shape.width}
    if shape.architecture == GPT2:
        return common | {
            "num_heads": shape.heads,
            "intermediate_dim": shape.hidden,
            "max_sequence_length": shape.positions,
        }
    common |= {"num_query_heads": shape.heads, "num_key_value_heads": shape.key_heads, "intermediate_dim": shape.hidden}
    if shape.architecture == GEMMA:  # its intermediate_dim counts both halves of the gated layer
        return common | {"intermediate_dim": 2 * shape.hidden, "head_dim": shape.head_width}
    return common | ({"sliding_window": shape.window} if shape.architecture == MISTRAL else {})


def _check_preset(task: Any, architecture: str, request: Request, name: str) -> None:
    """Raise UnsupportedWorkload for a preset that does not fit the memory; one without known sizes is not checked."""
    with suppress(KeyError):
        _check_memory(_shape_of(architecture, configuration(task, name)), request)


def _check_memory(shape: Shape, request: Request) -> None:
    policy = keras.config.dtype_policy()
    use = Use(
        request.phase,
        request.batch_size,
        request.integer("max_length"),
        np.dtype(policy.variable_dtype).itemsize,
        np.dtype(policy.compute_dtype).itemsize,
        trains_all=not request.integer("lora_rank"),
    )
    if problem := least_memory(shape, use).problem(request.free_bytes):
        raise UnsupportedWorkload(f"{shape.architecture}: {shape.parameters / 1e9:.3g} billion weights: it {problem}")

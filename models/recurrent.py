"""Recurrent networks over sequences of 0/1 vectors, and over an image pixel by pixel."""

from __future__ import annotations

from typing import Any

from keras_matrix.models.corrections import BOOLEANS, LABELS, PIXELS, TEXT_TARGETS, UNITS
from keras_matrix.models.workload import Built, Param, Request, Samples, UnsupportedWorkload, workload

FEATURES = 60
LENGTH = Param("sequence_length", 40, "Steps in a sequence.", minimum=1, maximum=4096)
TEXT = (TEXT_TARGETS, BOOLEANS)


def _units(default: int) -> Param:
    return Param("units", default, "Width of the recurrent state.", minimum=1, maximum=8192)


@workload(batch_size=32, params=(LENGTH, _units(128)), corrections=TEXT)
def lstm(request: Request) -> Built:
    """One LSTM layer and a softmax over sixty characters."""
    return _next_character(request, "LSTM")


@workload(batch_size=32, params=(LENGTH, _units(32)), corrections=(*TEXT, UNITS))
def gru(request: Request) -> Built:
    """One GRU layer and a softmax over sixty characters."""
    return _next_character(request, "GRU")


@workload(batch_size=128, params=(LENGTH, _units(128)), corrections=TEXT)
def lstm_text_generation(request: Request) -> Built:
    """The lstm network at the batch size of Keras's text generation example."""
    return _next_character(request, "LSTM")


@workload(
    batch_size=32,
    params=(
        Param("image_size", 28, "Height and width of the image, in pixels; a step per pixel.", minimum=2, maximum=128),
        _units(100),
    ),
    data=("synthetic", "digits", "keras:mnist"),
    corrections=(PIXELS, LABELS),
)
def mnist_irnn(request: Request) -> Built:
    """A simple recurrent layer of rectified linear units, started at the identity, over a grey image pixel by pixel."""
    import keras
    from keras import initializers, layers

    from keras_matrix.models.inputs.images import Images, image_samples
    from keras_matrix.models.layers.heads import probabilities, rmsprop

    size = request.integer("image_size")
    inputs = keras.Input((size * size, 1))
    x = layers.SimpleRNN(
        request.integer("units"),
        activation="relu",
        kernel_initializer=initializers.RandomNormal(stddev=0.001),
        recurrent_initializer=initializers.Identity(),
    )(inputs)
    model = keras.Model(inputs, probabilities(layers.Dense(10)(x)), name="mnist_irnn")
    model.compile(optimizer=rmsprop(1e-6), loss="categorical_crossentropy", metrics=["accuracy"])
    samples = image_samples(request, Images(size, 1, 10), shape=(size * size, 1))
    return Built(model, samples, data_is_real=request.data != "synthetic")


def _next_character(request: Request, layer: str) -> Built:
    import keras
    from keras import layers

    from keras_matrix.models.layers.heads import probabilities, rmsprop

    if (dtype := keras.config.dtype_policy().variable_dtype) not in ("float32", "float64"):
        raise UnsupportedWorkload(
            f"its weights start orthogonal, by a QR decomposition that needs float32 or float64 weights: use "
            f"mixed_{dtype}. Received: precision {dtype!r}"
        )
    shape = (request.integer("sequence_length"), FEATURES)
    inputs = keras.Input(shape)
    x = getattr(layers, layer)(request.integer("units"))(inputs)
    model = keras.Model(inputs, probabilities(layers.Dense(FEATURES)(x)))
    model.compile(optimizer=rmsprop(0.01), loss="categorical_crossentropy")
    return Built(model, _sequences(shape))


def _sequences(shape: tuple[int, int]) -> Samples:
    from keras_matrix.models.inputs import synthetic

    def samples(count: int, seed: int) -> tuple[Any, Any]:
        x = synthetic.booleans(count, shape, seed)
        return x, synthetic.one_hot(synthetic.labels(count, FEATURES, seed), FEATURES)

    return samples

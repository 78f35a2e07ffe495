"""Fully connected networks."""

from __future__ import annotations

from keras_matrix.models.corrections import LABELS, PIXELS
from keras_matrix.models.workload import Built, Param, Request, workload


@workload(
    batch_size=32,
    params=(Param("image_size", 28, "Height and width of the image, in pixels.", minimum=1, maximum=1024),),
    data=("synthetic", "digits", "keras:mnist"),
    corrections=(PIXELS, LABELS),
)
def mnist_mlp(request: Request) -> Built:
    """Four dense layers of 1024 with dropout, on flat grey images of ten classes."""
    import keras
    from keras import layers

    from keras_matrix.models.inputs.images import Images, image_samples
    from keras_matrix.models.layers.heads import probabilities, rmsprop

    size = request.integer("image_size")
    inputs = x = keras.Input((size * size,))
    for _ in range(4):
        x = layers.Dense(1024, activation="relu")(x)
        x = layers.Dropout(0.2)(x)
    model = keras.Model(inputs, probabilities(layers.Dense(10)(x)), name="mnist_mlp")
    model.compile(optimizer=rmsprop(0.001), loss="categorical_crossentropy", metrics=["accuracy"])
    samples = image_samples(request, Images(size, 1, 10), shape=(size * size,))
    return Built(model, samples, data_is_real=request.data != "synthetic")

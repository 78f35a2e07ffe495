"""Small convolutional networks."""

from __future__ import annotations

from keras_matrix.models.corrections import DECAY, LABELS, LAYOUT, PIXELS
from keras_matrix.models.workload import Built, Param, Request, workload


@workload(
    batch_size=32,
    params=(Param("image_size", 32, "Height and width of the image, in pixels.", minimum=10, maximum=1024),),
    data=("synthetic", "digits", "keras:cifar10"),
    corrections=(PIXELS, LABELS, LAYOUT, DECAY),
)
def cifar10_cnn(request: Request) -> Built:
    """Four 3x3 convolutions in two pooled pairs, then dense 512, on colour images of ten classes."""
    import keras
    from keras import layers

    from keras_matrix.models.inputs.images import Images, image_samples
    from keras_matrix.models.layers.heads import probabilities, rmsprop

    images = Images(request.integer("image_size"), 3, 10)
    inputs = x = keras.Input(images.shape)
    for filters in (32, 64):
        x = layers.Conv2D(filters, 3, padding="same", activation="relu")(x)
        x = layers.Conv2D(filters, 3, activation="relu")(x)
        x = layers.MaxPooling2D(2)(x)
        x = layers.Dropout(0.25)(x)
    x = layers.Dense(512, activation="relu")(layers.Flatten()(x))
    x = layers.Dropout(0.5)(x)
    model = keras.Model(inputs, probabilities(layers.Dense(10)(x)), name="cifar10_cnn")
    model.compile(optimizer=rmsprop(1e-4, decay=1e-6), loss="categorical_crossentropy", metrics=["accuracy"])
    return Built(model, image_samples(request, images), data_is_real=request.data != "synthetic")

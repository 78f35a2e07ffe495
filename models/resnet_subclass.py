"""Residual networks written as subclassed models instead of graphs of layers."""

from __future__ import annotations

from keras_matrix.models.corrections import FROM_LOGITS, LAYOUT, PIXELS, POOLING, TF_DECAY, TRAINING
from keras_matrix.models.workload import Built, Param, Request, workload


@workload(
    batch_size=16,
    params=(Param("image_size", 224, "Height and width of the image, in pixels.", minimum=32, maximum=1024),),
    corrections=(PIXELS, LAYOUT, TRAINING, POOLING, FROM_LOGITS, TF_DECAY),
)
def resnet50_subclass(request: Request) -> Built:
    """ResNet50 as nested subclasses of keras.Model, a thousand classes."""
    import keras

    from keras_matrix.models.inputs.images import Images, image_samples
    from keras_matrix.models.layers.heads import rmsprop
    from keras_matrix.models.layers.residual import ResNet50

    images = Images(request.integer("image_size"), 3, 1000)
    model = ResNet50(images.classes)
    model(keras.Input(images.shape))
    model.compile(optimizer=rmsprop(1e-4, decay=1e-6), loss="categorical_crossentropy", metrics=["accuracy"])
    return Built(model, image_samples(request, images))

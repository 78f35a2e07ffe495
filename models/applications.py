"""Image classifiers of keras.applications, without pretrained weights, a thousand classes."""

from __future__ import annotations

from keras_matrix.models.corrections import DECAY, LAYOUT, PIXELS, RESCALING, SOFTMAX, TRANSPOSED_TWICE
from keras_matrix.models.workload import Built, Param, Request, workload

CLASSES = 1000


def _image_size(default: int, minimum: int = 32) -> tuple[Param, ...]:
    return (Param("image_size", default, "Height and width of the image, in pixels.", minimum=minimum, maximum=1024),)


@workload(batch_size=32, params=_image_size(224), corrections=(PIXELS, LAYOUT, SOFTMAX))
def resnet50(request: Request) -> Built:
    """ResNet50, the 50-layer residual network."""
    return _classifier(request, "ResNet50", decay=0.0)


@workload(batch_size=8, params=_image_size(224), corrections=(PIXELS, LAYOUT, DECAY))
def vgg16(request: Request) -> Built:
    """VGG16, sixteen layers without shortcuts; most parameters are in the first dense layer."""
    return _classifier(request, "VGG16", decay=1e-6)


@workload(batch_size=16, params=_image_size(299, minimum=71), corrections=(PIXELS, LAYOUT, TRANSPOSED_TWICE, DECAY))
def xception(request: Request) -> Built:
    """Xception, depthwise separable convolutions with shortcuts."""
    return _classifier(request, "Xception", decay=1e-6)


@workload(batch_size=32, params=_image_size(224), corrections=(RESCALING,))
def mobilenet_v3_small(request: Request) -> Built:
    """MobileNetV3 small: depthwise convolutions with squeeze and excitation, made for phones."""
    return _classifier(request, "MobileNetV3Small", decay=0.0, include_preprocessing=False)


@workload(batch_size=32, params=_image_size(224), corrections=(RESCALING,))
def efficientnet_v2_b0(request: Request) -> Built:
    """EfficientNetV2 B0: fused and depthwise convolution blocks of searched widths."""
    return _classifier(request, "EfficientNetV2B0", decay=0.0, include_preprocessing=False)


def _classifier(request: Request, application: str, decay: float, **options: bool) -> Built:
    import keras

    from keras_matrix.models.inputs.images import Images, image_samples
    from keras_matrix.models.layers.heads import probabilities, rmsprop

    images = Images(request.integer("image_size"), 3, CLASSES)
    make = getattr(keras.applications, application)
    logits = make(weights=None, input_shape=images.shape, classes=CLASSES, classifier_activation=None, **options)
    model = keras.Model(logits.inputs[0], probabilities(logits.outputs[0]), name=logits.name)
    model.compile(optimizer=rmsprop(1e-4, decay), loss="categorical_crossentropy", metrics=["accuracy"])
    return Built(model, image_samples(request, images))

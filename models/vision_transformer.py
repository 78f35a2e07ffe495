"""Vision transformers."""

from __future__ import annotations

from keras_matrix.models.workload import Built, Param, Request, workload


@workload(
    batch_size=32,
    params=(
        Param("image_size", 224, "Height and width of the image, in pixels.", minimum=8, maximum=1024),
        Param("patch_size", 16, "Height and width of a patch; it divides the image.", minimum=1, maximum=128),
        Param("depth", 12, "Number of blocks.", minimum=1, maximum=128),
    ),
)
def vit_tiny(request: Request) -> Built:
    """ViT-Ti: 192 wide, three heads, on patches of colour images, a thousand classes."""
    import keras
    from keras import layers

    from keras_matrix.models.inputs.images import Images, image_samples
    from keras_matrix.models.layers.attention import ClassToken, Positions, pre_norm_block
    from keras_matrix.models.layers.heads import probabilities

    images, patch = Images(request.integer("image_size"), 3, 1000), request.integer("patch_size")
    if images.size % patch:
        raise ValueError(f"vit_tiny: patch_size must divide image_size. Received: {patch} and {images.size}")
    patches = (images.size // patch) ** 2
    inputs = keras.Input(images.shape)
    x = layers.Reshape((patches, 192))(layers.Conv2D(192, patch, strides=patch)(inputs))
    x = Positions(patches + 1)(ClassToken()(x))
    for _ in range(request.integer("depth")):
        x = pre_norm_block(x, heads=3, hidden=768)
    x = layers.LayerNormalization(epsilon=1e-6)(x)[:, 0]
    model = keras.Model(inputs, probabilities(layers.Dense(images.classes)(x)), name="vit_tiny")
    optimizer = keras.optimizers.AdamW(3e-4, weight_decay=0.05)
    model.compile(optimizer=optimizer, loss="categorical_crossentropy", metrics=["accuracy"])
    return Built(model, image_samples(request, images))

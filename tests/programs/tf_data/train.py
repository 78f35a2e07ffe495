"""Pictures that a tf.data pipeline decodes, moves and mixes while the model trains.

Written for JAX, TensorFlow and PyTorch; TensorFlow must be installed for its pipelines.
"""

import keras
import numpy as np
import tensorflow as tf
from keras import layers

SIZE, CLASSES, BATCH = 24, 5, 32

rng = np.random.default_rng(12)
labels = rng.integers(0, CLASSES, 960)
pictures = rng.integers(0, 90, (960, SIZE, SIZE, 3), "uint8")
for picture, label in zip(pictures, labels, strict=True):
    picture[:, label * 4 : label * 4 + 4] += 120


def augment(picture, label):
    picture = tf.image.convert_image_dtype(picture, tf.float32)
    picture = tf.image.random_brightness(picture, 0.2)
    picture = tf.image.resize_with_crop_or_pad(picture, SIZE + 4, SIZE + 4)
    return tf.image.random_crop(picture, (SIZE, SIZE, 3)), label


data = tf.data.Dataset.from_tensor_slices((pictures, labels))
train = data.take(800).cache().shuffle(800).map(augment, num_parallel_calls=tf.data.AUTOTUNE).batch(BATCH).prefetch(2)
held_out = data.skip(800).map(lambda picture, label: (tf.cast(picture, tf.float32) / 255.0, label)).batch(BATCH)

model = keras.Sequential(
    [
        keras.Input((SIZE, SIZE, 3)),
        layers.Conv2D(24, 3, activation="relu"),
        layers.MaxPooling2D(),
        layers.Conv2D(48, 3, activation="relu"),
        layers.MaxPooling2D(),
        layers.Flatten(),
        layers.Dense(CLASSES, activation="softmax"),
    ]
)
model.compile("adam", "sparse_categorical_crossentropy", metrics=["accuracy"])
model.fit(train, validation_data=held_out, epochs=4)

"""Writes pictures into a folder for each class, reads them with Keras's own reader, and augments them in the model.

Written for JAX, TensorFlow and PyTorch; TensorFlow must be installed for the reader.
"""

from pathlib import Path

import keras
import numpy as np
from keras import layers

FOLDER = Path("pictures")


def write_pictures(per_class):
    rng = np.random.default_rng(1)
    for number, name in enumerate(("plain", "rows", "columns")):
        (FOLDER / name).mkdir(parents=True, exist_ok=True)
        for picture in range(per_class):
            values = rng.integers(60, 120, (20, 20, 3))
            if number == 1:
                values[::3] += 100
            if number == 2:
                values[:, ::3] += 100
            keras.utils.save_img(FOLDER / name / f"{picture:03d}.png", values, scale=False)


write_pictures(120)
options = {"validation_split": 0.2, "seed": 5, "image_size": (20, 20), "batch_size": 16}
train = keras.utils.image_dataset_from_directory(FOLDER, subset="training", **options)
test = keras.utils.image_dataset_from_directory(FOLDER, subset="validation", **options)
print("classes:", train.class_names)
model = keras.Sequential(
    [
        keras.Input((20, 20, 3)),
        layers.Rescaling(1 / 255),
        layers.RandomTranslation(0.1, 0.1),
        layers.Conv2D(16, 3, activation="relu"),
        layers.MaxPooling2D(),
        layers.Conv2D(32, 3, activation="relu"),
        layers.GlobalMaxPooling2D(),
        layers.Dense(3, activation="softmax"),
    ]
)
model.compile("adam", "sparse_categorical_crossentropy", metrics=["accuracy"])
model.fit(train, epochs=5, validation_data=test)

"""A functional model with arguments, a file read beside the program, callbacks and validation; a figure at its end."""

import argparse
from pathlib import Path

import keras
import numpy as np

parser = argparse.ArgumentParser()
parser.add_argument("--width", type=int, default=8)
width = parser.parse_args().width
scale = float(Path("data/scale.txt").read_text())

x = scale * np.random.rand(400, 6).astype("float32")
y = (x.sum(axis=1) > 3).astype("int32")
inputs = keras.Input((6,))
outputs = keras.layers.Dense(2)(keras.layers.Dense(width, activation="relu")(inputs))
model = keras.Model(inputs, outputs)
model.compile("adam", keras.losses.SparseCategoricalCrossentropy(from_logits=True), metrics=["accuracy"])
stop = keras.callbacks.EarlyStopping(monitor="val_loss", patience=0, mode="max", min_delta=1e9)
save = keras.callbacks.ModelCheckpoint("weights/best.weights.h5", save_weights_only=True)
model.fit(x, y, batch_size=64, epochs=2, validation_split=0.25, callbacks=[stop, save])
raise RuntimeError("the program ends with its measured call")

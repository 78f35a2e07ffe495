"""Options of a command line and a table of numbers beside the program; the usual functional model.

Written for JAX, TensorFlow and PyTorch.
"""

import argparse
import csv
from pathlib import Path

import keras
import numpy as np
from keras import layers


def options():
    parser = argparse.ArgumentParser(description="Predict the yield of a field.")
    parser.add_argument("--data", type=Path, default=Path("data/fields.csv"))
    parser.add_argument("--width", type=int, default=32)
    parser.add_argument("--epochs", type=int, default=10)
    parser.add_argument("--out", type=Path, default=Path("out"))
    parser.add_argument("--quiet", action="store_true")
    return parser.parse_args()


def read(path):
    with path.open(newline="") as file:
        rows = list(csv.DictReader(file))
    names = [name for name in rows[0] if name != "yield"]
    x = np.array([[float(row[name]) for name in names] for row in rows], "float32")
    return x, np.array([float(row["yield"]) for row in rows], "float32")


if __name__ == "__main__":
    args = options()
    x, y = read(args.data)
    x, y = np.tile(x, (20, 1)), np.tile(y, 20)
    scale = layers.Normalization()
    scale.adapt(x)
    inputs = keras.Input((x.shape[1],))
    hidden = layers.Dense(args.width, activation="relu")(scale(inputs))
    hidden = layers.Dense(args.width, activation="relu")(hidden)
    model = keras.Model(inputs, layers.Dense(1)(hidden))
    model.compile("adam", "mse", metrics=["mae"])
    args.out.mkdir(exist_ok=True)
    model.fit(x, y, batch_size=32, epochs=args.epochs, shuffle=True, verbose=0 if args.quiet else 1)
    model.save(args.out / "yield.keras")
    print("saved", args.out / "yield.keras")

"""An ordinary training script: Keras on handwritten digits, with its own log lines."""

import argparse
import time

import keras
import numpy as np
from sklearn.datasets import load_digits


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--batch-size", type=int, default=64)
    parser.add_argument("--epochs", type=int, default=5)
    args = parser.parse_args()

    images, labels = load_digits(return_X_y=True)
    images = (images / 16).astype("float32").reshape(-1, 8, 8, 1)
    order = np.random.default_rng(0).permutation(len(images))
    train, test = order[:1500], order[1500:]

    keras.utils.set_random_seed(0)
    model = keras.Sequential(
        [
            keras.layers.Conv2D(32, 3, activation="relu"),
            keras.layers.Conv2D(64, 3, activation="relu"),
            keras.layers.Flatten(),
            keras.layers.Dense(10),
        ]
    )
    loss = keras.losses.SparseCategoricalCrossentropy(from_logits=True)
    model.compile("adam", loss, metrics=["accuracy"])

    for epoch in range(args.epochs):
        begun = time.perf_counter()
        model.fit(images[train], labels[train], args.batch_size, verbose=0)
        seconds = time.perf_counter() - begun
        _, accuracy = model.evaluate(images[test], labels[test], args.batch_size, verbose=0)
        print(f"Epoch[{epoch}] Speed: {len(train) / seconds:.1f} samples/sec", flush=True)
        print(f"Epoch[{epoch}] validation: accuracy={accuracy:.4f} time cost: {seconds:.3f}", flush=True)


if __name__ == "__main__":
    main()

"""Batches that two processes make while the model trains.

Written for JAX, TensorFlow and PyTorch.
"""

import keras
import numpy as np
from keras import layers


class Spectra(keras.utils.PyDataset):
    """Frequencies of noisy tones, computed batch by batch."""

    def __init__(self, batches, batch_size, **kwargs):
        super().__init__(**kwargs)
        self.batches, self.batch_size = batches, batch_size

    def __len__(self):
        return self.batches

    def __getitem__(self, index):
        rng = np.random.default_rng(index)
        tone = rng.integers(4, 60, self.batch_size)
        time = np.arange(512) / 512
        signal = np.sin(2 * np.pi * tone[:, None] * time) + rng.normal(0, 1, (self.batch_size, 512))
        return np.abs(np.fft.rfft(signal))[:, :128].astype("float32"), (tone / 60).astype("float32")


def main():
    model = keras.Sequential(
        [
            keras.Input((128,)),
            layers.BatchNormalization(),
            layers.Dense(256, activation="relu"),
            layers.Dense(256, activation="relu"),
            layers.Dense(1),
        ]
    )
    model.compile("adam", "mse", metrics=["mae"])
    spectra = Spectra(100, 32, workers=2, use_multiprocessing=True, max_queue_size=8)
    model.fit(spectra, epochs=4, validation_data=Spectra(10, 32))


if __name__ == "__main__":
    main()

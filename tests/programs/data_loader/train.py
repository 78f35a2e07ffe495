"""A data set and a loader of PyTorch, whatever the backend.

Written for JAX, TensorFlow and PyTorch; PyTorch must be installed for its loaders.
"""

import keras
import numpy as np
import torch
from keras import layers


class Sequences(torch.utils.data.Dataset):
    """Which of the four digits occurs most often."""

    def __init__(self, count):
        rng = np.random.default_rng(count)
        self.digits = rng.integers(0, 4, (count, 24)).astype("int32")
        counts = [np.bincount(row, minlength=4) for row in self.digits]
        self.most = np.argmax(counts, axis=1)

    def __len__(self):
        return len(self.digits)

    def __getitem__(self, index):
        return self.digits[index], self.most[index]


train = torch.utils.data.DataLoader(Sequences(1600), batch_size=32, shuffle=True, drop_last=True)
test = torch.utils.data.DataLoader(Sequences(320), batch_size=32)
model = keras.Sequential(
    [
        keras.Input((24,), dtype="int32"),
        layers.Embedding(4, 16),
        layers.LSTM(32),
        layers.Dense(4, activation="softmax"),
    ]
)
model.compile("rmsprop", "sparse_categorical_crossentropy", metrics=["accuracy"])
model.fit(train, validation_data=test, epochs=4)

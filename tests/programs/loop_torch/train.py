"""A loop of one's own with PyTorch's optimizer and loader around a Keras model.

Written for PyTorch.
"""

import os

os.environ["KERAS_BACKEND"] = "torch"

import keras
import numpy as np
import torch

import keras_matrix

rng = np.random.default_rng(4)
x = torch.from_numpy(rng.normal(size=(3200, 30)).astype("float32"))
y = (x[:, 0] * x[:, 1] > 0).long()
loader = torch.utils.data.DataLoader(torch.utils.data.TensorDataset(x, y), batch_size=32, shuffle=True)
model = keras.Sequential([keras.Input((30,)), keras.layers.Dense(128, activation="relu"), keras.layers.Dense(2)])
optimizer = torch.optim.Adam(model.parameters(), lr=1e-3)
loss_function = torch.nn.CrossEntropyLoss()
for epoch in range(5):
    total = 0.0
    for inputs, targets in keras_matrix.steps(loader):
        optimizer.zero_grad()
        loss = loss_function(model(inputs, training=True), targets)
        loss.backward()
        optimizer.step()
        total += loss.item()
    print(f"epoch {epoch + 1}: {total / len(loader):.3f}")

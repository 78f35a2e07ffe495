"""Learns by trying: an agent in a corridor, with a memory of what happened, trained on single batches.

Written for JAX, TensorFlow and PyTorch. There is no data set: each step is marked.
"""

import collections
import random

import keras
import numpy as np

import keras_matrix

LENGTH, DISCOUNT = 12, 0.95
random.seed(0)
network = keras.Sequential([keras.Input((LENGTH,)), keras.layers.Dense(64, activation="relu"), keras.layers.Dense(2)])
network.compile(keras.optimizers.Adam(2e-3), "mse")
memory = collections.deque(maxlen=2000)
places = np.eye(LENGTH, dtype="float32")
place, reached = LENGTH // 2, 0
for trial in range(600):
    if random.random() < 0.3:
        action = random.randrange(2)
    else:
        action = int(np.argmax(keras.ops.convert_to_numpy(network(places[place : place + 1]))))
    following = max(place + (1 if action else -1), 0)
    is_end = following == LENGTH - 1
    memory.append((place, action, 1.0 if is_end else 0.0, following, is_end))
    reached += is_end
    place = LENGTH // 2 if is_end else following
    if len(memory) < 64:
        continue
    with keras_matrix.step():
        chosen = random.sample(memory, 32)
        before, actions, rewards, after, ends = (np.array(column) for column in zip(*chosen, strict=True))
        values = keras.ops.convert_to_numpy(network(places[after])).max(axis=1)
        targets = keras.ops.convert_to_numpy(network(places[before])).copy()
        targets[np.arange(32), actions] = rewards + DISCOUNT * values * (1 - ends)
        network.train_on_batch(places[before], targets)
print("reached the end", reached, "times")

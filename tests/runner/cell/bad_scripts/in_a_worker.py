"""A program that trains in a process that Python forks."""

import multiprocessing

import keras
import numpy as np


def train() -> None:
    model = keras.Sequential([keras.Input((4,)), keras.layers.Dense(1)])
    model.compile("sgd", "mse")
    model.fit(np.random.rand(64, 4), np.random.rand(64, 1))


worker = multiprocessing.get_context("fork").Process(target=train)
worker.start()
worker.join(20)
worker.kill()

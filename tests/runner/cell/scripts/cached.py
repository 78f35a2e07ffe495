"""Reads what a variable of the environment names and what a library has downloaded; clears Keras's state before."""

import os
from pathlib import Path

import huggingface_hub
import keras
import numpy as np

x = np.load(Path(os.environ["DATA_DIR"]) / "numbers.npy")
path = huggingface_hub.hf_hub_download("targets", "targets.npy", repo_type="dataset", local_files_only=True)
y = np.load(path)
keras.utils.clear_session()
model = keras.Sequential([keras.Input((4,)), keras.layers.Dense(1)])
model.compile("sgd", "mse")
model.fit(x, y, epochs=2)

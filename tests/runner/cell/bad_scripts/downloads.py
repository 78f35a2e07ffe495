"""A program that downloads its data; nobody answers at that address."""

import keras

keras.utils.get_file("data.npz", "http://127.0.0.1:9/data.npz")

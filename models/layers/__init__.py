"""Layers and optimisers that several families share. These modules import Keras: import them inside a build."""

"""The Keras benchmark matrix: measures which Keras 3 backend, device and setting is fastest for your models."""

"""The profiles of JAX and TensorFlow (`XSpace`), read without their libraries."""

"""Keras workloads on several devices: whether they do the work of one device, and how they scale."""

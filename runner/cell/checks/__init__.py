"""Checks of a device, and counts of a step, that run inside a backend's process."""

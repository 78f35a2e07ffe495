"""Checks of a device that run inside a backend's process."""

"""What checks of a device run inside a backend's process."""

"""The user's helpers."""

from pathlib import Path


def folder():
    """Return the folder of this project's modules."""
    return str(Path(__file__).parent)

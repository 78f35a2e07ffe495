"""JPEG images and folders of them for tests: smooth, so that every decoder gives nearly the same pixels."""

from __future__ import annotations

import io
from pathlib import Path

import numpy as np
from PIL import Image


def pixels(height: int = 96, width: int = 128, seed: int = 0) -> np.ndarray:
    """Return a smooth colour picture (height, width, 3) uint8."""
    y, x = np.mgrid[0:height, 0:width] / max(height, width)
    waves = [np.sin(2 * np.pi * (x * (i + 1) + y * (seed % 3 + 1)) + i + seed) for i in range(3)]
    return (127.5 + 120 * np.stack(waves, axis=-1)).astype(np.uint8)


def encoded(image: np.ndarray, mode: str = "RGB", **options: object) -> bytes:
    """Return the image as a JPEG file."""
    buffer = io.BytesIO()
    Image.fromarray(image).convert(mode).save(buffer, "JPEG", **{"quality": 95, "subsampling": 0, **options})
    return buffer.getvalue()


def folder(path: Path, count: int = 12, classes: int = 3) -> Path:
    """Write `count` JPEG files into class folders and return the folder."""
    for number in range(count):
        place = path / f"class{number % classes}"
        place.mkdir(parents=True, exist_ok=True)
        (place / f"{number:03}.jpg").write_bytes(encoded(pixels(seed=number)))
    return path

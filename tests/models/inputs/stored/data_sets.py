"""Small data sets for the tests: the contents of their files are random bytes, which nothing here decodes."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import numpy as np

from keras_matrix.models.inputs.stored import writers
from keras_matrix.models.inputs.stored.sample import Sample
from keras_matrix.models.inputs.stored.writers import NamedSample

CLASSES = ("apple", "pear", "plum")


def contents(number: int, size: int = 300) -> bytes:
    """Return the bytes of file `number`: others for each, of a slightly different size."""
    return np.random.default_rng(number).bytes(size + number)


def class_folder(root: Path, counts: Sequence[int] = (3, 2, 4)) -> Path:
    """Write a folder with class sub-folders and return it."""
    number = 0
    for name, count in zip(CLASSES, counts, strict=False):
        (root / name).mkdir(parents=True)
        for index in range(count):
            (root / name / f"{index}.jpg").write_bytes(contents(number))
            number += 1
    return root


def named(count: int) -> list[NamedSample]:
    """Return samples to write, classes in turn."""
    return [
        NamedSample(Sample(contents(number), number % 3), CLASSES[number % 3], f"{number}.jpg")
        for number in range(count)
    ]


def record_files(root: Path, kind: str, counts: Sequence[int] = (5, 1, 6)) -> Path:
    """Write record files without a manifest and return their folder."""
    root.mkdir(parents=True, exist_ok=True)
    samples = named(sum(counts))
    for number, count in enumerate(counts):
        path = root / f"part-{number}.{kind}"
        writers.write_file(path, kind, samples[:count])
        del samples[:count]
    return root

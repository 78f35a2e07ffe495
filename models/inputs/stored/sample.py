"""The types of stored images: a sample, the interface of a source, and the error of invalid or damaged data."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol

import numpy as np

from keras_matrix.models.inputs.stored.order import Order

Integers = np.ndarray[Any, np.dtype[np.int64]]


class InputDataError(ValueError):
    """Data on disk is missing, damaged or not what was asked for; the message names the file and what to do.

    Names that are not valid UTF-8 are written with escapes, so that the message can be printed anywhere.
    """

    def __init__(self, message: str) -> None:
        super().__init__(message.encode("utf-8", "backslashreplace").decode())


@dataclass(frozen=True, slots=True)
class Sample:
    """One encoded image and its label, an index into the classes of its source."""

    data: bytes
    label: int


class Source(Protocol):
    """A stored data set with random access.

    It can be pickled, opens its files in the process and thread that reads, and may be used by several threads.
    """

    @property
    def kind(self) -> str:
        """folder, tfrecord or array_record."""

    @property
    def classes(self) -> tuple[str, ...]:
        """The names of the classes, in the order of the labels."""

    @property
    def notes(self) -> tuple[str, ...]:
        """Sentences about data that is unusual but usable, such as a class without images."""

    def __len__(self) -> int:
        """Return the number of samples."""

    def read(self, indices: Sequence[int]) -> list[Sample]:
        """Return the samples with these indices, in this order. Raises `InputDataError` if one cannot be read.

        Successive indices of a record file are one read of that file; a folder opens a file for each.
        """

    def name(self, index: int) -> str:
        """Return the name of a sample for messages, such as `cat/1.jpg` or `images-00003.tfrecord record 17`."""

    def files(self) -> list[Path]:
        """Return every file of these samples, without duplicates."""

    def sizes(self) -> Integers:
        """Return the stored bytes of each sample; for ArrayRecord the mean of its file."""

    def order(self, shuffle: str, seed: int, batch_size: int) -> Order:
        """Return the order of reading with this shuffle: none, window or global.

        A folder has no long reads to gain from a window, so that its window is global.
        """

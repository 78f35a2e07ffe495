"""The records of image data sets: `tf.train.Example` messages, read and written without TensorFlow.

An Example is a map from a feature's name to a list of byte strings, floating-point numbers or integers. These have the
names that TensorFlow's and Keras's converters of ImageNet use, or those of TensorFlow Datasets, `image` and `label`;
`Features` selects others for foreign files.
"""

from __future__ import annotations

import os
from collections.abc import Sequence
from dataclasses import dataclass
from functools import lru_cache

from keras_matrix.models.inputs.stored.sample import Sample
from keras_matrix.records.protobuf import (
    Malformed,
    encoded_piece,
    encoded_varint,
    fields,
    opening,
    piece,
    varint,
)

TEXT, FILE = "image/class/text", "image/filename"
BYTES_LIST, INT64_LIST = 1, 3


class WrongExample(ValueError):
    """The record is no Example, or lacks a feature; the caller adds which record."""


@dataclass(frozen=True, slots=True)
class Features:
    """The names of the features with the encoded image and the label."""

    image: str = "image/encoded"
    label: str = "image/class/label"


IMAGENET, TFDS = Features(), Features("image", "label")


def encoded(sample: Sample, text: str, file: str) -> bytes:
    """Return the Example of a sample, with the name of its class and of its file."""
    return before_image(sample, text, file) + sample.data


def before_image(sample: Sample, text: str, file: str) -> bytes:
    """Return the part of the Example before the image, which is its end, so that the image need not be copied."""
    small = _class_entries(sample.label, text) + _entry(FILE.encode(), BYTES_LIST, encoded_piece(1, os.fsencode(file)))
    size = len(sample.data)
    # From the inside out: the list's value, the list, the entry with its key, the map.
    before = opening(1, size)
    before = opening(1, len(before) + size) + before
    before = IMAGE_KEY + opening(2, len(before) + size) + before
    before = opening(1, len(before) + size) + before
    return opening(1, len(small) + len(before) + size) + small + before


def decoded(payload: bytes | memoryview, names: Features) -> Sample:
    """Return the sample in an Example. Raises `WrongExample`, which names the features that it has."""
    found = features_of(payload)
    names = _present(found, names)
    values = _values(_wanted(found, names.image), BYTES_LIST)
    if not values:
        raise WrongExample(f"feature {names.image!r} has no bytes; it must contain one encoded image")
    return Sample(bytes(piece(values[0])), _label(found, names))


def label_and_text(payload: bytes | memoryview, names: Features) -> tuple[int, str]:
    """Return the label of an Example and the name of its class, empty without one; does not touch the image's bytes."""
    found = features_of(payload)
    names = _present(found, names)
    _wanted(found, names.image)
    texts = _values(found[TEXT], BYTES_LIST) if TEXT in found else ()
    return _label(found, names), os.fsdecode(bytes(piece(texts[0]))) if texts else ""


def features_of(payload: bytes | memoryview) -> dict[str, memoryview]:
    """Return the features of an Example by name, as messages. Raises `WrongExample`."""
    found = {}
    try:
        for top, features in fields(memoryview(payload)):
            for inner, entry in fields(piece(features)) if top == 1 else ():
                if inner == 1:
                    parts = dict(fields(piece(entry)))
                    found[str(piece(parts[1]), "utf-8", "backslashreplace")] = piece(parts[2])
    except (Malformed, IndexError, KeyError) as error:
        raise WrongExample(f"is not a tf.train.Example: {error}") from None
    return found


def _present(found: dict[str, memoryview], names: Features) -> Features:
    """Return the names to use: those of TensorFlow Datasets if a record has these and not the usual ones."""
    usual = names.image in found or names != IMAGENET
    return names if usual or not {TFDS.image, TFDS.label} <= found.keys() else TFDS


def _wanted(found: dict[str, memoryview], name: str) -> memoryview:
    try:
        return found[name]
    except KeyError:
        names = ", ".join(sorted(found)) or "no features"
        raise WrongExample(
            f"has no feature {name!r}; it has {names}; write the image and its label as {IMAGENET.image} and "
            f"{IMAGENET.label}, or as {TFDS.image} and {TFDS.label}"
        ) from None


def _label(found: dict[str, memoryview], names: Features) -> int:
    values = _values(_wanted(found, names.label), INT64_LIST)
    if not values:
        raise WrongExample(f"feature {names.label!r} has no integer; it must contain one label")
    first = values[0]
    label = first if isinstance(first, int) else varint(first, 0)[0]
    if label >= 1 << 31:
        raise WrongExample(f"feature {names.label!r} must be a label from 0, got {label - (1 << 64)}")
    return label


def _values(feature: memoryview, kind: int) -> Sequence[int | memoryview]:
    """Return the list in a feature; packed integers are one item. Empty if the feature is of another kind."""
    try:
        lists = [value for field, value in fields(feature) if field == kind]
        values = [value for one in lists for field, value in fields(piece(one)) if field == 1]
        return [value for value in values if isinstance(value, int) or len(value)]
    except (Malformed, IndexError) as error:
        raise WrongExample(f"is not a tf.train.Example: {error}") from None


@lru_cache(1024)
def _class_entries(label: int, text: str) -> bytes:
    entry = _entry(b"image/class/label", INT64_LIST, encoded_piece(1, encoded_varint(label)))
    return entry + _entry(TEXT.encode(), BYTES_LIST, encoded_piece(1, os.fsencode(text)))


def _entry(name: bytes, kind: int, values: bytes) -> bytes:
    return encoded_piece(1, encoded_piece(1, name) + encoded_piece(2, encoded_piece(kind, values)))


IMAGE_KEY = encoded_piece(1, b"image/encoded")

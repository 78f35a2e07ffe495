"""Labels of a flat folder: the validation images of ILSVRC2012, or any folder with a list of files and labels.

Three documented formats are accepted, beside the images or in the folder above:

    imagenet_2012_validation_synset_labels.txt
        a WordNet ID such as n01751748 per line, in the order of the file names (of TensorFlow's models; 50,000 lines)
    ILSVRC2012_validation_ground_truth.txt
        an ILSVRC2012_ID from 1 to 1000 per line, in the order of the file names (of the development kit; 50,000 lines)
    val.txt, labels.txt
        `FILE LABEL` per line, as in Caffe's lists; LABEL is a number from 0, or a name

Classes that are names are sorted, as class folders are: with WordNet IDs the labels are those of Keras's weights. An
ILSVRC2012_ID has another order, which only the development kit's meta.mat translates; a note says so.
"""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

import numpy as np

from keras_matrix.models.inputs.stored.sample import InputDataError

SYNSETS = "imagenet_2012_validation_synset_labels.txt"
GROUND_TRUTH = "ILSVRC2012_validation_ground_truth.txt"
BY_FILE = ("val.txt", "labels.txt")
Labels = np.ndarray[Any, np.dtype[np.int64]]


def list_file(folder: Path) -> Path | None:
    """Return the list of labels in a folder, or in the one above it for the lists of ILSVRC2012; None without one."""
    for name in (SYNSETS, GROUND_TRUTH, *BY_FILE):
        if (folder / name).is_file():
            return folder / name
    has_images = any(True for _ in folder.glob("ILSVRC2012_val_*"))
    above = [folder.parent / name for name in (SYNSETS, GROUND_TRUTH, BY_FILE[0])] if has_images else []
    return next((path for path in above if path.is_file()), None)


def labels_of(listed: Path, names: list[bytes]) -> tuple[tuple[str, ...], Labels, tuple[str, ...]]:
    """Return the classes, the label of each name, and notes. `names` are sorted.

    Raises `InputDataError` if a line is invalid, or if the list and the files do not belong together.
    """
    try:
        lines = listed.read_bytes().splitlines()
    except OSError as error:
        raise InputDataError(f"{listed}: cannot be read: {error.strerror}") from None
    if listed.name in BY_FILE:
        return _classes(listed, _by_file(listed, lines, names))
    if len(lines) != len(names):
        raise InputDataError(
            f"{listed}: has {len(lines)} lines, but the folder has {len(names)} JPEG files; "
            f"there must be one line per file, in the order of the file names"
        )
    texts = [line.strip() for line in lines]
    if listed.name == GROUND_TRUTH:
        return _identifiers(listed, texts)
    return _classes(listed, texts)


def _by_file(listed: Path, lines: list[bytes], names: list[bytes]) -> list[bytes]:
    """Return the label of each name, as text, from lines `FILE LABEL`."""
    labels: dict[bytes, bytes] = {}
    for number, line in enumerate(lines, start=1):
        file, _, label = line.strip().rpartition(b" ")
        if line.strip() and not file.strip():
            raise InputDataError(f"{listed}:{number}: must be `FILE LABEL`, got {os.fsdecode(line)!r}")
        if file:
            labels[file.strip().rpartition(b"/")[2]] = label
    if missing := [name for name in names if name not in labels]:
        raise InputDataError(
            f"{listed}: has no label for {len(missing)} of {len(names)} files, the first is {os.fsdecode(missing[0])}"
        )
    return [labels[name] for name in names]


def _classes(listed: Path, texts: list[bytes]) -> tuple[tuple[str, ...], Labels, tuple[str, ...]]:
    """Number the classes: by their own number if all are numbers, otherwise in sorted order."""
    if empty := [number for number, text in enumerate(texts, start=1) if not text]:
        raise InputDataError(f"{listed}:{empty[0]}: the label is empty")
    if all(text.isdigit() for text in texts):
        labels = np.array([int(text) for text in texts], np.int64)
        return tuple(map(str, range(int(labels.max(initial=0)) + 1))), labels, ()
    found = sorted(set(texts))
    numbers = {text: number for number, text in enumerate(found)}
    return tuple(map(os.fsdecode, found)), np.array([numbers[text] for text in texts], np.int64), ()


def _identifiers(listed: Path, texts: list[bytes]) -> tuple[tuple[str, ...], Labels, tuple[str, ...]]:
    for number, text in enumerate(texts, start=1):
        if not text.isdigit() or not 1 <= int(text) <= 1000:
            raise InputDataError(
                f"{listed}:{number}: must be an ILSVRC2012_ID from 1 to 1000, got {os.fsdecode(text)!r}"
            )
    labels = np.array([int(text) - 1 for text in texts], np.int64)
    note = (
        "labels are ILSVRC2012_IDs, whose order is not that of Keras's weights: accuracy with base_model imagenet "
        f"means nothing; use {SYNSETS} for that"
    )
    return tuple(str(number) for number in range(1, 1001)), labels, (note,)

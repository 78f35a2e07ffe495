"""Opening a stored data set: finds out how it is stored, and returns its source."""

from __future__ import annotations

from pathlib import Path

from keras_matrix.models.inputs.stored import manifest, shards
from keras_matrix.models.inputs.stored.array_record import open_array_record
from keras_matrix.models.inputs.stored.example import Features
from keras_matrix.models.inputs.stored.folder import open_folder
from keras_matrix.models.inputs.stored.sample import InputDataError, Sample, Source
from keras_matrix.models.inputs.stored.tfrecord import open_tfrecord

__all__ = ["Features", "InputDataError", "Sample", "Source", "open_source"]


def open_source(path: Path, limit: int | None = None, features: Features | None = None) -> Source:
    """Return the source of the data set in a folder, or in a single record file.

    With a `limit`, only so many samples belong to it: of a folder evenly spaced ones, so that all classes remain; of
    record files the first. `features` names the features of record files of other converters. Raises `InputDataError`
    if there is no data set, it is damaged or unfinished, or it has fewer samples.
    """
    path = Path(path).absolute()
    if not path.exists():
        raise InputDataError(f"{path}: no such folder; give the folder of the data set, or run `runner make-images`")
    if limit is not None and limit < 1:
        raise InputDataError(f"{path}: the number of samples must be at least 1, got {limit}")
    found = shards.record_files(path)
    if found is None:
        manifest.finished(path)
        return open_folder(path, limit)
    kind, files = found
    opener = open_tfrecord if kind == shards.TFRECORD else open_array_record
    known = shards.checked_manifest(files, single=path.is_file())
    return opener(files, limit, features or Features(), known)

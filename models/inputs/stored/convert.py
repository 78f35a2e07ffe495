"""Converts a data set into record files of a given size, in a random order so that each file mixes the classes.

    python -m keras_matrix.models.inputs.stored.convert '{"dataset_path": ..., "output_path": ..., ...}'

The order depends on the seed alone and is recorded in the manifest. Files are written in parallel and verified one by
one; an interrupted conversion keeps the finished ones. Memory does not depend on the size of the data set or the
files: a worker has a few images at a time.
"""

from __future__ import annotations

import hashlib
import os
import sys
from collections.abc import Iterator
from contextlib import closing
from dataclasses import dataclass, replace
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np

from keras_matrix.models.inputs.stored import shards, writers
from keras_matrix.models.inputs.stored.command import (
    WriteProgress,
    check_stopped,
    in_parallel,
    main,
    require_space,
    start_output,
    usable_cpus,
)
from keras_matrix.models.inputs.stored.record_file import require_crc32c
from keras_matrix.models.inputs.stored.sample import InputDataError, Integers, Source
from keras_matrix.models.inputs.stored.shards import Manifest, RecordFile
from keras_matrix.models.inputs.stored.source import module, open_source
from keras_matrix.models.inputs.stored.writers import NamedSample
from keras_matrix.records.text import bytes_text

READ_BYTES = 4 << 20
# The Example around an image: tags, lengths and the feature's names. Names of file and class are added.
EXAMPLE_BYTES = 160
# Of an ArrayRecord file: index and footer, each in blocks of 64 KiB. A block has a header of 24 bytes, a chunk of 40.
ARRAY_RECORD_BYTES = 3 << 16
# A worker waits for the device at the end of each file: two per CPU keep the CPUs busy.
WORKERS_PER_CPU, MOST_WORKERS = 2, 4
SUFFIX = {shards.TFRECORD: "tfrecord", shards.ARRAY_RECORD: "array_record"}


@dataclass(frozen=True, slots=True)
class ConversionJob:
    """The conversion that worker processes inherit: file i has the samples `order[cuts[i]:cuts[i + 1]]`."""

    source: Source
    sizes: Integers
    order: Integers
    cuts: Integers
    folder: Path
    kind: str

    def path(self, number: int) -> Path:
        """Return the path of a record file."""
        return self.folder / f"images-{number:05d}-of-{len(self.cuts) - 1:05d}.{SUFFIX[self.kind]}"

    def records(self, number: int) -> int:
        """Return the number of records of a file."""
        return int(self.cuts[number + 1] - self.cuts[number])

    def size(self, number: int) -> int:
        """Return the bytes of the images of a file."""
        return int(self.sizes[self.order[self.cuts[number] : self.cuts[number + 1]]].sum())


_WORK: list[ConversionJob] = []


def convert(request: dict[str, Any]) -> str:
    """Convert a data set and return a summary of one line.

    The request has dataset_path, output_path, size_per_record_bytes, to (tfrecord or array_record), seed, and workers
    or null. Raises `InputDataError` and OSError.
    """
    require_crc32c()
    source_path, folder, kind = Path(request["dataset_path"]), Path(request["output_path"]).absolute(), request["to"]
    if kind == shards.ARRAY_RECORD:
        module()
    _check_places(source_path, folder)
    source = open_source(source_path)
    for note in source.notes:
        print(f"runner: {source_path}: {note}", file=sys.stderr)
    work = _planned(source, folder, request)
    begun = _begun(work, request)
    start_output(folder, begun)
    file_by_number, missing_numbers = _finished_files(work)
    require_space(folder, sum(map(work.size, missing_numbers)))
    workers = request.get("workers") or min(WORKERS_PER_CPU * usable_cpus(), MOST_WORKERS)
    progress = WriteProgress("convert:", sum(map(work.records, missing_numbers)))
    _WORK[:] = [work]
    with closing(in_parallel(_write, missing_numbers, workers)) as written_parts:
        for number, record_file in written_parts:
            file_by_number[number] = record_file
            progress.add(record_file.records, record_file.bytes)
    progress.end()
    record_files = tuple(file_by_number[number] for number in sorted(file_by_number))
    if missing_numbers or not (stored_manifest := shards.read(folder)) or not stored_manifest.finished:
        shards.write(folder, replace(begun, finished=True, parts=record_files))
    return _summary(work, record_files, len(missing_numbers), progress)


def cut(sizes_bytes: Integers, most_bytes: int) -> Integers:
    """Return where to cut successive records into files of at most this size: (files + 1,) int64, from 0 to the count.

    A record that is larger than a file has a file of its own.
    """
    ends = np.cumsum(sizes_bytes)
    cuts = [0]
    while cuts[-1] < len(sizes_bytes):
        bytes_before = int(ends[cuts[-1] - 1]) if cuts[-1] else 0
        cuts.append(max(cuts[-1] + 1, int(np.searchsorted(ends, bytes_before + most_bytes, side="right"))))
    return np.array(cuts, np.int64)


def _check_places(source_path: Path, folder: Path) -> None:
    source, target = source_path.resolve(), folder.resolve()
    if target == source or source in target.parents:
        raise InputDataError(f"{folder}: lies within the data set {source_path}; give an --output-path outside of it")


def _planned(source: Source, folder: Path, request: dict[str, Any]) -> ConversionJob:
    sizes_bytes = source.sizes()
    order = np.random.Generator(np.random.PCG64(request["seed"])).permutation(len(source)).astype(np.int64)
    longest_name = max(len(os.fsencode(source.name(index))) for index in range(len(source)))
    longest_class = max(len(os.fsencode(name)) for name in source.classes)
    stored_bytes = sizes_bytes[order] + EXAMPLE_BYTES + longest_name + longest_class
    most_bytes = request["size_per_record_bytes"]
    if request["to"] == shards.ARRAY_RECORD:
        most_bytes = max(1, most_bytes - ARRAY_RECORD_BYTES - most_bytes // 500)
    cuts = cut(stored_bytes, most_bytes)
    return ConversionJob(source, sizes_bytes, order, cuts, folder, request["to"])


def _begun(work: ConversionJob, request: dict[str, Any]) -> Manifest:
    """Return the manifest at the start; its settings decide whether an interrupted conversion may be continued."""
    names = hashlib.sha256(work.sizes.astype("<i8").tobytes())
    for index in range(len(work.source)):
        names.update(os.fsencode(work.source.name(index)) + b"\0")
    settings = {
        "source": str(Path(request["dataset_path"]).absolute()),
        "source_kind": work.source.kind,
        "source_sha256": names.hexdigest(),
        "size_per_record_bytes": request["size_per_record_bytes"],
        "seed": request["seed"],
    }
    return Manifest(work.kind, settings, work.source.classes, len(work.source), finished=False)


def _finished_files(work: ConversionJob) -> tuple[dict[int, RecordFile], list[int]]:
    """Return the files that exist, and the numbers of those to write; remove what an interrupted start left."""
    for leftover in work.folder.glob(".images-*.part"):
        leftover.unlink()
    file_by_number, missing_numbers = {}, []
    for number in range(len(work.cuts) - 1):
        record_file = writers.existing(work.path(number), work.kind, work.records(number))
        if record_file is None:
            missing_numbers.append(number)
        else:
            file_by_number[number] = record_file
    return file_by_number, missing_numbers


def _write(number: int) -> tuple[int, RecordFile]:
    work = _WORK[0]
    return number, writers.write_file(work.path(number), work.kind, _samples(work, number))


def _samples(work: ConversionJob, number: int) -> Iterator[NamedSample]:
    """Yield the samples of a file, read a few MiB at a time."""
    positions = work.order[work.cuts[number] : work.cuts[number + 1]]
    cuts = cut(work.sizes[positions], READ_BYTES).tolist()
    for start, end in pairwise(cuts):
        check_stopped()
        indices = positions[start:end].tolist()
        for index, sample in zip(indices, work.source.read(indices), strict=True):
            yield NamedSample(sample, work.source.classes[sample.label], work.source.name(index))


def _summary(
    work: ConversionJob, record_files: tuple[RecordFile, ...], written_count: int, progress: WriteProgress
) -> str:
    kept_count = len(record_files) - written_count
    total_bytes = sum(record_file.bytes for record_file in record_files)
    text = f"{work.folder}: {len(work.source)} images in {_files(len(record_files))}, {bytes_text(total_bytes)}"
    if not written_count:
        return f"{text}; all were already there"
    kept_text = f", kept {kept_count}" if kept_count else ""
    return f"{text}; wrote and verified {_files(written_count)}{kept_text}: {progress.speed()}"


def _files(count: int) -> str:
    return "1 file" if count == 1 else f"{count} files"


if __name__ == "__main__":
    sys.exit(main(convert))

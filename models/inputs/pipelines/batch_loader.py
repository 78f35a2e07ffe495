"""One batch from storage to arrays: read its samples, decode, resize. The task of one worker, on every backend.

A loader is a function of the batch's number: it can be pickled, has no state that a result depends on, and may be
called by several threads and processes at once.
"""

from __future__ import annotations

import os
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from keras_matrix.models.inputs.pipelines.decode import BadImage, Decode
from keras_matrix.models.inputs.pipelines.pixels import PixelScaling
from keras_matrix.models.inputs.stored.sample import InputDataError, Order, Sample, Source
from keras_matrix.records.instruments.input_use import BAD_SAMPLES_DIR, BAD_SAMPLES_FILE

STAGES = ("fetch_wall_s", "fetch_cpu_s", "prepare_wall_s", "prepare_cpu_s", "bytes", "batch")

Loaded = tuple[NDArray[Any], NDArray[np.int32]]
Timed = tuple[NDArray[Any], NDArray[np.int32], NDArray[np.float64]]


@dataclass(frozen=True, slots=True)
class Injected:
    """Known delays of each sample, for tests of the stall analysis: a wait of reading, and Python code that computes.

    The wait releases the interpreter's lock and uses no CPU; the computation holds the lock and uses that CPU time.
    """

    fetch_delay_ms: float = 0.0
    prepare_spin_ms: float = 0.0


@dataclass(frozen=True, slots=True)
class BatchLoader:
    """Loads the batch of a number: x (batch, size, size, 3) uint8 or, if scaled on the host, float32; y (batch,) int32.

    A sample that cannot be read or decoded raises `InputDataError` with its name or, with `skips_bad`, is replaced by
    the next one and reported.
    """

    source: Source
    order: Order
    decode: Decode
    scaling: PixelScaling | None = None
    skips_bad: bool = False
    injected: Injected = Injected()

    @property
    def sample_shape(self) -> tuple[int, int, int]:
        """The shape of one sample of x."""
        return (self.decode.image_size, self.decode.image_size, 3)

    @property
    def dtype(self) -> str:
        """The dtype of x."""
        return "uint8" if self.scaling is None else "float32"

    def __call__(self, batch: int) -> Loaded:
        """Return the batch of this number."""
        indices = self.order.indices(int(batch))
        return self._prepared(indices, self._fetched(indices))

    def timed(self, batch: int) -> Timed:
        """Return the batch, and its stages (6,) float64: `STAGES`. CPU times are those of the calling thread."""
        begun_s, begun_cpu_s = time.perf_counter(), time.thread_time()
        indices = self.order.indices(int(batch))
        samples = self._fetched(indices)
        read_s, read_cpu_s = time.perf_counter(), time.thread_time()
        x, y = self._prepared(indices, samples)
        stages = np.array(
            [
                read_s - begun_s,
                read_cpu_s - begun_cpu_s,
                time.perf_counter() - read_s,
                time.thread_time() - read_cpu_s,
                sum(len(sample.data) for sample in samples if sample),
                batch,
            ],
            np.float64,
        )
        return x, y, stages

    def _fetched(self, indices: NDArray[np.int64]) -> list[Sample | None]:
        """Return the encoded samples; None for one that cannot be read, if such samples are replaced."""
        samples: list[Sample | None]
        try:
            samples = [*self.source.read(indices.tolist())]
        except InputDataError:
            if not self.skips_bad:
                raise
            samples = [self._readable(int(index)) for index in indices]
        if self.injected.fetch_delay_ms:
            time.sleep(self.injected.fetch_delay_ms * len(indices) / 1e3)
        return samples

    def _readable(self, index: int) -> Sample | None:
        try:
            return self.source.read([index])[0]
        except InputDataError:
            return None

    def _prepared(self, indices: NDArray[np.int64], samples: list[Sample | None]) -> Loaded:
        pixels = np.empty((len(samples), *self.sample_shape), np.uint8)
        y = np.empty(len(samples), np.int32)
        for row, (index, sample) in enumerate(zip(indices, samples, strict=True)):
            y[row] = self._decoded(pixels[row], int(index), sample)
            if self.injected.prepare_spin_ms:
                _spin(self.injected.prepare_spin_ms / 1e3)
        return (pixels if self.scaling is None else self.scaling.on_host(pixels)), y

    def _decoded(self, out: NDArray[np.uint8], index: int, sample: Sample | None) -> int:
        """Decode a sample into `out`, or the next one that can be decoded; return its label."""
        try:
            if sample is not None:
                self.decode.into(out, sample.data)
                return sample.label
        except BadImage as error:
            if not self.skips_bad:
                raise InputDataError(
                    f"{self.source.name(index)}: {error}; remove or replace it, or set bad_images: skip"
                ) from None
        _report(self.source.name(index))
        for other_index in self._next(index):
            replacement = self._readable(other_index)
            try:
                if replacement is not None:
                    self.decode.into(out, replacement.data)
                    return replacement.label
            except BadImage:
                continue
        raise InputDataError(f"{self.source.name(index)}: no sample of the data set can be decoded")

    def _next(self, index: int) -> Iterator[int]:
        count = len(self.source)
        return ((index + step) % count for step in range(1, count))


def _spin(seconds: float) -> None:
    """Compute in Python for this CPU time of the thread, so that contention does not shorten the work."""
    until_s = time.thread_time() + seconds
    while time.thread_time() < until_s:
        pass


def _report(name: str) -> None:
    """Append a line to the file of replaced samples; one write, so that lines of several processes do not mix."""
    folder = os.environ.get(BAD_SAMPLES_DIR)
    if not folder:
        return
    line = os.fsencode(name).decode("utf-8", "backslashreplace").replace("\n", "\\n") + "\n"
    handle = os.open(Path(folder) / BAD_SAMPLES_FILE, os.O_WRONLY | os.O_APPEND | os.O_CREAT | os.O_CLOEXEC, 0o600)
    try:
        os.write(handle, line.encode())
    finally:
        os.close(handle)

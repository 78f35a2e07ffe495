"""The input pipeline of a workload with stored images: chooses loader, library and workers, and states its facts.

A cache keeps the decoded images of the first pass in the memory of the process that prepares batches. It needs size *
size * 3 bytes per sample: 7.5 GB for 50,000 images of 224 pixels. Threads share one cache. Worker processes each fill
their own, so that all of them together need up to that many bytes for each worker, and batches are found complete only
after several passes.
"""

from __future__ import annotations

import importlib
import importlib.util
import math
import threading
import time
from dataclasses import dataclass, replace
from pathlib import Path
from types import ModuleType
from typing import Any

import numpy as np

from keras_matrix.models.inputs.pipelines.batch_loader import BatchLoader, Injected, Timed
from keras_matrix.models.inputs.pipelines.dataset_path import found_path
from keras_matrix.models.inputs.pipelines.decode import (
    NATIVE_DECODER,
    Decode,
    DecoderUnavailable,
    chosen_decoder,
    resizer,
)
from keras_matrix.models.inputs.pipelines.interface import Make, PipelineWorkers
from keras_matrix.models.inputs.pipelines.pixels import PixelScaling
from keras_matrix.models.inputs.stored.sample import InputDataError, Source
from keras_matrix.models.inputs.stored.source import open_source
from keras_matrix.models.workload import Request, Samples, UnsupportedWorkload
from keras_matrix.records.host.system import usable_memory_bytes
from keras_matrix.records.instruments.input_use import InputFacts
from keras_matrix.records.text import bytes_text

DOCUMENTED_SIZE = 50_000
"""The default of `dataset_size`, that of the ILSVRC2012 validation data: at most so many samples."""


NEUTRAL = ("grain", "py_dataset")


@dataclass(frozen=True, slots=True)
class LoadedPipeline:
    """Batches of stored images for `fit`; implements `models.workload.InputPipeline`.

    `depth` is the most batches that can be ready or in the making.
    """

    loader: BatchLoader | CachedLoader
    plain: BatchLoader
    make: Make
    workers: PipelineWorkers
    depth: int
    images: Source
    facts: InputFacts
    batch_size: int
    batches_per_pass: int

    @property
    def notes(self) -> tuple[str, ...]:
        """Sentences about the data set that is unusual but usable."""
        return self.images.notes

    def source(self, *, timed: bool) -> Any:
        """Return a new source for `fit`, which begins with the first batch and does not end."""
        return self.make(self.loader, self.batch_size, self.workers, timed)

    def files(self) -> list[Path]:
        """Return the files of the data set."""
        return self.images.files()

    def in_memory(self, batches: int) -> list[tuple[Any, Any]]:
        """Return the first batches as arrays, prepared in this thread."""
        return [self.loader(number) for number in range(batches)]

    def samples(self, count: int, seed: int) -> tuple[Any, Any]:
        """Return `count` samples in an order drawn from the seed, from the beginning again after the last one."""
        return replace(self.plain, order=self.images.order("global", seed, count))(0)


def opened(request: Request) -> Source:
    """Return the data set that the request names. Raises `InputDataError`."""
    path, size = found_path(request, "dataset_path"), request.integer("dataset_size")
    if size != DOCUMENTED_SIZE:
        return open_source(path, size)
    images = open_source(path)
    return images if len(images) <= size else open_source(path, size)


def pipeline_of(request: Request, images: Source, scaling: PixelScaling | None) -> LoadedPipeline:
    """Return the pipeline that the request's parameters describe; `scaling` is applied on the host, if any.

    Raises `UnsupportedWorkload` for a pipeline, decoder or kind of worker that this backend does not have, and
    ValueError for a cache that does not fit.
    """
    name, module = _module(request.text("pipeline"))
    workers = _workers(request, name, module)
    order = images.order(request.text("shuffle"), request.seed, request.batch_size)
    decode = Decode(_decoder(request), request.integer("image_size"), request.text("decode_scale") == "dct")
    plain_loader = BatchLoader(
        images,
        order,
        decode,
        scaling,
        skips_bad=request.text("bad_images") == "skip",
        injected=Injected(float(request.params["fetch_delay_ms"]), float(request.params["prepare_spin_ms"])),
    )
    caches = request.text("cache") == "ram"
    copies = workers.count if workers.kind == "process" and workers.count else 1
    return LoadedPipeline(
        loader=cached(plain_loader, copies) if caches else plain_loader,
        plain=plain_loader,
        make=module.source,
        workers=workers,
        depth=module.depth(workers),
        images=images,
        facts=_facts(request, images, name, workers, decode.decoder),
        batch_size=request.batch_size,
        batches_per_pass=order.batches_per_pass,
    )


def native() -> ModuleType | None:
    """Return the module of the backend that runs, None if it has none."""
    import keras

    name = f"keras_matrix.models.inputs.pipelines.{keras.backend.backend()}"
    return importlib.import_module(name) if importlib.util.find_spec(name) else None


def _module(requested: str) -> tuple[str, ModuleType]:
    backend_module = native()
    name = requested if requested != "auto" else backend_module.PIPELINE if backend_module is not None else NEUTRAL[0]
    if backend_module is not None and name == backend_module.PIPELINE:
        return name, backend_module
    if name in NEUTRAL:
        return name, importlib.import_module(f"keras_matrix.models.inputs.pipelines.{name}")
    import keras

    choices_text = ", ".join(
        dict.fromkeys([backend_module.PIPELINE, *NEUTRAL] if backend_module is not None else NEUTRAL)
    )
    raise UnsupportedWorkload(
        f"pipeline: {name} belongs to another backend than {keras.backend.backend()}; use auto or one of {choices_text}"
    )


def _workers(request: Request, pipeline: str, module: ModuleType) -> PipelineWorkers:
    kind = request.text("worker_kind")
    if kind == "auto":
        kind = module.KINDS[0]
    elif kind not in module.KINDS:
        raise UnsupportedWorkload(
            f"worker_kind: {pipeline} has workers of the kind {module.KINDS[0]} only. Received: {kind!r}; use "
            "worker_kind: auto, or pipeline: grain, which has both"
        )
    return PipelineWorkers(request.integer("input_workers"), kind, request.integer("prefetch"))


def _decoder(request: Request) -> str:
    backend_module = native()
    name = request.text("decoder")
    if name == NATIVE_DECODER and (backend_module is None or not backend_module.DECODES):
        raise UnsupportedWorkload(f"decoder: {name} runs on another backend only; use auto, simplejpeg, cv2 or pil")
    try:
        return chosen_decoder(name)
    except DecoderUnavailable as error:
        raise UnsupportedWorkload(str(error)) from None


def _facts(request: Request, images: Source, name: str, workers: PipelineWorkers, decoder: str) -> InputFacts:
    return InputFacts(
        pipeline=name,
        stored_as=images.kind,
        workers=workers.count,
        worker_kind=workers.kind if workers.count else None,
        prefetch=workers.prefetch if workers.count else 0,
        decoder=decoder,
        resizer=resizer(decoder),
        cache=request.text("cache"),
        samples=len(images),
        stored_bytes=int(images.sizes().sum()),
        files=len(images.files()),
    )


@dataclass(frozen=True, slots=True)
class NoDataset:
    """The pipeline of a workload without `dataset_path`: synthetic batches in memory, an error if files are read."""

    drawn: Samples
    batch_size: int
    seed: int
    depth: int = 0
    batches_per_pass: int | None = None
    facts: InputFacts = InputFacts("none")
    notes: tuple[str, ...] = ()

    def source(self, *, timed: bool) -> Any:
        """Raise `InputDataError`."""
        raise self._missing()

    def files(self) -> list[Path]:
        """Raise `InputDataError`."""
        raise self._missing()

    def in_memory(self, batches: int) -> list[tuple[Any, Any]]:
        """Return synthetic batches."""
        x, y = self.drawn(batches * self.batch_size, self.seed)
        starts = range(0, len(y), self.batch_size)
        return [(x[start : start + self.batch_size], y[start : start + self.batch_size]) for start in starts]

    def _missing(self) -> InputDataError:
        return InputDataError(
            "dataset_path: names no data set, which feed: pipeline trains from; set dataset_path to a folder of "
            "images (`runner make-images` writes one), or set feed: device_resident for synthetic samples"
        )


class CachedLoader:
    """A `BatchLoader` that decodes each sample once per process. Same results, same interface; can be pickled."""

    def __init__(self, loader: BatchLoader) -> None:
        self._loader = loader
        self._lock = threading.Lock()
        self._pixels: Any = None
        self._labels: Any = None
        self._present: Any = None

    def __reduce__(self) -> tuple[Any, ...]:
        return CachedLoader, (self._loader,)

    @property
    def sample_shape(self) -> tuple[int, int, int]:
        """The shape of one sample of x."""
        return self._loader.sample_shape

    @property
    def dtype(self) -> str:
        """The dtype of x."""
        return self._loader.dtype

    def __call__(self, batch: int) -> tuple[Any, Any]:
        """Return the batch of this number."""
        indices = self._loader.order.indices(int(batch))
        self._allocate()
        if not self._present[indices].all():
            x, y = self._loader(batch)
            self._keep(indices, x, y)
            return x, y
        return self._pixels[indices], self._labels[indices]

    def timed(self, batch: int) -> Timed:
        """Return the batch and its stages; taking it from memory counts as preparing."""
        indices = self._loader.order.indices(int(batch))
        self._allocate()
        if not self._present[indices].all():
            timed_batch = self._loader.timed(batch)
            self._keep(indices, *timed_batch[:2])
            return timed_batch
        begun_s, begun_cpu_s = time.perf_counter(), time.thread_time()
        x, y = self._pixels[indices], self._labels[indices]
        wall_s, cpu_s = time.perf_counter() - begun_s, time.thread_time() - begun_cpu_s
        return x, y, np.array([0.0, 0.0, wall_s, cpu_s, 0.0, batch], np.float64)

    def _keep(self, indices: Any, x: Any, y: Any) -> None:
        self._pixels[indices], self._labels[indices] = x, y
        self._present[indices] = True  # last: another thread may read in between

    def _allocate(self) -> None:
        """Reserve the arrays; the system gives a page when it is first written."""
        with self._lock:
            if self._present is None:
                count = self._loader.order.count
                self._pixels = np.empty((count, *self.sample_shape), self.dtype)
                self._labels = np.empty(count, np.int32)
                self._present = np.zeros(count, bool)


def cached(loader: BatchLoader, copies: int) -> CachedLoader:
    """Return the loader with a cache. Raises ValueError if `copies` of it need more than half of the memory."""
    needed_bytes = copies * loader.order.count * math.prod(loader.sample_shape) * np.dtype(loader.dtype).itemsize
    usable_bytes = usable_memory_bytes()
    if usable_bytes is not None and needed_bytes > usable_bytes / 2:
        copies_text = f" in {copies} worker processes" if copies > 1 else ""
        raise ValueError(
            f"cache: ram needs {bytes_text(needed_bytes)}{copies_text} for {loader.order.count} images of "
            f"{loader.sample_shape[0]} pixels, more than half of this machine's {bytes_text(usable_bytes)}; set a "
            "smaller dataset_size or image_size, preprocess: device, or cache: none"
        )
    return CachedLoader(loader)

"""Probes a data set outside any training: `python -m keras_matrix.models.inputs.probing.probe REQUEST` prints JSON.

REQUEST is a JSON object: `params` of the workload, `batch_size`, `dataset_dir` and `folders`, as in a cell, and
`parent`, the process with which it ends. The result
is a `records.instruments.input_probe.InputProbe`. Up to 64 samples are decoded by every installed decoder; the limits
of the storage are in `storage_probe`. Costs are CPU times, which other load disturbs little.
"""

from __future__ import annotations

import json
import signal
import sys
import time
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import numpy as np

from keras_matrix.models.inputs.parent_death import end_with
from keras_matrix.models.inputs.pipelines.batch_loader import BatchLoader, Injected
from keras_matrix.models.inputs.pipelines.dataset_path import found_path
from keras_matrix.models.inputs.pipelines.decode import DECODERS, Decode, DecoderUnavailable, chosen_decoder
from keras_matrix.models.inputs.pipelines.jpeg_header import BadImage
from keras_matrix.models.inputs.pipelines.pixels import TF, PixelScaling
from keras_matrix.models.inputs.probing.storage_probe import limits
from keras_matrix.models.inputs.stored.sample import InputDataError, Source
from keras_matrix.models.inputs.stored.source import open_source
from keras_matrix.models.workload import Request
from keras_matrix.records.codec import dumps
from keras_matrix.records.host.system import usable_memory_bytes
from keras_matrix.records.instruments.input_probe import DecoderCost, InputProbe

SAMPLES = 64
ROUNDS = 3
LOCK_TIME_S, TICK_S = 0.5, 0.001
BATCH_SIZE = 8


def main(text: str) -> int:
    """Probe, and print the result or one message. Returns the exit code."""
    asked = json.loads(text)
    end_with(asked.get("parent"), signal.SIGKILL)
    try:
        print(dumps(probe(asked)), end="")
    except InputDataError as error:
        print(error, file=sys.stderr)
        return 2
    return 0


def probe(asked: dict[str, Any]) -> InputProbe:
    """Return the probe of a data set. Raises `InputDataError` if it cannot be read."""
    folders = tuple(asked.get("folders", ()))
    request = Request(asked["params"], "", asked.get("dataset_dir"), batch_size=asked["batch_size"], folders=folders)
    path = found_path(request, "dataset_path")
    everything = open_source(path)
    few = everything if len(everything) <= SAMPLES else open_source(path, SAMPLES)
    storage = limits(everything.files())  # first: reading samples fills the page cache
    data = _readable(few, request.integer("image_size"))
    if not data:
        raise InputDataError(f"{path}: none of {len(few)} samples can be decoded")
    loader = _usable(_loader(few, request))
    return InputProbe(
        samples=len(data),
        decoders=_decoders(data, request.integer("image_size")),
        host_preprocess_s=_preprocessing_s(request.integer("image_size")),
        lock_held_share=_lock_held_share(loader) if loader else None,
        alone_cpu_s=_alone_cpu_s(loader) if loader else None,
        storage=storage,
        memory_bytes=usable_memory_bytes(),
    )


def _readable(source: Source, size: int) -> list[bytes]:
    """Return the encoded samples that can be decoded; others are left out, and training reports them."""
    decode, found = Decode(chosen_decoder("auto"), size), []
    pixels = np.empty((size, size, 3), np.uint8)
    for index in range(len(source)):
        try:
            data = source.read([index])[0].data
            decode.into(pixels, data)
        except (InputDataError, BadImage):
            continue
        found.append(data)
    return found


def _decoders(data: Sequence[bytes], size: int) -> dict[str, DecoderCost]:
    """Return the cost of each installed decoder over the samples that it does not refuse."""
    found = {}
    for name in DECODERS:
        try:
            chosen_decoder(name)
        except DecoderUnavailable:
            continue
        decodes = [Decode(name, size, scaled=scaled) for scaled in (False, True)]
        if own := [one for one in data if all(_accepts(decode, one) for decode in decodes)]:
            found[name] = DecoderCost(*(_decode_s(decode, own) for decode in decodes))
    return found


def _accepts(decode: Decode, data: bytes) -> bool:
    try:
        decode.into(np.empty((decode.image_size, decode.image_size, 3), np.uint8), data)
    except BadImage:
        return False
    return True


def _decode_s(decode: Decode, data: Sequence[bytes]) -> float:
    pixels = np.empty((decode.image_size, decode.image_size, 3), np.uint8)

    def decode_all() -> None:
        for one in data:
            decode.into(pixels, one)

    return _least_cpu_s(decode_all) / len(data)


def _preprocessing_s(size: int) -> float:
    pixels = np.zeros((BATCH_SIZE, size, size, 3), np.uint8)
    return _least_cpu_s(lambda: TF.on_host(pixels)) / BATCH_SIZE


def _least_cpu_s(work: Callable[[], object]) -> float:
    """Return the least CPU time of some rounds: other load only adds to it."""
    times_s = []
    for _ in range(ROUNDS):
        begun_s = time.thread_time()
        work()
        times_s.append(time.thread_time() - begun_s)
    return min(times_s)


def _usable(loader: BatchLoader) -> BatchLoader | None:
    """Return the loader if it makes its first batch, whose files are then in the page cache."""
    try:
        loader(0)
    except InputDataError:
        return None
    return loader


def _alone_cpu_s(loader: BatchLoader) -> float:
    """Return the CPU time per sample of a batch that is made without another thread."""
    return _least_cpu_s(lambda: loader(0)) / len(loader.order.indices(0))


def _lock_held_share(loader: BatchLoader) -> float:
    """Return the share of the time that another thread waits for the interpreter while one makes batches.

    A thread that computes in Python gives up the lock only every 5 ms (`sys.getswitchinterval`), so that a thread that
    wakes up every millisecond is late each time. A decoder that releases the lock delays it little. Unlike the speed of
    two threads, this hardly depends on other load: a thread that slept is scheduled first.
    """
    with ThreadPoolExecutor(1) as pool:
        begun_s, late_s = time.perf_counter(), 0.0
        work = pool.submit(_made_until, loader, begun_s + LOCK_TIME_S)
        while not work.done():
            slept_s = time.perf_counter()
            time.sleep(TICK_S)
            late_s += max(0.0, time.perf_counter() - slept_s - TICK_S)
        return min(1.0, late_s / (time.perf_counter() - begun_s))


def _loader(source: Source, request: Request) -> BatchLoader:
    scaling: PixelScaling | None = TF if request.params.get("preprocess") == "host" else None
    name = str(request.params.get("decoder", "auto"))
    scaled = request.params.get("decode_scale") == "dct"
    return BatchLoader(
        source,
        source.order("none", 0, min(BATCH_SIZE, len(source))),
        Decode(chosen_decoder(name if name in DECODERS else "auto"), request.integer("image_size"), scaled),
        scaling,
        skips_bad=True,
        injected=Injected(0.0, float(request.params.get("prepare_spin_ms", 0.0))),
    )


def _made_until(loader: BatchLoader, end_s: float) -> None:
    number = 0
    while time.perf_counter() < end_s:
        loader(number)
        number += 1


if __name__ == "__main__":
    sys.exit(main(sys.argv[1]))

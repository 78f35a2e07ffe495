"""Probes a data set outside any training: `python -m keras_matrix.models.inputs.probe REQUEST` prints JSON.

REQUEST is a JSON object: `params` of the workload, `batch_size`, `dataset_dir` and `folders`, as in a cell, and
`parent`, the process with which it ends. The result
is a `records.instruments.input_use.InputProbe`. Up to 64 samples are decoded by every installed decoder; the limits
of the storage come first. Costs are CPU times, which other load disturbs little.

What the storage delivers is measured by reading some of the files with a cold page cache. Many readers that read entire
files show the bandwidth, many readers that read 4 KiB at a time show the number of requests, and one reader shows the
time of a request. A limit of bytes and one of requests look alike in the first figure alone. Only files of the data set
are read, and nothing is written. About 5 s; throttled storage needs that time.
"""

from __future__ import annotations

import json
import os
import random
import signal
import sys
import time
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from itertools import islice
from pathlib import Path
from typing import Any

import numpy as np

from keras_matrix.models.inputs.pipelines.batch_loader import BatchLoader, Injected
from keras_matrix.models.inputs.pipelines.dataset_path import found_path
from keras_matrix.models.inputs.pipelines.decode import DECODERS, BadImage, Decode, DecoderUnavailable, chosen_decoder
from keras_matrix.models.inputs.pipelines.pixels import TF, PixelScaling
from keras_matrix.models.inputs.stored.page_cache import evict
from keras_matrix.models.inputs.stored.sample import InputDataError, Source
from keras_matrix.models.inputs.stored.source import open_source
from keras_matrix.models.process import end_with
from keras_matrix.models.workload import Request
from keras_matrix.records.codec import dumps
from keras_matrix.records.host.platform import PLATFORM
from keras_matrix.records.host.system import usable_memory_bytes
from keras_matrix.records.instruments.input_use import DecoderCost, InputProbe, StorageLimits

SAMPLES = 64
ROUNDS = 3
LOCK_TIME_S, TICK_S = 0.5, 0.001
BATCH_SIZE = 8
READERS = 16
SMALL_BYTES = 4096
LARGE_BYTES = 4 << 20
SMALL_TIME_S, LARGE_TIME_S, ONE_TIME_S = 1.5, 2.0, 0.5
MOST_PLACES = 4096
SEED = 0
# Share of the bytes that storage must have delivered for a figure to be one of the storage.
LEAST_DELIVERED = 0.5
Place = tuple[Path, int]


def probe(probe_request: dict[str, Any]) -> InputProbe:
    """Return the probe of a data set. Raises `InputDataError` if it cannot be read."""
    folders = tuple(probe_request.get("folders", ()))
    request = Request(
        probe_request["params"],
        "",
        probe_request.get("dataset_dir"),
        batch_size=probe_request["batch_size"],
        folders=folders,
    )
    path = found_path(request, "dataset_path")
    source = open_source(path)
    probed_source = source if len(source) <= SAMPLES else open_source(path, SAMPLES)
    storage = limits(source.files())  # first: reading samples fills the page cache
    data = _readable(probed_source, request.integer("image_size"))
    if not data:
        raise InputDataError(f"{path}: none of {len(probed_source)} samples can be decoded")
    loader = _usable(_loader(probed_source, request))
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
    decode, readable = Decode(chosen_decoder("auto"), size), []
    pixels = np.empty((size, size, 3), np.uint8)
    for index in range(len(source)):
        try:
            data = source.read([index])[0].data
            decode.into(pixels, data)
        except (InputDataError, BadImage):
            continue
        readable.append(data)
    return readable


def _decoders(data: Sequence[bytes], size: int) -> dict[str, DecoderCost]:
    """Return the cost of each installed decoder over the samples that it does not refuse."""
    costs = {}
    for name in DECODERS:
        try:
            chosen_decoder(name)
        except DecoderUnavailable:
            continue
        decodes = [Decode(name, size, scaled=scaled) for scaled in (False, True)]
        if accepted_images := [image for image in data if all(_accepts(decode, image) for decode in decodes)]:
            costs[name] = DecoderCost(*(_decode_s(decode, accepted_images) for decode in decodes))
    return costs


def _accepts(decode: Decode, data: bytes) -> bool:
    try:
        decode.into(np.empty((decode.image_size, decode.image_size, 3), np.uint8), data)
    except BadImage:
        return False
    return True


def _decode_s(decode: Decode, data: Sequence[bytes]) -> float:
    pixels = np.empty((decode.image_size, decode.image_size, 3), np.uint8)

    def decode_all() -> None:
        for image in data:
            decode.into(pixels, image)

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
    is_scaled = request.params.get("decode_scale") == "dct"
    return BatchLoader(
        source,
        source.order("none", 0, min(BATCH_SIZE, len(source))),
        Decode(chosen_decoder(name if name in DECODERS else "auto"), request.integer("image_size"), is_scaled),
        scaling,
        skips_bad=True,
        injected=Injected(0.0, float(request.params.get("prepare_spin_ms", 0.0))),
    )


def _made_until(loader: BatchLoader, end_s: float) -> None:
    number = 0
    while time.perf_counter() < end_s:
        loader(number)
        number += 1


def limits(files: Sequence[Path]) -> StorageLimits:
    """Return the limits of the storage that these files are on; figures are None if reads come from memory."""
    places = _places(files)
    third = len(places) // 3
    if not third:
        return StorageLimits(note="the data set is too small to probe its storage")
    evict(dict.fromkeys(path for path, _ in places))
    one_s = _each_s(_trial(places[:third], 1, SMALL_BYTES, ONE_TIME_S))
    small = _trial(places[third : 2 * third], READERS, SMALL_BYTES, SMALL_TIME_S)
    large = _trial(places[2 * third :], READERS, LARGE_BYTES, LARGE_TIME_S)
    if small is None or large is None:
        return StorageLimits(note="reads came from memory: the page cache could not be emptied, or the files are in it")
    return StorageLimits(large[1] / large[2], small[0] / small[2], one_s)


def _places(files: Sequence[Path]) -> list[Place]:
    """Return places to read, in random order: the begin of a small file, and of every 4 MiB of a large one."""
    drawn_files = random.Random(SEED).sample(list(files), min(len(files), MOST_PLACES))
    sized_files = [(path, _size(path)) for path in drawn_files]
    places = [(path, offset) for path, size_bytes in sized_files for offset in range(0, size_bytes, LARGE_BYTES)]
    random.Random(SEED).shuffle(places)
    return places[:MOST_PLACES]


def _size(path: Path) -> int:
    try:
        return path.stat().st_size
    except OSError:
        return 0


Trial = tuple[int, int, float]
"""Reads, bytes and seconds of a trial."""


def _trial(places: Sequence[Place], readers: int, length: int, limit_s: float) -> Trial | None:
    """Read each place once, for a limited time; None if the bytes did not come from storage."""
    bytes_before, begun_s = _delivered(), time.perf_counter()
    shares = [list(islice(places, number, None, readers)) for number in range(readers)]
    with ThreadPoolExecutor(readers) as pool:
        totals = list(pool.map(_reading(begun_s, length, limit_s), shares))
    taken_s = time.perf_counter() - begun_s
    reads, read_bytes = (sum(column) for column in zip(*totals, strict=True))
    delivered_bytes = _delivered()
    if not reads or delivered_bytes is None or bytes_before is None:
        return None
    if delivered_bytes - bytes_before < LEAST_DELIVERED * read_bytes:
        return None
    return reads, read_bytes, taken_s


def _reading(begun_s: float, length: int, limit_s: float) -> Callable[[list[Place]], tuple[int, int]]:
    def read(share: list[Place]) -> tuple[int, int]:
        reads = total = 0
        for path, offset in share:
            if time.perf_counter() - begun_s > limit_s:
                break
            try:
                total += _read(path, offset, length)
                reads += 1
            except OSError:
                continue
        return reads, total

    return read


def _read(path: Path, offset: int, length: int) -> int:
    handle = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
    try:
        if length <= SMALL_BYTES:
            PLATFORM.advise(handle, "RANDOM")  # no reading ahead
        return len(os.pread(handle, length, offset))
    finally:
        os.close(handle)


def _each_s(trial: Trial | None) -> float | None:
    return trial[2] / trial[0] if trial else None


def _delivered() -> int | None:
    """Return the bytes that storage delivered to this process; None if the system does not say."""
    try:
        lines = Path("/proc/self/io").read_text(encoding="ascii").splitlines()
    except OSError:
        return None
    return next((int(line.split()[1]) for line in lines if line.startswith("read_bytes")), None)


def main(text: str) -> int:
    """Probe, and print the result or one message. Returns the exit code."""
    request = json.loads(text)
    end_with(request.get("parent"), signal.SIGKILL)
    try:
        print(dumps(probe(request)), end="")
    except InputDataError as error:
        print(error, file=sys.stderr)
        return 2
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1]))

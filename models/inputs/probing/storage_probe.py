"""Measures what the storage of a data set delivers, by reading some of its files with a cold page cache.

Many readers that read entire files show the bandwidth, many readers that read 4 KiB at a time show the number of
requests, and one reader shows the time of a request. A limit of bytes and one of requests look alike in the first
figure alone. Only files of the data set are read, and nothing is written. About 5 s; throttled storage needs that time.
"""

from __future__ import annotations

import os
import random
import time
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from itertools import islice
from pathlib import Path

from keras_matrix.models.inputs.stored.page_cache import evict
from keras_matrix.records.instruments.input_probe import StorageLimits

READERS = 16
SMALL_BYTES = 4096
LARGE_BYTES = 4 << 20
SMALL_TIME_S, LARGE_TIME_S, ONE_TIME_S = 1.5, 2.0, 0.5
MOST_PLACES = 4096
SEED = 0
# Share of the bytes that storage must have delivered for a figure to be one of the storage.
LEAST_DELIVERED = 0.5

Place = tuple[Path, int]


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
    drawn = random.Random(SEED).sample(list(files), min(len(files), MOST_PLACES))
    sizes = [(path, _size(path)) for path in drawn]
    found = [(path, at) for path, size in sizes for at in range(0, size, LARGE_BYTES)]
    random.Random(SEED).shuffle(found)
    return found[:MOST_PLACES]


def _size(path: Path) -> int:
    try:
        return path.stat().st_size
    except OSError:
        return 0


Trial = tuple[int, int, float]
"""Reads, bytes and seconds of a trial."""


def _trial(places: Sequence[Place], readers: int, length: int, limit_s: float) -> Trial | None:
    """Read each place once, for a limited time; None if the bytes did not come from storage."""
    stored_before, begun_s = _delivered(), time.perf_counter()
    shares = [list(islice(places, number, None, readers)) for number in range(readers)]
    with ThreadPoolExecutor(readers) as pool:
        done = list(pool.map(_reading(begun_s, length, limit_s), shares))
    taken_s = time.perf_counter() - begun_s
    reads, read_bytes = (sum(column) for column in zip(*done, strict=True))
    if not reads or _delivered() - stored_before < LEAST_DELIVERED * read_bytes:
        return None
    return reads, read_bytes, taken_s


def _reading(begun_s: float, length: int, limit_s: float) -> Callable[[list[Place]], tuple[int, int]]:
    def read(own: list[Place]) -> tuple[int, int]:
        reads = total = 0
        for path, at in own:
            if time.perf_counter() - begun_s > limit_s:
                break
            try:
                total += _read(path, at, length)
                reads += 1
            except OSError:
                continue
        return reads, total

    return read


def _read(path: Path, at: int, length: int) -> int:
    handle = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
    try:
        if length <= SMALL_BYTES:
            os.posix_fadvise(handle, 0, 0, os.POSIX_FADV_RANDOM)  # no reading ahead
        return len(os.pread(handle, length, at))
    finally:
        os.close(handle)


def _each_s(trial: Trial | None) -> float | None:
    return trial[2] / trial[0] if trial else None


def _delivered() -> int:
    """Return the bytes that storage delivered to this process; 0 if the system does not say."""
    try:
        lines = Path("/proc/self/io").read_text(encoding="ascii").splitlines()
    except OSError:
        return 0
    return next((int(line.split()[1]) for line in lines if line.startswith("read_bytes")), 0)

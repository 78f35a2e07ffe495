"""The page cache of a data set's files: emptied, filled and measured, for these files alone and without root.

"Cold" means that a file's pages were dropped with `posix_fadvise(POSIX_FADV_DONTNEED)`: the next read comes from the
storage device (or from a cache that the device or a hypervisor has, which no program can empty). Pages that another
process maps stay, and a file system in memory (tmpfs) has nothing else to read from. Directory entries and inodes stay
cached: a cold epoch reads data, not metadata.
"""

from __future__ import annotations

import contextlib
import ctypes
import os
from collections.abc import Iterable, Sequence
from functools import cache
from pathlib import Path

from keras_matrix.records.host.platform import PLATFORM, Facility
from keras_matrix.records.text import percentage

COLD_MEANING = "posix_fadvise(DONTNEED) on the data set's files before each epoch"
WARM_BLOCK_BYTES = 1 << 20
PAGE_BYTES = os.sysconf("SC_PAGE_SIZE")
PROT_READ, MAP_SHARED = 1, 1
MAP_FAILED = ctypes.c_void_p(-1).value


def evict(files: Iterable[Path]) -> int:
    """Drop the cached pages of these files and no others; return the number of files whose pages were dropped.

    About 30 µs a file. Dirty pages cannot be dropped: a file with pages left is first written to its device. A file
    that is missing or closed to this user is not counted.
    """
    return sum(map(_evicted, files))


def warm(files: Iterable[Path]) -> int:
    """Read these files into the page cache; return the number of bytes read.

    A file that is missing or unreadable is left out: whether that is an error is decided where its samples are read.
    """
    total = 0
    buffer = bytearray(WARM_BLOCK_BYTES)
    for path in files:
        with contextlib.suppress(OSError), path.open("rb", buffering=0) as file:
            while count := file.readinto(buffer):
                total += count
    return total


def resident_share(files: Iterable[Path]) -> float | None:
    """Return the share of these files' pages that are in the page cache, from 0 to 1; about 20 µs a file.

    None if it cannot be known: without files, or where the system hides it because the files belong to another user.
    """
    resident = total = 0
    for path in files:
        pages = _pages(path)
        if pages is None:
            return None
        resident, total = resident + pages[0], total + pages[1]
    return resident / total if total else None


def cold_meaning(files: Sequence[Path], evicted: int, resident: float | None) -> str:
    """Say what "cold" means after `evict` returned `evicted` and `resident_share` returned `resident`."""
    if evicted < len(files):
        return f"{COLD_MEANING}; refused for {len(files) - evicted} of {len(files)} files, which may be warm"
    if resident is None:
        return f"{COLD_MEANING}; whether pages were left is not known"
    if resident > 0.5:
        return (
            f"not cold: {percentage(resident)} of the pages stayed in memory, as on tmpfs or if another "
            "process maps the files"
        )
    if resident > 0.01:
        return f"{COLD_MEANING}; {percentage(resident)} of the pages stayed in memory"
    return COLD_MEANING


def _evicted(path: Path) -> bool:
    try:
        handle = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
    except OSError:
        return False
    try:
        if not PLATFORM.advise(handle, "DONTNEED"):
            return False
        cached_pages = _pages(path)
        if cached_pages is not None and cached_pages[0]:
            os.fdatasync(handle)
            PLATFORM.advise(handle, "DONTNEED")
        return True
    except OSError:
        return False
    finally:
        os.close(handle)


def _pages(path: Path) -> tuple[int, int] | None:
    """Return the resident pages of a file and all its pages, with `mincore`; None if the system does not say.

    Since Linux 5.2 `mincore` calls every page resident unless the file is the caller's own or writable.
    """
    if PLATFORM.lacks(Facility.PAGE_CACHE):  # the flags of another kernel's mincore have other meanings
        return None
    try:
        handle = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
    except OSError:
        return None
    try:
        status = os.fstat(handle)
        if status.st_uid != os.geteuid() and not os.access(path, os.W_OK):
            return None
        return _resident(handle, status.st_size)
    finally:
        os.close(handle)


def _resident(handle: int, size_bytes: int) -> tuple[int, int] | None:
    if size_bytes == 0:
        return 0, 0
    library = _library()
    address = library.mmap(None, size_bytes, PROT_READ, MAP_SHARED, handle, 0)
    if address == MAP_FAILED:
        return None
    try:
        pages = -(-size_bytes // PAGE_BYTES)
        flags = ctypes.create_string_buffer(pages)
        if library.mincore(address, size_bytes, flags):
            return None
        return flags.raw.count(1), pages
    finally:
        library.munmap(address, size_bytes)


@cache
def _library() -> ctypes.CDLL:
    library = ctypes.CDLL(None, use_errno=True)
    library.mmap.restype = ctypes.c_void_p
    library.mmap.argtypes = [ctypes.c_void_p, ctypes.c_size_t, *[ctypes.c_int] * 3, ctypes.c_long]
    library.munmap.argtypes = [ctypes.c_void_p, ctypes.c_size_t]
    library.mincore.argtypes = [ctypes.c_void_p, ctypes.c_size_t, ctypes.c_char_p]
    return library

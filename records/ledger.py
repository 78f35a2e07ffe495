"""Notices that others have changed the records of a run while it was measured.

A record is written once and never changed. The process that measures notes the digest of every record that it found at
its start or published itself. What differs later was changed by another process, such as a cell, which may write
wherever its user may. Changes before the start, and those of an attacker who ends this process, are not noticed.
"""

from __future__ import annotations

import hashlib
import os
import stat
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path


class Ledger:
    """The digests of a folder's records. Several threads may publish; 150 bytes of memory per record."""

    def __init__(self, folder: Path, limit_bytes: int) -> None:
        """Trust the records that are there now. No record has more than `limit_bytes`."""
        self._folder, self._limit_bytes = folder, limit_bytes
        self._lock = threading.RLock()
        self._digests = {name: self._digest(name) for name in self._names()}
        self._changed_ns = self._last_change_ns()

    @contextmanager
    def publishing(self, name: str, text: str) -> Iterator[None]:
        """Note the record that is published within, also if an error follows. Meanwhile other threads wait."""
        with self._lock:
            noticed = self._last_change_ns() == self._changed_ns
            try:
                yield
            finally:
                if self._digest(name) == (own := _digest_of(text.encode("utf-8", "backslashreplace"))):
                    self._digests[name] = own
                if noticed:
                    self._changed_ns = self._last_change_ns()

    def names_changed(self) -> bool:
        """Return whether files were added, removed or replaced: one call of the system, for any number of records."""
        with self._lock:
            return self._last_change_ns() != self._changed_ns

    def changes(self) -> dict[str, str]:
        """Return the names of what others have changed since the last call, and how. Reads every record."""
        with self._lock:
            found = {name: self._digest(name) for name in self._names()}
            known, self._digests = self._digests, {}
            for name in known.keys() & found.keys():
                if known[name] == found[name]:
                    self._digests[name] = known[name]
            left = (known.keys() | found.keys()) - self._digests.keys()
            return {name: _how(name in known, name in found) for name in sorted(left)}

    def settle(self) -> None:
        """Take the names that are there now as noticed, once the problems are set aside."""
        with self._lock:
            self._changed_ns = self._last_change_ns()

    def _names(self) -> list[str]:
        try:
            entries = list(os.scandir(self._folder))
        except OSError:
            return []
        files = (entry.name for entry in entries if not entry.is_dir(follow_symlinks=False))
        return [name for name in files if not name.startswith(".")]  # hidden ones are being written

    def _last_change_ns(self) -> int | None:
        try:
            return self._folder.stat().st_ctime_ns  # unlike the time of modification, no process can set it
        except OSError:
            return None

    def _digest(self, name: str) -> bytes:
        """Return a digest of a file; an empty one for what is no record: a link, a pipe, or too large."""
        try:
            descriptor = os.open(self._folder / name, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK)
        except OSError:
            return b""
        with os.fdopen(descriptor, "rb") as file:
            found = os.fstat(descriptor)
            if not stat.S_ISREG(found.st_mode) or found.st_size > self._limit_bytes:
                return b""
            return _digest_of(file.read(self._limit_bytes))


def _digest_of(data: bytes) -> bytes:
    return hashlib.blake2b(data, digest_size=16).digest()


def _how(known: bool, found: bool) -> str:
    if not known:
        return "it was not published by this runner"
    return "it was altered after it was published" if found else "it was removed after it was published"

"""Atomic file writes: a reader sees the old content or the new content, never a part, also after a crash.

Each function writes a hidden temporary file in the same folder, `.NAME.PID.tmp`, syncs it, renames it and syncs the
folder. The temporary file is removed if anything fails; the owner of the folder removes those of killed processes.

`read_plain` is the one reader of files in a results folder, which may come from somebody else: it follows no link,
waits for no pipe and reads no more than a limit. `read_range` reads a part of one, `open_lock` opens a lock file. No
part of a path below the folder `below` may be a link.

A `DigestLedger` notices that others have changed files which are written once, the records of a run.
"""

from __future__ import annotations

import errno
import hashlib
import os
import stat
import threading
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

from keras_matrix.records.codec import CodecError, loads, may_have_surrogates, without_surrogates

DOCUMENT_LIMIT_BYTES = 64 << 20  # of a JSON document; the findings of a run of 1,002 cells have 15 MiB
# How a path cannot be opened that was removed, or replaced by a file of no permissions.
NO_RECORD = frozenset({errno.ENOENT, errno.ENOTDIR, errno.EACCES})

LINK = "a link, which is not followed"
NOT_REGULAR = "not a regular file"


class UnfitFile(CodecError):
    """What is in the place of a file and is not read: a link, a folder, a pipe, a device, or more than the limit."""


def read_plain(path: Path | str, limit_bytes: int = DOCUMENT_LIMIT_BYTES, root: Path | None = None) -> bytes:
    """Return the content of a regular file. Raises `UnfitFile` for anything else or a larger one, and OSError."""
    descriptor, size_bytes = open_plain(path, root)
    try:
        if size_bytes > limit_bytes:
            raise UnfitFile(f"larger than {limit_bytes} bytes")
        return _read(descriptor, path, 0, size_bytes)
    finally:
        os.close(descriptor)


def read_range(path: Path | str, start: int, count: int) -> bytes:
    """Return at most `count` bytes of a regular file of any size, from byte `start` on; from its end if negative.

    Raises `UnfitFile` for anything but a regular file, and OSError.
    """
    descriptor, size_bytes = open_plain(path)
    try:
        return _read(descriptor, path, max(0, size_bytes + start) if start < 0 else start, count)
    finally:
        os.close(descriptor)


def _read(descriptor: int, path: Path | str, start: int, count: int) -> bytes:
    try:
        return os.pread(descriptor, count, start)
    except OSError as error:
        error.filename = error.filename or str(path)
        raise


def read_json(path: Path | str, limit_bytes: int = DOCUMENT_LIMIT_BYTES, root: Path | None = None) -> Any:
    """Return the value in a file of strict JSON, with U+FFFD for each half of a surrogate pair.

    Raises `CodecError`, `UnfitFile` included, and OSError.
    """
    raw = read_plain(path, limit_bytes, root)
    return without_surrogates(loads(raw)) if may_have_surrogates(raw) else loads(raw)


def open_plain(path: Path | str, root: Path | None = None) -> tuple[int, int]:
    """Open a regular file, for `os.pread`; return its descriptor and its size. Raises `UnfitFile`, and OSError."""
    if root is not None:
        refuse_links(Path(path).parent, root)
    try:
        descriptor = os.open(path, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC)
    except OSError as error:
        raise _unfit(error) from error
    status = os.fstat(descriptor)
    if not stat.S_ISREG(status.st_mode):
        os.close(descriptor)
        raise UnfitFile(NOT_REGULAR)
    return descriptor, status.st_size


def open_lock(path: Path) -> int:
    """Open the file of a lock, and create it if it is missing. Raises `UnfitFile`, and OSError."""
    try:
        descriptor = os.open(path, os.O_RDWR | os.O_CREAT | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC, 0o644)
    except OSError as error:
        raise _unfit(error) from error
    if not stat.S_ISREG(os.fstat(descriptor).st_mode):
        os.close(descriptor)
        raise UnfitFile(NOT_REGULAR)
    return descriptor


def refuse_links(path: Path, folder: Path) -> None:
    """Raise `UnfitFile` if a path leads out of a folder: by its name, or because a part of it is a link."""
    try:
        parts = path.relative_to(folder).parts
    except ValueError:
        raise UnfitFile(f"outside of {folder}") from None
    if ".." in parts:
        raise UnfitFile(f"outside of {folder}")
    for part in parts:
        folder = folder / part
        if folder.is_symlink():
            raise UnfitFile(f"{folder.name} is {LINK}")


def _unfit(error: OSError) -> Exception:
    """Return `UnfitFile` for an error that says what kind of file there is, otherwise the error."""
    if error.errno == errno.ELOOP:
        return UnfitFile(LINK)
    return UnfitFile(NOT_REGULAR) if error.errno in (errno.ENXIO, errno.EISDIR) else error


def show(path: Path, text: str) -> None:
    """Replace a file that only displays read: a full disk is ignored, and a measurement does not wait for the disk."""
    temporary = path.with_name(f".{path.name}.{os.getpid()}.tmp")
    with suppress(OSError):
        temporary.write_text(text, encoding="utf-8", errors="backslashreplace")
        temporary.replace(path)


def publish(path: Path, text: str) -> None:
    """Write a new file. Raises OSError, `FileExistsError` if `path` exists."""
    with _temporary(path) as temporary:
        write_synced(temporary, text)
        os.link(temporary, path)
    sync(path.parent)


def replace(path: Path, text: str) -> None:
    """Write a file, replacing an earlier one. Raises OSError."""
    with replacing(path) as temporary:
        _write(temporary, text)


@contextmanager
def replacing(path: Path) -> Iterator[Path]:
    """Yield a temporary path; a file written there replaces `path`. Raises OSError."""
    with _temporary(path) as temporary:
        yield temporary
        if temporary.exists():
            sync(temporary)
            temporary.replace(path)
            sync(path.parent)


def make_folder(path: Path) -> None:
    """Create a folder and its missing parents, and wait until their names are on disk. Raises OSError."""
    missing_folders = [folder for folder in (path, *path.parents) if not folder.exists()]
    path.mkdir(parents=True, exist_ok=True)
    for folder in reversed(missing_folders):
        sync(folder.parent)


def write_synced(path: Path, text: str) -> None:
    """Write a file and wait until it is on disk. Raises OSError, and may then leave a partial file."""
    _write(path, text)
    sync(path)


def sync(path: Path) -> None:
    """Wait until a file, or the names in a folder, are on disk. Raises OSError."""
    handle = os.open(path, os.O_RDONLY)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)


def _write(path: Path, text: str) -> None:
    # A lone surrogate is valid in JSON but not in UTF-8: it is written as its escape sequence.
    path.write_text(text, encoding="utf-8", errors="backslashreplace")


@contextmanager
def naming(path: Path) -> Iterator[None]:
    """Name a file in an OSError that names none: one of a read or a write, such as that of a full disk."""
    try:
        yield
    except OSError as error:
        if error.errno is not None and error.filename is None:
            error.filename = str(path)
        raise


@contextmanager
def _temporary(path: Path) -> Iterator[Path]:
    temporary = path.with_name(f".{path.name}.{os.getpid()}.tmp")
    try:
        with naming(path):
            yield temporary
    finally:
        with suppress(OSError):
            temporary.unlink()


class DigestLedger:
    """The digests of the records in a folder: of those found at the start, and of those that this process published.

    What differs later was changed by another process, such as a cell, which may write wherever its user may. Changes
    before the start, and those of one who ends this process, are not noticed. What changes within the same tick of the
    file system's clock (milliseconds) as a publication is noticed only when each record is read. Several threads may
    publish; a record takes 150 bytes of memory. A disk that fails changes nothing: an OSError is raised, and what was
    known stays known.
    """

    def __init__(self, folder: Path, limit_bytes: int) -> None:
        """Trust the records that are there now. No record has more than `limit_bytes`. Raises OSError."""
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
                digest = _digest_of(text.encode("utf-8", "backslashreplace"))
                if self._published(name, digest):
                    self._digests[name] = digest
                if noticed:
                    self._changed_ns = self._last_change_ns()

    def names_changed(self) -> bool:
        """Return whether files were added, removed or replaced: one call of the system, for any number of records."""
        with self._lock:
            return self._last_change_ns() != self._changed_ns

    def changes(self) -> dict[str, str]:
        """Return the names of what others have changed since the last call, and how. Reads every record.

        Raises OSError.
        """
        with self._lock:
            digests = {name: self._digest(name) for name in self._names()}
            known_digests, self._digests = self._digests, {}
            for name in known_digests.keys() & digests.keys():
                if known_digests[name] == digests[name]:
                    self._digests[name] = known_digests[name]
            differing = (known_digests.keys() | digests.keys()) - self._digests.keys()
            return {name: _how(name in known_digests, name in digests) for name in sorted(differing)}

    def settle(self) -> None:
        """Take the names that are there now as noticed, once the problems are set aside."""
        with self._lock:
            self._changed_ns = self._last_change_ns()

    def _published(self, name: str, digest: bytes) -> bool:
        """Return whether a file is there with this content; one that cannot be read was written and synced before."""
        try:
            return self._digest(name) == digest
        except OSError:
            return os.path.lexists(self._folder / name)

    def _names(self) -> list[str]:
        try:
            with naming(self._folder):
                entries = list(os.scandir(self._folder))
        except (FileNotFoundError, NotADirectoryError):
            return []
        files = (entry.name for entry in entries if not entry.is_dir(follow_symlinks=False))
        return [name for name in files if not name.startswith(".")]  # hidden ones are being written

    def _last_change_ns(self) -> int | None:
        try:
            return self._folder.stat().st_ctime_ns  # unlike the time of modification, no process can set it
        except OSError:
            return None

    def _digest(self, name: str) -> bytes:
        """Return a digest of a file; an empty one for what is no record: missing, a link, a pipe, or too large."""
        try:
            return _digest_of(read_plain(self._folder / name, self._limit_bytes))
        except UnfitFile:
            return b""
        except OSError as error:
            if error.errno in NO_RECORD:
                return b""
            raise


def _digest_of(data: bytes) -> bytes:
    return hashlib.blake2b(data, digest_size=16).digest()


def _how(was_known: bool, is_present: bool) -> str:
    if not was_known:
        return "it was not published by this runner"
    return "it was altered after it was published" if is_present else "it was removed after it was published"

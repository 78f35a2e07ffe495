"""Atomic file writes: a reader sees the old content or the new content, never a part, also after a crash.

Each function writes a hidden temporary file in the same folder, `.NAME.PID.tmp`, syncs it, renames it and syncs the
folder. The temporary file is removed if anything fails; the owner of the folder removes those of killed processes.
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path


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
    missing = [folder for folder in (path, *path.parents) if not folder.exists()]
    path.mkdir(parents=True, exist_ok=True)
    for folder in reversed(missing):
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

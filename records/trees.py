"""Folders that a cell or a stranger may have written: removed and listed whatever is in them.

The functions of the standard library call themselves once for each level, so that 1,000 nested folders end a program
(`shutil.rmtree`, `Path.rglob`, `os.walk` before Python 3.12). These follow no link and need the same memory and number
of open files for any depth. What cannot be removed or listed is passed over: it is a cell's problem, not the run's.
"""

from __future__ import annotations

import contextlib
import os
import secrets
import tempfile
from collections.abc import Callable, Iterator
from pathlib import Path

LONGEST_PATH_BYTES = 4095
_FOLDER = os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC


def remove_tree(folder: str | os.PathLike[str]) -> None:
    """Remove a folder with all that is in it, as far as possible; a link to a folder stays.

    A nested folder is moved up to `folder` before it is emptied, so that none is ever deep. Folders without permissions
    get those of their owner. Raises no OSError.
    """
    with contextlib.suppress(OSError), _opened(folder) as top:
        names = (f".{secrets.token_hex(8)}-{number}" for number in _count())
        waiting_folders = _emptied(top, (top, names))
        while waiting_folders:
            name = waiting_folders.pop()
            with contextlib.suppress(OSError):
                with _opened(name, top) as inner:
                    waiting_folders += _emptied(inner, (top, names))
                os.rmdir(name, dir_fd=top)
        Path(folder).rmdir()


def walk(folder: str | os.PathLike[str], enters: Callable[[Path], bool] = lambda folder: True) -> Iterator[Path]:
    """Yield all files and folders below a folder, without what is below links, cannot be read or has too long a path.

    What is below a folder that the walk does not enter is left out, too.
    """
    waiting_folders = [os.fspath(folder)]
    while waiting_folders:
        with contextlib.suppress(OSError), os.scandir(waiting_folders.pop()) as entries:
            for entry in sorted(entries, key=lambda entry: entry.name):
                if len(os.fsencode(entry.path)) > LONGEST_PATH_BYTES:
                    continue
                yield (path := Path(entry.path))
                if entry.is_dir(follow_symlinks=False) and enters(path):
                    waiting_folders.append(entry.path)


@contextlib.contextmanager
def temporary_folder(prefix: str) -> Iterator[Path]:
    """Yield a new temporary folder, which is removed at the end whatever was written there."""
    folder = tempfile.mkdtemp(prefix=prefix)
    try:
        yield Path(folder)
    finally:
        remove_tree(folder)


def _count() -> Iterator[int]:
    number = 0
    while True:
        yield number
        number += 1


@contextlib.contextmanager
def _opened(name: str | os.PathLike[str], parent: int | None = None) -> Iterator[int]:
    """Yield the descriptor of a folder that is no link, which its owner may then read and change. Raises OSError."""
    # O_PATH needs no permission for the folder itself; macOS has no such flag.
    place = os.open(name, getattr(os, "O_PATH", os.O_RDONLY) | _FOLDER, dir_fd=parent)
    try:
        with contextlib.suppress(OSError):  # somebody else's: perhaps it may be read nevertheless
            Path(f"/proc/self/fd/{place}").chmod(0o700)
        descriptor = os.open(".", os.O_RDONLY | _FOLDER, dir_fd=place)
    finally:
        os.close(place)
    try:
        yield descriptor
    finally:
        os.close(descriptor)


def _emptied(folder: int, target: tuple[int, Iterator[str]]) -> list[str]:
    """Remove the files of an open folder; move its folders to the open folder of `target`, and return their names."""
    top, names = target
    moved_names = []
    with os.scandir(folder) as entries:
        contents = [(entry.name, entry.is_dir(follow_symlinks=False)) for entry in entries]
    for name, is_folder in contents:
        with contextlib.suppress(OSError):
            if not is_folder:
                os.unlink(name, dir_fd=folder)
            elif folder == top:
                moved_names.append(name)
            else:
                moved_names.append(_moved(name, folder, (top, next(names))))
    return moved_names


def _moved(name: str, folder: int, target: tuple[int, str]) -> str:
    """Move a folder, which its owner must be allowed to change for that; return its new name. Raises OSError."""
    top, new = target
    try:
        os.rename(name, new, src_dir_fd=folder, dst_dir_fd=top)
    except PermissionError:
        with _opened(name, folder):
            os.rename(name, new, src_dir_fd=folder, dst_dir_fd=top)
    return new

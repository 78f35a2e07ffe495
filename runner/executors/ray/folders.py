"""Folders that travel between the runner's machine and a node, as one compressed archive."""

from __future__ import annotations

import io
import tarfile
import zlib
from collections.abc import Iterable
from pathlib import Path

from keras_matrix.records.text import bytes_text
from keras_matrix.records.trees import walk

# Archives of a user's modules: what is larger belongs into a data set.
MOST_BYTES = 64 << 20
# Of the files of one cell.
MOST_FILES_BYTES = 1 << 30
LEFT_OUT = frozenset({".git", ".venv", "venv", "__pycache__", "node_modules", "results", ".mypy_cache", ".ruff_cache"})


class TooLarge(Exception):
    """A folder has more bytes than may travel; the text names it."""


def packed(folder: Path, names: Iterable[Path] | None = None) -> bytes:
    """Return the regular files and folders below a folder, or those of them that are named, as an archive.

    Pipes, sockets and links are left out. Raises `TooLarge` and OSError.
    """
    buffer = io.BytesIO()
    found = sorted(walk(folder)) if names is None else list(names)
    total = sum(path.stat().st_size for path in found if path.is_file() and not path.is_symlink())
    if total > MOST_FILES_BYTES:
        raise TooLarge(f"{folder}: has {bytes_text(total)}, more than {bytes_text(MOST_FILES_BYTES)}")
    with tarfile.open(fileobj=buffer, mode="w:gz", compresslevel=1) as archive:
        for path in found:
            if path.is_symlink() or not (path.is_file() or path.is_dir()):
                continue
            archive.add(path, str(path.relative_to(folder)), recursive=False)
    return buffer.getvalue()


def unpacked(archive: bytes, folder: Path) -> None:
    """Write an archive's files into a folder. Raises OSError, and `tarfile.TarError` for a damaged archive."""
    folder.mkdir(parents=True, exist_ok=True)
    try:
        with tarfile.open(fileobj=io.BytesIO(archive), mode="r:gz") as opened:
            if hasattr(tarfile, "data_filter"):
                opened.extractall(folder, filter="data")
            else:  # before Python 3.11.4, such as Debian 12's
                opened.extractall(folder, [_harmless(member) for member in opened])  # noqa: S202 - only harmless ones
    except (EOFError, zlib.error) as error:
        raise tarfile.ReadError(f"damaged: {error}") from error


def _harmless(member: tarfile.TarInfo) -> tarfile.TarInfo:
    """Return a regular file or folder that stays within the archive's folder. Raises `tarfile.TarError` for others."""
    path = Path(member.name)
    if path.is_absolute() or ".." in path.parts or not (member.isfile() or member.isdir()):
        raise tarfile.ExtractError(f"{member.name}: is no file or folder of the archive's own folder")
    member.mode &= 0o755  # neither set-user-ID nor writable by others
    return member


def modules(root: Path, but: Path | None = None) -> bytes:
    """Return the files of a user's folder of modules, without hidden files, environments, caches and `but`.

    Raises `TooLarge` and OSError.
    """

    def enters(folder: Path) -> bool:
        return folder.name not in LEFT_OUT and not folder.name.startswith(".") and folder.resolve() != but

    names, total = [], 0
    for path in walk(root, enters):
        if not path.name.startswith(".") and path.is_file() and not path.is_symlink():
            total += path.stat().st_size
            names.append(path)
        if total > MOST_BYTES:
            raise TooLarge(
                f"{root}: has more than {bytes_text(MOST_BYTES)}, which are too many to copy to a node; put modules "
                "into a folder of their own, or install them on the nodes"
            )
    return packed(root, names)

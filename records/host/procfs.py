"""Reads small files of /proc and /sys below a root, which a test replaces by a synthetic tree.

A file that is missing, forbidden, irregular or malformed raises no exception: its value is `Unread`, with the path and
the reason. A read never blocks and takes at most `LIMIT_BYTES`.
"""

from __future__ import annotations

import errno
import os
from dataclasses import dataclass
from pathlib import Path

LIMIT_BYTES = 1 << 20
_REASONS = {
    errno.ENOENT: "does not exist",
    errno.ENOTDIR: "does not exist",
    errno.EACCES: "is not readable for this user",
    errno.EPERM: "is not readable for this user",
    errno.EOPNOTSUPP: "is disabled in this kernel",
}


@dataclass(frozen=True, slots=True)
class Unread:
    """A value that could not be read, and why; `absent` if it does not exist."""

    why: str
    absent: bool = False


@dataclass(frozen=True, slots=True)
class ProcTree:
    """The files below `root`; paths are absolute paths of the machine."""

    root: Path = Path("/")

    def text(self, path: str) -> str | Unread:
        """Return a file's text without surrounding blanks."""
        try:
            descriptor = os.open(self.at(path), os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC)
        except OSError as error:
            return _unread(path, error)
        try:
            return _content(descriptor).decode("utf-8", errors="replace").strip()
        except OSError as error:
            return _unread(path, error)
        finally:
            os.close(descriptor)

    def number(self, path: str) -> int | Unread:
        """Return the integer in a file."""
        text = self.text(path)
        if isinstance(text, Unread):
            return text
        number = integer(text)
        return Unread(f"{path} contains {text[:20]!r}, not a number") if number is None else number

    def names(self, folder: str, pattern: str) -> list[str]:
        """Return the names in a folder that match a pattern, sorted; empty if it cannot be read."""
        try:
            return sorted(file.name for file in self.at(folder).glob(pattern))
        except OSError:
            return []

    def at(self, path: str) -> Path:
        """Return a path below the root."""
        return self.root / path.lstrip("/")


def stated_bytes(tree: ProcTree, path: str, key: str) -> int | Unread:
    """Return the bytes of a line `KEY: N kB` of a file, such as /proc/meminfo."""
    text = tree.text(path)
    if isinstance(text, Unread):
        return text
    for line in text.splitlines():
        name, _, value = line.partition(":")
        if name == key:
            kibibytes = integer((value.split() or [""])[0])
            return kibibytes * 1024 if kibibytes is not None else Unread(f"{path}: {key} is not a number")
    return Unread(f"{path} has no {key}", absent=True)


def covered_stat(tree: ProcTree) -> bool:
    """Return whether /proc/stat is a mount, as with LXCFS: it then covers a container alone, not other processes."""
    mounts = tree.text("/proc/self/mountinfo")
    if isinstance(mounts, Unread):
        return False
    return any(line.split()[4:5] == ["/proc/stat"] for line in mounts.splitlines())


def integer(text: str) -> int | None:
    """Parse an integer; None unless the text is at most 20 ASCII digits with an optional minus sign."""
    digits = text[1:] if text[:1] == "-" else text
    return int(text) if digits.isascii() and digits.isdigit() and len(digits) <= 20 else None


def _unread(path: str, error: OSError) -> Unread:
    reason = _REASONS.get(error.errno or 0, f"cannot be read ({error.strerror})")
    return Unread(f"{path} {reason}", absent=error.errno in (errno.ENOENT, errno.ENOTDIR))


def _content(descriptor: int) -> bytes:
    chunks: list[bytes] = []
    left_bytes = LIMIT_BYTES
    while left_bytes > 0 and (chunk := os.read(descriptor, left_bytes)):
        chunks.append(chunk)
        left_bytes -= len(chunk)
    return b"".join(chunks)

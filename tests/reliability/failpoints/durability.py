"""What survives a power failure: the content of a file as it was last synced, and a name once its folder was synced.

`Syncs` notes in the child, at each fsync, the content or the names that became durable. After the child was killed,
`lose` replaces its folder by what a disk without a cache would contain, or, with a random generator, by any state that
the kernel may have written: of each name the synced or the present one, of each file a part.
"""

from __future__ import annotations

import os
import random
import shutil
import stat
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from tests.reliability.failpoints.seam import Journal, Seam

Names = dict[str, int]


@dataclass(frozen=True, slots=True)
class Syncs:
    """Copies what is synced below the seam's folder into another folder, `kept`.

    It keeps a descriptor of each synced file: the kernel would otherwise give its inode to another one.
    """

    seam: Seam
    kept: Path

    def noting(self, fsync: Callable[[int], None]) -> Callable[[int], None]:
        """Return an fsync that notes what became durable."""

        def synced(descriptor: int) -> None:
            fsync(descriptor)
            path = Path(f"/proc/self/fd/{descriptor}").readlink()
            if self.seam.covers(str(path)):
                self._note(path, descriptor)

        return synced

    def _note(self, path: Path, descriptor: int) -> None:
        found = os.fstat(descriptor)
        self.seam._writing = True  # these operations are not the project's
        try:
            os.dup(descriptor)
            if stat.S_ISDIR(found.st_mode):
                value: Any = [found.st_ino, names(path)]
                referred(path / name for name in value[1])
            else:
                copy = self.kept / f"{found.st_ino}.{len([*self.kept.iterdir()])}"
                shutil.copyfile(f"/proc/self/fd/{descriptor}", copy)
                value = [found.st_ino, str(copy)]
        finally:
            self.seam._writing = False
        self.seam.note("names" if isinstance(value[1], dict) else "content", value)


def referred(paths: Iterable[Path]) -> list[int]:
    """Return descriptors of files and folders; until they are closed, no other file gets their inodes."""
    return [os.open(path, os.O_PATH | os.O_NOFOLLOW | os.O_CLOEXEC) for path in paths]


def names(folder: Path) -> Names:
    """Return the names in a folder with their inodes."""
    return {entry.name: entry.inode() for entry in os.scandir(folder)}


@dataclass(slots=True)
class Disk:
    """What is on disk: of each folder the names, of each file its content, of each link its target; by inode."""

    folders: dict[int, Names]
    files: dict[int, Path]
    links: dict[int, str]

    @classmethod
    def of(cls, folder: Path) -> Disk:
        """Return the present state of a folder."""
        disk = cls({}, {}, {})
        for here, inside, files in os.walk(folder):
            disk.folders[Path(here).stat().st_ino] = names(Path(here))
            for name in (*inside, *files):
                path = Path(here, name)
                if path.is_symlink():
                    disk.links[path.lstat().st_ino] = str(path.readlink())
                elif path.is_file():
                    disk.files[path.stat().st_ino] = path
        return disk

    def kept_in(self, copy: Path, folder: Path) -> Disk:
        """Return the same state with the content of the files in a copy of the folder."""
        files = {inode: copy / path.relative_to(folder) for inode, path in self.files.items()}
        return Disk(dict(self.folders), files, dict(self.links))


def lose(folder: Path, before: Disk, journal: Journal, chance: random.Random | None = None) -> None:
    """Replace a folder by what a power failure leaves of it; `before` is what was durable when the process began."""
    now, synced = Disk.of(folder), Disk(dict(before.folders), dict(before.files), dict(before.links))
    synced.folders |= dict(journal.notes.get("names", []))
    synced.files |= {inode: Path(copy) for inode, copy in journal.notes.get("content", [])}
    left = folder.with_name(f"{folder.name}-left")
    _restore(_Remains(now, synced, chance), folder.stat().st_ino, left)
    shutil.rmtree(folder)
    left.rename(folder)


@dataclass(frozen=True, slots=True)
class _Remains:
    now: Disk
    synced: Disk
    chance: random.Random | None

    def names(self, inode: int) -> Names:
        """Return the names that remain in a folder."""
        synced, now = self.synced.folders.get(inode, {}), self.now.folders.get(inode, {})
        if self.chance is None:
            return synced
        chosen = {name: self.chance.choice((synced, now)).get(name) for name in sorted({*synced, *now})}
        return {name: found for name, found in chosen.items() if found is not None}

    def content(self, inode: int) -> bytes:
        """Return what remains of a file: the synced content, or with a generator any part of the present one."""
        synced = self.synced.files[inode].read_bytes() if inode in self.synced.files else b""
        now = self.now.files[inode].read_bytes() if inode in self.now.files else synced
        if self.chance is None or now == synced:
            return synced
        return self.chance.choice((synced, now, now[: self.chance.randrange(len(now) + 1)]))


def _restore(remains: _Remains, inode: int, target: Path) -> None:
    target.mkdir()
    for name, found in remains.names(inode).items():
        links = remains.now.links | remains.synced.links
        if found in links:
            (target / name).symlink_to(links[found])
        elif found in remains.now.folders or found in remains.synced.folders:
            _restore(remains, found, target / name)
        else:
            (target / name).write_bytes(remains.content(found))

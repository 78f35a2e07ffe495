"""The corpus: small training programs as people write them, with what is known of each in programs.toml."""

from __future__ import annotations

import shutil
import tomllib
from dataclasses import dataclass
from pathlib import Path

FOLDER = Path(__file__).parent
TABLE = FOLDER / "programs.toml"


@dataclass(frozen=True, slots=True)
class Program:
    """A program: its path in its folder, what it is written for, and the call that is measured with its epoch's steps.

    `ways` are the ways to train that it shows.
    """

    name: str
    ways: tuple[str, ...]
    backends: tuple[str, ...]
    call: str
    steps: int
    program: str = "train.py"
    args: tuple[str, ...] = ()
    independent: bool = False

    @property
    def folder(self) -> Path:
        """Its folder, which a study or test copies."""
        return FOLDER / self.name

    @property
    def place(self) -> tuple[Path, int]:
        """The file and the line of the measured call."""
        name, _, line = self.call.partition(" ")[2].rpartition(":")
        return self.folder / name, int(line)

    def call_in(self, folder: str) -> str:
        """Return the measured call as it is named from a folder that contains the program's."""
        kind, _, place = self.call.partition(" ")
        return f"{kind} {folder}/{place}"

    def copied(self, parent: Path) -> Path:
        """Copy its folder into another one, and return the copy."""
        return Path(shutil.copytree(self.folder, parent / self.name))


def corpus() -> list[Program]:
    """Return all programs, sorted by name."""
    entries = tomllib.loads(TABLE.read_text(encoding="utf-8"))
    return [
        Program(name, **{key: tuple(value) if isinstance(value, list) else value for key, value in entry.items()})
        for name, entry in sorted(entries.items())
    ]

"""The times of collectives that a traced cell's workers measured while they computed; stored next to its raw files.

The thread that sends shares its core with the computation, so these times include waits that an idle machine's do not.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from keras_matrix.records.codec import decode, dumps
from keras_matrix.records.files import read_json

# In the folder of the backend's own files of a trace.
NAME = "collectives.json"
SMALLEST_BYTES, FACTOR = 4096, 4
# The calls of each size: fewer where a call takes longer, so that all take seconds over a slow link.
CALLS = ((1 << 16, 20), (1 << 20, 8), (1 << 40, 3))


@dataclass(frozen=True, slots=True)
class TimedCollective:
    """One call of a collective among `ranks` workers; `bytes` is the payload of one rank.

    `library` is what ran it, such as gloo or nccl; empty if it is not known.
    """

    operation: str
    ranks: int
    bytes: int
    seconds: float
    library: str = ""


def sizes_bytes(total: int) -> list[tuple[int, int]]:
    """Return the sizes to measure up to that of all gradients, and how often each is called."""
    found = []
    size = SMALLEST_BYTES
    while size < total:
        found.append(size)
        size *= FACTOR
    return [(size, next(calls for most, calls in CALLS if size <= most)) for size in [*found, total]]


def write(folder: Path, found: Sequence[TimedCollective]) -> None:
    """Write the file of a trace."""
    (folder / NAME).write_text(dumps(list(found)), encoding="utf-8")


def read(folder: Path) -> list[TimedCollective]:
    """Return what the file of a trace contains; nothing if there is no file. Raises `CodecError` if it is damaged."""
    path = folder / NAME
    return decode(list[TimedCollective], read_json(path), NAME) if path.is_file() else []

"""What a cell measured of its workers' communication: bytes, times of collectives, and times for calibration.

Bytes are the payload that all workers together must send: for n workers and an array of m bytes, an all-reduce takes
2 (n - 1) m, a reduce-scatter (n - 1) m, and an all-gather of pieces that make up m bytes (n - 1) m. (Patarasuk and
Yuan, "Bandwidth optimal all-reduce algorithms for clusters of workstations", 2009.) In groups of workers, n is the size
of the group; a point-to-point transfer takes m. An algorithm may send more: `records.fc.spec.wire_bytes_per_step`.

The times for calibration are those of collectives while the workers of a traced cell computed, stored next to its
raw files. The thread that sends shares its core with the computation, so they include waits that an idle machine's
do not.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from enum import StrEnum
from pathlib import Path

from keras_matrix.records.codec import decode, dumps
from keras_matrix.records.files import read_json

# After everything timed: number of observed epochs, and the maximum duration of each if a step is shorter.
WATCHED_EPOCHS = 5
WATCHED_EPOCH_S = 0.3
# In the folder of the backend's own files of a trace.
NAME = "collectives.json"
SMALLEST_BYTES, FACTOR = 4096, 4
# The calls of each size: fewer where a call takes longer, so that all take seconds over a slow link.
CALLS = ((1 << 16, 20), (1 << 20, 8), (1 << 40, 3))


class TimingMethod(StrEnum):
    """How the time of collectives was measured.

    TIMED: each collective is a call that was timed separately, with an idle device before and after it; this includes
    packing and waiting for the other workers, and nothing overlaps. PROFILED: they are parts of a compiled program,
    measured by the backend's own profiler; this includes packing, and waiting only within an operation.
    """

    TIMED = "timed"
    PROFILED = "profiled"


@dataclass(frozen=True, slots=True)
class Communication:
    """The time of the collectives of a step, in separate epochs after everything that is timed.

    Seconds of one step, the mean over an epoch and over all workers. Both lists have a value per epoch: the step, and
    its part without communication.
    """

    method: TimingMethod
    step_times_s: list[float]
    compute_times_s: list[float]

    @property
    def step_time_s(self) -> float:
        """Return the median step of those epochs."""
        import statistics  # slow, and few records of a table have these times

        return statistics.median(self.step_times_s)

    @property
    def share(self) -> float:
        """Return the median share of a step that is spent in collectives."""
        import statistics

        pairs = zip(self.compute_times_s, self.step_times_s, strict=True)
        return 1 - statistics.median(compute / step for compute, step in pairs)


@dataclass(frozen=True, slots=True)
class Traffic:
    """The communication of one worker in one step: bytes of the complete arrays that were summed, scattered, gathered.

    `group_sent_bytes` is what all groups of workers together must send. `handed_bytes` counts this worker's transfers
    to others, until `together` adds them up. `calls` are all collectives, also those of groups.
    """

    all_reduce_bytes: int = 0
    reduce_scatter_bytes: int = 0
    all_gather_bytes: int = 0
    calls: int = 0
    group_sent_bytes: int = 0
    handed_bytes: int = 0
    hand_overs: int = 0

    def sent_bytes(self, workers: int) -> int:
        """Return the bytes that all workers together must send."""
        arrays = 2 * self.all_reduce_bytes + self.reduce_scatter_bytes + self.all_gather_bytes
        return (workers - 1) * arrays + self.group_sent_bytes + self.handed_bytes


def together(traffics: Sequence[Traffic]) -> Traffic:
    """Return the counts of all workers. Raises `RuntimeError` if they took part in different collectives."""
    alike = {replace(traffic, handed_bytes=0, hand_overs=0) for traffic in traffics}
    if len(alike) != 1:
        raise RuntimeError(f"the workers took part in different collectives: {traffics}")
    handed = sum(traffic.handed_bytes for traffic in traffics)
    return replace(alike.pop(), handed_bytes=handed, hand_overs=sum(traffic.hand_overs for traffic in traffics))


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
    sizes_so_far = []
    size_bytes = SMALLEST_BYTES
    while size_bytes < total:
        sizes_so_far.append(size_bytes)
        size_bytes *= FACTOR
    return [
        (size_bytes, next(call_count for most, call_count in CALLS if size_bytes <= most))
        for size_bytes in [*sizes_so_far, total]
    ]


def write(folder: Path, collectives: Sequence[TimedCollective]) -> None:
    """Write the file of a trace."""
    (folder / NAME).write_text(dumps(list(collectives)), encoding="utf-8")


def read(folder: Path) -> list[TimedCollective]:
    """Return what the file of a trace contains; nothing if there is no file. Raises `CodecError` if it is damaged."""
    path = folder / NAME
    return decode(list[TimedCollective], read_json(path), NAME) if path.is_file() else []

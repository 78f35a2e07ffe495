"""Times all-reduces of several sizes between worker processes, while each of them goes on computing."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from threading import Event, Thread
from time import perf_counter

from keras_matrix.records.fc import communication
from keras_matrix.records.fc.communication import TimedCollective, sizes_bytes

# Of a number of bytes: a function that sums an array of this size over the workers, and returns when that is done.
Summing = Callable[[int], Callable[[], object]]


@dataclass(frozen=True, slots=True)
class CollectiveWorkers:
    """What `ranks` workers sum and compute; each has its own. `compute` is a step without communication.

    `library` runs the sums.
    """

    ranks: int
    summing: Summing
    compute: Callable[[], object]
    library: str = ""


def store(folder: Path, rank: int, workers: CollectiveWorkers, total_bytes: int) -> None:
    """Time all-reduces of up to `total_bytes`; the first worker writes its times into the folder of a trace.

    All workers call this at the same time.
    """
    timed_collectives = measured(workers, total_bytes)
    if rank == 0:
        communication.write(folder, timed_collectives)


def measured(workers: CollectiveWorkers, total_bytes: int) -> list[TimedCollective]:
    """Return the times of all-reduces of up to `total_bytes` while a thread repeats what workers compute.

    A call begins when the previous one has ended on this worker, and waits for the others: the first of each size,
    which may also compile, is not counted.
    """
    timed_collectives = []
    workers.compute()  # which may compile, too
    with _repeated(workers.compute):
        for size_bytes, call_count in sizes_bytes(total_bytes):
            call = workers.summing(size_bytes)
            times_s = [_timed_s(call) for _ in range(call_count + 1)]
            timed_collectives += [
                TimedCollective("all_reduce", workers.ranks, size_bytes, seconds, workers.library)
                for seconds in times_s[1:]
            ]
    return timed_collectives


def _timed_s(call: Callable[[], object]) -> float:
    begun_s = perf_counter()
    call()
    return perf_counter() - begun_s


@contextmanager
def _repeated(compute: Callable[[], object]) -> Iterator[None]:
    """Repeat a function in a thread. Raises what it raised."""
    ended = Event()
    errors: list[Exception] = []

    def repeat() -> None:
        try:
            while not ended.is_set():
                compute()
        except Exception as error:  # noqa: BLE001 - raised again below
            errors.append(error)

    thread = Thread(target=repeat)
    thread.start()
    try:
        yield
    finally:
        ended.set()
        thread.join()
    if errors:
        raise errors[0]

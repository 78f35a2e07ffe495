"""Times PyTorch's all-reduce of several sizes while the worker goes on computing."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from threading import Event, Thread
from time import perf_counter

import torch
import torch.distributed as dist

from keras_matrix.records.fc.calibration import TimedCollective, sizes_bytes


def measured(compute: Callable[[], object], total_bytes: int) -> list[TimedCollective]:
    """Return the times of all-reduces of up to `total_bytes`; all workers call this at the same time.

    `compute` is a step without communication, which a thread repeats. A call begins when the previous one has ended on
    this worker, and waits for the others: the first of each size is not counted.
    """
    found = []
    with _repeated(compute):
        for size, calls in sizes_bytes(total_bytes):
            buffer = torch.zeros(max(1, size // 4))
            times_s = [_timed_s(buffer) for _ in range(calls + 1)]
            found += [TimedCollective("all_reduce", dist.get_world_size(), size, seconds) for seconds in times_s[1:]]
    return found


def _timed_s(buffer: torch.Tensor) -> float:
    begun_s = perf_counter()
    dist.all_reduce(buffer)
    return perf_counter() - begun_s


@contextmanager
def _repeated(compute: Callable[[], object]) -> Iterator[None]:
    """Repeat a function in a thread. Raises what it raised."""
    ended = Event()
    errors: list[Exception] = []

    def repeat() -> None:
        try:
            with torch.no_grad():  # of this thread
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

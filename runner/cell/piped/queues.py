"""Finds how many prepared batches wait in the queue of a source, where that can be read: in objects of the libraries.

None of them has a public interface for it. What is missing or has changed is not an error: the number is unknown.
Read: the enqueuer of a Keras PyDataset, the workers' results of a torch DataLoader, the buffer of a grain prefetch.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

Queue = Callable[[], int | None]
PARENTS = 32


def queue_of(adapter: Any, iterator: Any) -> Queue | None:
    """Return a function that counts the ready batches of a pass, None if they cannot be counted."""
    candidates = (_enqueuer(adapter), *map(_prefetch_of, _chain(iterator)))
    queue = next((found for found in candidates if found is not None), None)
    return _careful(queue) if queue is not None else None


def watch(source: Any) -> Callable[[], Any]:
    """Return a function that returns the newest iterator over this source, None before the first.

    Keras's data adapters hide the iterators that they make. The object gets a class derived from its own; a source that
    does not allow it is not watched.
    """
    made: list[Any] = [None]
    try:

        class Watched(type(source)):  # type: ignore[misc]
            def __iter__(self) -> Any:
                made[0] = super().__iter__()
                return made[0]

        source.__class__ = Watched
    except (TypeError, AttributeError):
        pass
    return lambda: made[0]


def _careful(queue: Queue) -> Queue:
    """Return the function without errors of objects that change meanwhile, or are not as expected."""

    def careful() -> int | None:
        try:
            return queue()
        except Exception:  # noqa: BLE001 - private parts of other libraries, read while their threads change them
            return None

    return careful


def _enqueuer(adapter: Any) -> Queue | None:
    """Count the finished tasks of Keras's `OrderedEnqueuer`."""
    enqueuer = getattr(adapter, "enqueuer", None)
    if enqueuer is None:
        return None
    return lambda: enqueuer.ready_queue.qsize() + sum(one.ready() for one in list(enqueuer.future_queue.queue))


def _chain(iterator: Any) -> Iterator[Any]:
    """Yield an iterator, and those that it reads from."""
    for _ in range(PARENTS):
        if iterator is None:
            return
        yield iterator
        inside = getattr(getattr(iterator, "_dataset_fetcher", None), "dataset_iter", None)
        iterator = inside if inside is not None else _attribute(iterator, "_iterator", "_parent", "_inner_iter")


def _attribute(thing: Any, *names: str) -> Any:
    for name in names:
        try:
            found = getattr(thing, name, None)
        except Exception:  # noqa: BLE001, S112 - a property of another library
            continue
        if found is not None:
            return found
    return None


def _prefetch_of(iterator: Any) -> Queue | None:
    if hasattr(iterator, "_task_info") and hasattr(iterator, "_worker_result_queue"):
        return lambda: iterator._data_queue.qsize() + sum(len(task) == 2 for task in list(iterator._task_info.values()))
    buffer = getattr(iterator, "_buffer", None)
    if buffer is None:
        return None
    if hasattr(buffer, "qsize"):
        return lambda: int(buffer.qsize())
    return lambda: sum(one.done() if hasattr(one, "done") else 1 for one in list(iterator._buffer or ()))

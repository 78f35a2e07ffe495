"""The number of ready batches in the queues of other libraries, on objects with the same parts."""

from __future__ import annotations

from collections import deque
from queue import Queue
from types import SimpleNamespace
from typing import Any

from keras_matrix.runner.cell.piped.timers import queue_of, watch


def done(is_done: bool) -> Any:
    return SimpleNamespace(ready=lambda: is_done, done=lambda: is_done)


def count(adapter: Any, iterator: Any) -> int | None:
    queue = queue_of(adapter, iterator)
    return queue() if queue is not None else None


def test_finished_tasks_of_an_enqueuer_are_ready() -> None:
    tasks: Queue[Any] = Queue()
    for is_done in (True, False, True):
        tasks.put(done(is_done))
    enqueuer = SimpleNamespace(ready_queue=Queue(), future_queue=tasks)
    enqueuer.ready_queue.put("batch")
    assert count(SimpleNamespace(enqueuer=enqueuer), None) == 3


def test_results_of_workers_of_a_loader_are_ready() -> None:
    results: Queue[Any] = Queue()
    results.put("batch")
    iterator = SimpleNamespace(_task_info={0: (1,), 1: (0, "batch")}, _worker_result_queue=results, _data_queue=results)
    assert count(SimpleNamespace(enqueuer=None), iterator) == 2


def test_buffer_of_a_prefetch_behind_other_iterators_is_found() -> None:
    prefetch = SimpleNamespace(_buffer=deque([done(True), done(False)]))
    mapped = SimpleNamespace(_parent=SimpleNamespace(_parent=prefetch))
    fetcher = SimpleNamespace(_dataset_fetcher=SimpleNamespace(dataset_iter=mapped))
    assert count(None, fetcher) == 1


def test_source_without_a_known_queue_has_no_count() -> None:
    assert queue_of(SimpleNamespace(), iter(())) is None


def test_queue_that_fails_while_it_is_read_is_unknown() -> None:
    broken = SimpleNamespace(_buffer=deque([object()]))
    broken._buffer[0] = SimpleNamespace(done=lambda: 1 / 0)
    assert count(None, broken) is None


def test_newest_iterator_over_a_watched_source_is_known() -> None:
    class Source:
        def __iter__(self) -> Any:
            return iter([1, 2])

    source = Source()
    newest = watch(source)
    assert newest() is None
    made = iter(source)
    assert (newest() is made, list(made), isinstance(source, Source)) == (True, [1, 2], True)


def test_source_that_cannot_be_watched_is_left_as_it_is() -> None:
    assert watch([1, 2])() is None

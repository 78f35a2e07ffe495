"""The marks of steps and of waits for input in a profile, on a profiler that notes them."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import pytest

from keras_matrix.runner.cell.piped.stream import StreamAdapter
from keras_matrix.runner.cell.tensorboard import StepMarks

pytestmark = pytest.mark.process  # imports Keras


class Noting:
    """A profiler that notes the begin and the end of each mark."""

    def __init__(self) -> None:
        self.calls: list[str] = []

    @contextmanager
    def mark(self, name: str) -> Iterator[None]:
        self.calls.append(f"{name} begins")
        yield
        self.calls.append(f"{name} ends")

    def step(self, number: int) -> Any:
        return self.mark(f"step {number}")


WAIT = ["IteratorGetNext begins", "IteratorGetNext ends"]


def test_step_begins_when_its_batch_is_drawn_before_it() -> None:
    profiler: Any = Noting()
    marks = StepMarks(profiler)
    batches = iter(marks.source(iter("ab")))
    marks.on_epoch_begin(0)
    for number in range(2):
        next(batches)
        marks.on_train_batch_begin(number)
        marks.on_train_batch_end(number)
    marks.on_epoch_end(0)
    assert profiler.calls == ["step 1 begins", *WAIT, "step 1 ends", "step 2 begins", *WAIT, "step 2 ends"]


def test_batch_drawn_within_the_step_is_part_of_it() -> None:
    profiler: Any = Noting()
    marks = StepMarks(profiler)
    adapter = marks.source(StreamAdapter(iter("ab"), 1))
    marks.on_epoch_begin(0)
    marks.on_train_batch_begin(0)
    next(iter(adapter.get_numpy_iterator()))
    marks.on_train_batch_end(0)
    assert profiler.calls == ["step 1 begins", *WAIT, "step 1 ends"]


def test_batches_that_keras_reads_before_an_epoch_are_no_step() -> None:
    profiler: Any = Noting()
    marks = StepMarks(profiler)
    assert (next(marks.source(iter("ab"))), profiler.calls) == ("a", [])


def test_data_set_that_a_compiled_step_reads_is_unchanged() -> None:
    profiler: Any = Noting()
    marks, data_set = StepMarks(profiler), object()
    adapter = StreamAdapter((), 1, dataset=data_set)
    assert (marks.source(data_set), marks.source(adapter)) == (data_set, adapter)

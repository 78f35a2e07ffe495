"""A stream of batches over several calls of `fit`, its timers, and the joined work of these calls."""

from __future__ import annotations

import time
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import keras
import numpy as np
import pytest

from keras_matrix.records.instruments.work_done import WorkStretch
from keras_matrix.runner.cell.piped.stream import PythonStream
from keras_matrix.runner.cell.piped.timers import StreamRequest, Timers, hundredths
from keras_matrix.runner.cell.piped.training import bad_samples, merged, until_pass

pytestmark = pytest.mark.process  # imports Keras


class Batches(keras.utils.PyDataset):  # type: ignore[misc]
    """Batches of two samples with their number, the last one of a pass with `last` samples."""

    def __init__(self, count: int, last: int = 2, stages: bool = False) -> None:
        super().__init__()
        self.count, self.last, self.stages, self.passes = count, last, stages, 0

    def __len__(self) -> int:
        return self.count

    def __getitem__(self, index: int) -> tuple[Any, ...]:
        x = np.full((self.last if index == self.count - 1 else 2, 1), index)
        return (x, x, np.arange(6.0)) if self.stages else (x, x)

    def on_epoch_end(self) -> None:
        self.passes += 1


def stream(source: Any, ahead: int = 0, **changes: Any) -> PythonStream:
    request = StreamRequest(None, source, 2, **changes)
    return PythonStream(request, lambda adapter: adapter.get_numpy_iterator(), ahead)


def numbers(made: PythonStream, count: int) -> list[int]:
    return [int(next(made)[0][0, 0]) for _ in range(count)]


def test_passes_follow_each_other_with_their_hooks_over_all_calls() -> None:
    source = Batches(3)
    made = stream(source)
    assert (numbers(made, 4), source.passes) == ([0, 1, 2, 0], 1)
    feed = made.feed(4)
    assert (numbers(made, 4), feed.drawn(), source.passes) == ([1, 2, 0, 1], 4, 2)


def test_dropped_batches_are_not_those_of_a_call() -> None:
    made = stream(Batches(5))
    made.drop(2)
    feed = made.feed(1)
    assert (numbers(made, 1), feed.drawn()) == ([2], 1)


def test_batch_that_keras_read_ahead_is_handed_out_again_in_the_next_call() -> None:
    made = stream(Batches(9), ahead=1)
    made.feed(2)
    assert numbers(made, 3) == [0, 1, 2]
    feed = made.feed(2)
    assert (numbers(made, 3), feed.drawn()) == ([2, 3, 4], 3)
    made.feed(2)
    made.drop(1)
    made.feed(1)
    assert numbers(made, 1) == [6]


def test_batches_that_are_handed_out_again_are_taken_from_the_source_once() -> None:
    made = stream(Batches(9), ahead=1)
    made.feed(2)
    numbers(made, 3)
    made.feed(2)
    numbers(made, 2)
    made.drop(4)
    assert made.taken == 4 + 4


@pytest.mark.parametrize(
    ("at", "steps", "in_pass", "expected"),
    [
        (0, 60, 60, 0),
        (7, 60, 60, 53),
        (67, 60, 60, 53),
        (7, 20, 60, 0),
        (40, 20, 60, 0),
        (41, 20, 60, 19),
        (28, 1500, 1500, 0),  # 28 of 1500 files are read twice: less than a pass would cost
        (31, 1500, 1500, 1469),
        (7, 61, 60, 0),  # does not fit into a pass
        (7, 60, None, 0),
    ],
)
def test_cold_epoch_that_fits_into_a_pass_does_not_reach_far_into_the_next(
    at: int, steps: int, in_pass: int | None, expected: int
) -> None:
    assert until_pass(at, steps, in_pass) == expected


def test_partial_batches_are_left_out_on_request() -> None:
    assert numbers(stream(Batches(3, last=1), drops_partial=True), 4) == [0, 1, 0, 1]


def test_source_without_a_full_batch_is_an_error() -> None:
    with pytest.raises(ValueError, match="no batch of 2 samples in a full pass"):
        next(stream(Batches(1, last=1), drops_partial=True))


def test_timers_remove_the_stages_and_sum_them_in_recorded_epochs_only() -> None:
    ticks = iter(range(100))
    timers = Timers(has_stages=True, clock=lambda: float(next(ticks)))
    made = stream(Batches(4, stages=True), timers=timers)
    assert len(next(made)) == 2
    timers.begin()
    assert [len(next(made)) for _ in range(3)] == [2, 2, 2]
    timers.end()
    next(made)
    assert (timers.wait_times_s, timers.batches, timers.stages.tolist()) == ([3.0], 3, [0, 3, 6, 9, 12, 15])
    assert (timers.queue_course(), timers.own_cpu_time_s(0)) == ([], 0.0)


def test_cost_of_the_timers_is_that_of_their_own_thread(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(time, "process_time", lambda: 1e6 * time.perf_counter())  # as with many busy threads
    assert 0 <= Timers().own_cpu_time_s(1) < 0.1


def test_course_of_a_queue_has_the_mean_of_each_hundredth_of_the_epochs() -> None:
    assert hundredths([[], []]) == []
    assert hundredths([[4, 0], [2, 2]]) == [3.0] * 50 + [1.0] * 50
    assert hundredths([list(range(200))])[:2] == [0.5, 2.5]


def test_work_of_the_calls_of_all_epochs_is_joined() -> None:
    parts = [
        WorkStretch("epochs", 4, 1, [4], [32], [0], batches_drawn=4, lookahead=4, updates_outside=0),
        WorkStretch("epochs", 4, 1, [3], [None], [1], batches_drawn=5, lookahead=4, updates_outside=2),
    ]
    joined = WorkStretch("epochs", 4, 2, [4, 3], [32, None], [0, 1], batches_drawn=9, lookahead=8, updates_outside=2)
    assert merged(parts) == joined


def test_each_replaced_sample_is_counted_once(tmp_path: Path) -> None:
    job: Any = SimpleNamespace(folder=str(tmp_path))
    assert (bad_samples(job).count, bad_samples(job).names) == (0, [])
    (tmp_path / "bad_samples.txt").write_text("".join(f"{index % 12}.jpg\n" for index in range(50)))
    assert (bad_samples(job).count, len(bad_samples(job).names)) == (12, 10)

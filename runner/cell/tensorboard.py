"""A cell's files for TensorBoard, written after all measurements: the model's description, a profile of few steps.

The runner writes the rest from the record. Any failure, such as a profiler that is missing or ends the process, or a
full disk, is reported in one line and has no other effect: figures are published before (`publish_figures`), and
incomplete files are removed. This module is imported only if it is needed.

Keras's `fit` has no step markers: without them XProf's input-pipeline analyzer reports "No step time measured". A step
begins when its batch is drawn or, on TensorFlow, where the compiled step draws it, when Keras calls the step.

A module of its own: it is imported only if files for TensorBoard are requested.
"""

from __future__ import annotations

import shutil
import traceback
from collections.abc import Callable, Sequence
from contextlib import ExitStack
from typing import Any

import keras

from keras_matrix.models.profiling import Profiler, load, recorded
from keras_matrix.records import files
from keras_matrix.records.traces.request import WAIT_FOR_INPUT
from keras_matrix.runner.cell.job import Job, in_a_line
from keras_matrix.runner.cell.tracing import with_draws

PROFILED_STEPS = 5
WORDS_CHARACTERS = 160
ENDED = "the process ended while it wrote this"


def write(job: Job, describe: Callable[[], str] | None, run: Callable[[int], None] | None) -> None:
    """Write the description that `describe` returns, and a profile of `run`, which takes a number of steps.

    A function is None if this cell does not have that part.
    """
    problems: list[str] = []
    if describe is not None:
        problems += _written(job, problems, "graph", lambda: files.replace(job.model_path, describe()))
    if run is not None:
        problems += _written(job, problems, "profile", lambda: _profiled(job, run))


def _written(job: Job, problems: Sequence[str], part: str, write_it: Callable[[], None]) -> list[str]:
    """Write one part; return its problem. Problems are stored before and after, in case the process ends."""
    _store(job, [*problems, f"{part}: {ENDED}"])
    new_problems = _tried(part, write_it)
    _store(job, [*problems, *new_problems])
    return new_problems


def _store(job: Job, problems: Sequence[str]) -> None:
    _tried("undone", lambda: files.replace(job.undone_path, "\n".join(problems)))


def _profiled(job: Job, run: Callable[[int], None]) -> None:
    profiler = load(job.settings.backend)
    job.profile_dir.mkdir()
    try:
        with recorded(profiler, job.profile_dir / f"trace{profiler.ending}"):
            run(PROFILED_STEPS)
    except BaseException:
        shutil.rmtree(job.profile_dir, ignore_errors=True)
        raise


def _tried(part: str, write_it: Callable[[], None]) -> list[str]:
    """Write a part; return in one line why it could not be written."""
    try:
        write_it()
    except Exception as error:  # noqa: BLE001 - any error of a backend: the measurement is valid without this
        traceback.print_exc()
        return [f"{part}: {in_a_line(error)}"[:WORDS_CHARACTERS]]
    return []


class StepMarks(keras.callbacks.Callback):  # type: ignore[misc]
    """Marks each step of the calls of `fit` that it is a callback of. Keras waits for each step to end."""

    def __init__(self, profiler: Profiler) -> None:
        super().__init__()
        self._profiler = profiler
        self._number = 0
        self._in_epoch = False
        self._step: ExitStack | None = None

    def source(self, source: Any) -> Any:
        """Return the source with a mark around the draw of each batch."""
        return with_draws(source, self._draw)

    def on_epoch_begin(self, epoch: int, logs: Any = None) -> None:
        self._in_epoch = True

    def on_train_batch_begin(self, batch: int, logs: Any = None) -> None:
        self._begin()

    def on_train_batch_end(self, batch: int, logs: Any = None) -> None:
        if self._step is not None:
            self._step.close()
            self._step = None

    def on_epoch_end(self, epoch: int, logs: Any = None) -> None:
        self._in_epoch = False
        self.on_train_batch_end(epoch)

    def _draw(self, draw: Callable[[], Any]) -> Any:
        if not self._in_epoch:  # Keras reads batches of a generator before it trains
            return draw()
        self._begin()
        with self._profiler.mark(WAIT_FOR_INPUT):
            return draw()

    def _begin(self) -> None:
        if self._step is None:
            self._number += 1
            self._step = ExitStack()
            self._step.enter_context(self._profiler.step(self._number))

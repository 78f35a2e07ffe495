"""A cell's files for TensorBoard, written after all measurements: the model's description, a profile of few steps.

The runner writes the rest from the record. Any failure, such as a profiler that is missing or ends the process, or a
full disk, is reported in one line and has no other effect: figures are published before (`publish_figures`), and
incomplete files are removed. This module is imported only if it is needed.
"""

from __future__ import annotations

import shutil
import traceback
from collections.abc import Callable, Sequence

from keras_matrix.models.profiling import load, recorded
from keras_matrix.records import files
from keras_matrix.runner.cell.job import Job, in_a_line

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
    found = _tried(part, write_it)
    _store(job, [*problems, *found])
    return found


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

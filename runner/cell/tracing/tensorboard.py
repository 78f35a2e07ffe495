"""What a cell leaves for TensorBoard once everything was measured: its model's description, and a profile of few steps.

The runner writes the rest from the record. Promise: whatever goes wrong here, a profiler that is missing or ends the
process, a disk that is full, is told in one line and costs nothing else: figures are published before
(`publish_figures`), and of what failed no part stays. Nothing here is imported where it was not asked for.
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
ENDED = "the process ended while it left this"


def leave(job: Job, describe: Callable[[], str] | None, run: Callable[[int], None] | None) -> None:
    """Leave the description that `describe` returns, and a profile of `run`, which takes a number of steps.

    None for what this cell has not.
    """
    told: list[str] = []
    if describe is not None:
        told += _left(job, told, "graph", lambda: files.replace(job.model_path, describe()))
    if run is not None:
        told += _left(job, told, "profile", lambda: _profiled(job, run))


def _left(job: Job, told: Sequence[str], what: str, leave_it: Callable[[], None]) -> list[str]:
    """Leave one part; return why it could not be. What could not is noted at each moment, in case it is the last."""
    _note(job, [*told, f"{what}: {ENDED}"])
    found = _tried(what, leave_it)
    _note(job, [*told, *found])
    return found


def _note(job: Job, told: Sequence[str]) -> None:
    _tried("undone", lambda: files.replace(job.undone_path, "\n".join(told)))


def _profiled(job: Job, run: Callable[[int], None]) -> None:
    profiler = load(job.settings.backend)
    job.profile_dir.mkdir()
    try:
        with recorded(profiler, job.profile_dir / f"trace{profiler.ending}"):
            run(PROFILED_STEPS)
    except BaseException:
        shutil.rmtree(job.profile_dir, ignore_errors=True)
        raise


def _tried(what: str, leave_it: Callable[[], None]) -> list[str]:
    """Do it; return in one line why it could not be done."""
    try:
        leave_it()
    except Exception as error:  # noqa: BLE001 - whatever a backend raises: the measurement stands without this
        traceback.print_exc()
        return [f"{what}: {in_a_line(error)}"[:WORDS_CHARACTERS]]
    return []

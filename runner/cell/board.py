"""What a cell leaves for TensorBoard once everything was measured: its model's description, and a profile of few steps.

The runner writes the rest from the record. Promise: whatever goes wrong here, a profiler that is missing or a disk that
is full, is told in one line and costs nothing else; nothing here is imported where it was not asked for.
"""

from __future__ import annotations

import traceback
from collections.abc import Callable

from runner.cell.backends import Plug
from runner.cell.job import Job, publish_text

PROFILED_STEPS = 5
WORDS_CHARACTERS = 160


def leave(job: Job, plug: Plug, describe: Callable[[], str] | None, run: Callable[[int], None] | None) -> None:
    """Leave the description that `describe` returns, and a profile of `run`, which takes a number of steps.

    None for what this cell has not.
    """
    told = []
    if describe is not None:
        told += _tried("graph", lambda: publish_text(job.model_path, describe()))
    if run is not None:
        told += _tried("profile", lambda: _profiled(job, plug, run))
    if told:
        _tried("undone", lambda: publish_text(job.undone_path, "\n".join(told)))


def _profiled(job: Job, plug: Plug, run: Callable[[int], None]) -> None:
    job.profile_dir.mkdir()
    plug.profile(str(job.profile_dir), lambda: run(PROFILED_STEPS))


def _tried(what: str, leave_it: Callable[[], None]) -> list[str]:
    """Do it; return in one line why it could not be done."""
    try:
        leave_it()
    except Exception as error:  # noqa: BLE001 - whatever a backend raises: the measurement stands without this
        traceback.print_exc()
        words = str(error).strip().partition("\n")[0]
        return [f"{what}: {type(error).__name__}: {words}"[:WORDS_CHARACTERS]]
    return []

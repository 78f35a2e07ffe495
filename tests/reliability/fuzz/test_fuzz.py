"""A short fuzzing of every target, and the inputs that once failed: none ends with a traceback."""

from __future__ import annotations

import threading
from pathlib import Path

import pytest

from tests.reliability.fuzz import engine
from tests.reliability.fuzz.target import corpus, load, names

SEED = 20_261_127
WITH_PROCESSES = ("commands", "http")  # they take more than a second: a server, or commands of the product
PURE = [name for name in names() if name not in WITH_PROCESSES]
FOR_EACH = 40


def replayed(name: str, folder: Path) -> list[str]:
    """Check the stored inputs of a target; return those that fail."""
    failed = []
    with load(name).checking(folder) as check:
        for path in corpus(name):
            try:
                with engine.limited(engine.HANG_S):
                    check(path.read_bytes())
            except Exception as error:  # noqa: BLE001 - any exception is a failure, which the caller asserts
                failed.append(f"{path.name}: {error!r}")
    return failed


@pytest.mark.parametrize("name", PURE)
def test_no_stored_input_that_once_failed_fails_again(name: str, tmp_path: Path) -> None:
    """Mutation: `_work_problem` of runner/measure/judge.py returns None for any counts."""
    assert threading.current_thread() is threading.main_thread()
    assert replayed(name, tmp_path) == []

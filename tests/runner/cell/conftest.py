"""The executor of the tests that run cells as real processes."""

from __future__ import annotations

import uuid
from collections.abc import Iterator

import pytest

from keras_matrix.runner.executors.process.executor import ProcessExecutor


@pytest.fixture(scope="session")
def executor() -> Iterator[ProcessExecutor]:
    """One executor, whose server of each backend forks every cell: a server takes 2 s to start."""
    made = ProcessExecutor(start="fork", mark=uuid.uuid4().hex)
    yield made
    made.close()

"""The executor of the tests that run cells as real processes."""

from __future__ import annotations

import uuid
from collections.abc import Iterator

import pytest

from keras_matrix.runner.executors import Executor
from keras_matrix.runner.executors.by_backend import ByBackend
from keras_matrix.runner.executors.process.executor import ProcessExecutor
from keras_matrix.runner.executors.process.interpreter import of_environment
from tests.backends import APART


@pytest.fixture(scope="session")
def executor() -> Iterator[Executor]:
    """One executor, whose server of each backend forks every cell: a server takes 2 s to start.

    Cells of a backend that has an environment of its own run there.
    """
    mark = uuid.uuid4().hex
    environments = {name: path for name, path in APART.items() if (path / "bin" / "python").exists()}
    apart = {
        name: ProcessExecutor(start="fork", mark=mark, interpreter=of_environment(path, "--python"))
        for name, path in environments.items()
    }
    made = ByBackend(ProcessExecutor(start="fork", mark=mark), apart)
    yield made
    made.close()

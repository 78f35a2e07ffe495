"""The fixture `keras_matrix` for a project's own tests, whose conftest.py names this module: it imports nothing."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

if TYPE_CHECKING:
    from pathlib import Path

    from keras_matrix.runner.api.measuring import Checker


@pytest.fixture
def keras_matrix(request: pytest.FixtureRequest, tmp_path: Path) -> Checker:
    """`keras_matrix.check(model, data, faster_than=baseline)` passes if it is faster, fails if slower, else skips."""
    from keras_matrix.runner.api.measuring import Checker

    return Checker(request.node.nodeid, tmp_path)

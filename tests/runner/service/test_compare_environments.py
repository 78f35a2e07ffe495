"""An environment that cannot run the cells is refused before anything is measured."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest

from keras_matrix.runner.errors import UsageError
from keras_matrix.runner.service.compare import _check_packages
from tests.conftest import make_settings


@pytest.mark.parametrize(("version", "is_refused"), [("2.15.0", True), ("3.5.0", False), ("3.15.1", False)])
def test_environment_with_keras_2_is_refused(version: str, is_refused: bool) -> None:
    environment: Any = SimpleNamespace(
        python="/old/bin/python", absent=lambda packages: [], versions=lambda: {"keras": version}
    )
    cells: Any = [SimpleNamespace(settings=make_settings())]
    if not is_refused:
        _check_packages("--base-env", environment, cells)
        return
    with pytest.raises(UsageError) as raised:
        _check_packages("--base-env", environment, cells)
    expected = "--base-env: /old/bin/python has Keras 2.15.0, whose models and backends differ; install Keras 3 there"
    assert str(raised.value) == expected

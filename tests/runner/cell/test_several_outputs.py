"""A model with several outputs, Segment Anything's masks and their scores, as a real process."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from keras_matrix.records.identity import cell_id
from keras_matrix.records.schema import MEASURED
from keras_matrix.runner.executors.process.executor import ProcessExecutor
from tests.conftest import make_settings
from tests.real_cells import real_cell


@pytest.mark.nightly(beyond=1)
@pytest.mark.process
@pytest.mark.parametrize("phase", ["fit", "predict"])
def test_model_with_two_outputs_is_measured(executor: ProcessExecutor, tmp_path: Path, phase: str) -> None:
    """Mutation: `sam_samples` returns the masks without their scores."""
    fixed: dict[str, Any] = {"batch_size": 2, "samples": 4, "epochs": 2, "discard": 1, "steps_per_epoch": 2}
    params = {"size": "tiny", "image_size": 0, "part": "all"}
    wanted = make_settings(backend="torch", workload="sam", params=params, phase=phase, **fixed)
    record = real_cell(executor, tmp_path / cell_id(wanted), wanted, 2)
    assert record.status in MEASURED, record.reason
    assert record.resolved.parameters == 86_348

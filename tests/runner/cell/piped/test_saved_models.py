"""The model that a cell of `finetune` saves after its epochs: real processes, and the order of what happens."""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from keras_matrix.runner.cell import phases
from keras_matrix.runner.cell.phases import Training
from keras_matrix.runner.cell.work import Ledger
from keras_matrix.runner.executors.process.executor import ProcessExecutor
from tests.models.inputs.pipelines import jpegs
from tests.runner.cell.piped.finetune_cell import DONE, measured


@pytest.fixture
def images(tmp_path: Path) -> Path:
    return jpegs.folder(tmp_path / "images")


@pytest.mark.process
def test_model_that_cannot_be_saved_costs_no_figure(executor: ProcessExecutor, images: Path, tmp_path: Path) -> None:
    (tmp_path / "saved" / "jax.keras").mkdir(parents=True)
    record = measured(executor, images, "jax", params={"checkpoint_path": str(tmp_path / "saved")})
    assert record.status in DONE, (record.reason, record.evidence.output_tail)
    assert len(record.times.epoch_times_s) == 1
    (warning,) = (one for one in record.warnings if one.startswith("not_saved"))
    assert warning.startswith("not_saved: the trained model was not saved: IsADirectoryError: ")


@pytest.mark.process
@pytest.mark.parametrize("own", [{"input_timers": True}, {"page_cache": "cold"}, {"feed": "host_fed"}])
def test_arms_of_a_stall_analysis_do_not_replace_the_model_of_a_usual_cell(
    executor: ProcessExecutor, images: Path, tmp_path: Path, own: dict[str, Any]
) -> None:
    record = measured(executor, images, "jax", params={"checkpoint_path": str(tmp_path / "saved")}, **own)
    assert record.status in DONE, (record.reason, record.evidence.output_tail)
    assert list((tmp_path / "saved").iterdir()) == []


class Unchanged(Training):
    """Training whose epochs changed no weight; it notes further steps."""

    def __init__(self) -> None:
        self.model, self.steps_a_call = SimpleNamespace(optimizer=SimpleNamespace(learning_rate=0.1)), 1
        self.ledger, self.rates = Ledger(before=phases.WeightChecksums.of(self.model)), list[float]()
        self._fed = lambda _: None  # type: ignore[assignment, return-value]

    def again(self, *_: Any) -> None:
        self.rates.append(self.model.optimizer.learning_rate)


def test_final_weights_are_taken_without_the_step_that_spoils_them(monkeypatch: pytest.MonkeyPatch) -> None:
    same = SimpleNamespace(changed_since=lambda _: 1)
    monkeypatch.setattr(phases, "WeightChecksums", SimpleNamespace(of=lambda _: same))
    training = Unchanged()
    training.finish()
    assert (training.rates, training.model.optimizer.learning_rate) == ([], 0.1)
    training.try_high_rate()
    assert (training.rates, training.ledger.changed_at_high_rate) == ([phases.HIGH_RATE], True)

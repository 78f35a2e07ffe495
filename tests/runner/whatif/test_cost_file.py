"""A cost model is applied to the device of a trace: one that it was learned on, or a new one with measured peaks."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from keras_matrix.records.codec import dumps
from keras_matrix.runner.whatif import cost_data
from tests.analysis.whatif.cost.fake_machine import FASTER, elementwise_s, graph, node, usual_model
from tests.conftest import MACHINE
from tests.synthetic_peaks import make_peaks

ADDED = node("aten::add", 1, bytes=1 << 24)


@pytest.fixture
def file(tmp_path: Path) -> Path:
    path = tmp_path / "model.json"
    path.write_text(dumps(usual_model()))
    return path


def test_a_known_device_is_predicted_as_it_was_learned(file: Path) -> None:
    found = cost_data.applied(file, graph().header, None)
    assert found.basis == f"{file}: learned on torch on Fake CPU, 2 cores"
    assert found.predict(ADDED) == pytest.approx(elementwise_s(1 << 24), rel=0.1)


def test_a_new_device_is_predicted_from_its_measured_peaks(file: Path) -> None:
    machine = replace(MACHINE, cpu_model=FASTER.product)
    found = cost_data.applied(file, graph(FASTER).header, make_peaks(machine))
    assert found.basis == f"{file}: torch on Faster CPU, 2 cores is new to the model, predicted from its peaks"
    # The peaks of this machine state 20 GB/s of memory.
    assert found.predict(ADDED) == pytest.approx(5e-6 + (1 << 24) / 20e9, rel=0.1)

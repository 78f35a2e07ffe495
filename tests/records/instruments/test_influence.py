"""The stored influence of other devices."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

from keras_matrix.records.instruments import influence
from keras_matrix.records.instruments.influence import Influence

ONE = Influence("host", "gpu", 2, "0" * 16, "jax", "mnist_mlp", 1.01, 1.0, 1.02, 6, "run")


def test_what_is_stored_is_loaded(tmp_path: Path) -> None:
    influence.keep(tmp_path, [ONE, replace(ONE, host_id="other")])
    assert set(influence.load([tmp_path])) == {ONE, replace(ONE, host_id="other")}


def test_a_new_measurement_replaces_that_of_the_same_cell_and_number_of_devices(tmp_path: Path) -> None:
    influence.keep(tmp_path, [ONE, replace(ONE, devices=4)])
    influence.keep(tmp_path, [replace(ONE, ratio=1.5)])
    assert set(influence.load([tmp_path])) == {replace(ONE, ratio=1.5), replace(ONE, devices=4)}


def test_a_damaged_file_is_left_out(tmp_path: Path) -> None:
    influence.keep(tmp_path, [ONE])
    (tmp_path / influence.FOLDER / "broken.json").write_text("{")
    assert influence.load([tmp_path, tmp_path / "missing"]) == (ONE,)

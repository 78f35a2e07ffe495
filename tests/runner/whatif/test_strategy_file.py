"""Cells written as a matrix file are the same cells when the file is read again."""

from __future__ import annotations

from pathlib import Path

from keras_matrix.analysis.whatif.search import FamilyTrajectories
from keras_matrix.analysis.whatif.trajectory import Strategy
from keras_matrix.records.identity import cell_id
from keras_matrix.records.settings import Settings
from keras_matrix.runner.matrix.reader import expand, parse
from keras_matrix.runner.whatif.strategy_file import ChosenCell, possible, problem_of, with_changes, written

FC = """\
version: 1
backends: [torch]
cells:
  - {workload: fc, mode: fc_data, workers: 2, level: 12, network: 200mbit, weight_size: 512, steps_per_epoch: 20}
"""
MIXED = """\
version: 1
backends: [torch, jax]
cells:
  - {workload: mnist_mlp, batch_size: 64, epochs: 6, threads: 2, precision: mixed_bfloat16}
  - {workload: "my.models:build", params: {width: 0.000001, name: "on", layers: 3}, feed: host_fed, batch_size: 8}
"""


def cells(text: str) -> list[Settings]:
    return [cell.settings for cell in expand(parse(Path("m.yaml"), text.encode()))]


def test_base_and_changed_cell_are_the_cells_of_the_file() -> None:
    (base,) = cells(FC)
    best = with_changes(base, {"buckets": "3,5,5", "batch_size": 256})
    strategy = written([ChosenCell(base, ("baseline",)), ChosenCell(best, ("best",))], ["Written by a test."])
    assert [cell_id(base), cell_id(best)] == [cell.cell_id for cell in strategy.cells]
    assert [base, best] == [cell.settings for cell in strategy.cells]
    assert [base, best] == cells(strategy.text)
    assert strategy.text.startswith("# Written by a test.\nversion: 1\n")
    assert '    buckets: "3,5,5"\n' in strategy.text
    assert {5} == {cell.repeats for cell in strategy.cells}


def test_any_cell_can_be_written() -> None:
    wanted = cells(MIXED)
    strategy = written([ChosenCell(one, ()) for one in wanted])
    assert wanted == [cell.settings for cell in strategy.cells]
    assert '      name: "on"\n' in strategy.text  # other readers of YAML take on for true


def test_settings_that_a_backend_does_not_have_are_named() -> None:
    (base,) = cells(FC.replace("torch", "jax").replace(", network: 200mbit", ""))
    assert problem_of(base) is None
    problem = problem_of(with_changes(base, {"bucket_cap_mb": 8.0}))
    assert problem is not None
    assert problem.startswith("bucket_cap_mb: must be 0 on jax, got 8")


def test_a_setting_without_effect_is_that_of_the_base() -> None:
    """One worker has no link: its cell is the same on every network."""
    (base,) = cells(FC)
    alone = with_changes(base, {"workers": 1})
    assert alone.params["network"] == "local"


def test_settings_that_no_cell_may_have_are_not_proposed() -> None:
    (base,) = cells(
        'version: 1\nbackends: [torch]\ncells: [{workload: fc, mode: fc_data, workers: 2, level: 3, overlap: "off"}]'
    )
    strategies = tuple(
        Strategy((f"tensor_fusion={name}",), changes, 1.0, 1.0, 1.0)
        for name, changes in (("2,2", {"buckets": "2,2"}), ("4,", {"buckets": "4", "overlap": "on"}), ("no", None))
    )
    first, second, third = possible(FamilyTrajectories((), strategies), base).strategies
    assert first.settings is None
    assert "with overlap off" in first.reason
    assert (second, third) == strategies[1:]

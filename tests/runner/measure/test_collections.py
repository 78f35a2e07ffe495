"""Python's garbage collections in a runner: between comparisons, and as the process had them afterwards."""

from __future__ import annotations

import gc
from pathlib import Path

import pytest

from keras_matrix.runner.cli.main import main
from keras_matrix.runner.measure.seams import Seams
from tests.fakes.executor import FakeExecutor
from tests.unit_tier import frozen_count

MATRIX = """\
version: 1
defaults: {repeats: 2, steps_per_epoch: 4}
backends: [jax, torch]
cells:
  - {workload: mnist_mlp, batch_size: [32, 64, 128]}
"""


@pytest.fixture
def matrix(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A matrix of three comparisons, in the working folder."""
    monkeypatch.chdir(tmp_path)
    (tmp_path / "matrix.yaml").write_text(MATRIX)


def test_objects_that_a_process_excluded_from_collections_stay_excluded(matrix: None) -> None:
    """Mutation: `_short_collections` always ends with `gc.unfreeze()`."""
    before = frozen_count()
    assert before > 0  # those that existed when the tests were collected
    assert main([], Seams(executor=FakeExecutor())) == 0
    assert frozen_count() > before / 2  # some of them were deleted


def test_garbage_is_collected_after_each_comparison_of_each_block(
    matrix: None, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Mutation: `Scheduler.block` collects nothing."""
    executor, collected = FakeExecutor(), list[int]()
    for name in ("freeze", "unfreeze"):
        monkeypatch.setattr(gc, name, lambda: None)
    monkeypatch.setattr(gc, "get_freeze_count", lambda: 0)
    monkeypatch.setattr(gc, "collect", lambda generation=2: collected.append(len(executor.jobs)) or 0)
    assert main([], Seams(executor=executor)) == 0
    assert sorted(set(collected) - {0}) == [2, 4, 6, 8, 10, 12]


def test_process_that_excluded_objects_itself_has_its_own_collections_alone(
    matrix: None, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Mutation: `_short_collections` yields `gc.collect` always, which takes long in a process with many objects."""
    executor, collected = FakeExecutor(), list[int]()
    monkeypatch.setattr(gc, "collect", lambda generation=2: collected.append(len(executor.jobs)) or 0)
    assert main([], Seams(executor=executor)) == 0
    assert set(collected) <= {0}

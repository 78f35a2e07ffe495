"""The key `stalls:` of an entry: the arms that replace it, and what is refused."""

from __future__ import annotations

from itertools import product
from pathlib import Path

import pytest

from keras_matrix.records.backends import TRAINING_BACKENDS
from keras_matrix.records.instruments.stall_arms import ArmName, arm_of
from keras_matrix.runner.matrix.overrides import Overrides
from keras_matrix.runner.matrix.reader import Cell, expand, load, parse

ROOT = Path(__file__).parents[3]


def cells(workload: str, *lines: str, defaults: str = "{}") -> list[Cell]:
    text = f"version: 1\ndefaults: {defaults}\nbackends: [jax, torch]\ncells:\n  - workload: {workload}\n"
    text += "".join(f"    {line}\n" for line in ("stalls: true", *lines))
    return expand(parse(Path("matrix.yaml"), text.encode()), Overrides())


@pytest.mark.parametrize("defaults", ["{}", "{page_cache: cold}", "{feed: host_fed}", "{input_timers: true}"])
def test_entry_is_replaced_by_its_five_arms_whatever_the_defaults_are(defaults: str) -> None:
    found = cells("finetune", defaults=defaults)
    assert [arm_of(one.settings) for one in found if one.settings.backend == "jax"] == list(ArmName)
    # All arms of both backends are one comparison.
    assert len(found) == 10
    assert len({one.together for one in found} - {""}) == 1


def test_each_point_of_an_entry_is_an_analysis_of_its_own() -> None:
    found = cells("finetune", "input_workers: [1, 2]")
    assert len({one.together for one in found}) == 2


def test_workload_of_a_user_is_also_timed_with_a_warm_page_cache() -> None:
    found = [one.settings for one in cells("mine:build") if one.settings.backend == "jax"]
    timed = {one.page_cache for one in found if arm_of(one) is ArmName.TIMED}
    assert (len(found), timed) == (6, {"warm", "cold"})


def test_feed_of_the_pipeline_may_be_written() -> None:
    assert len(cells("finetune", "feed: pipeline")) == 10


def test_shipped_matrix_of_inputs_has_three_formats_and_worker_counts_on_each_backend() -> None:
    found = [one.settings for one in expand(load(ROOT / "matrices" / "inputs.yaml"), Overrides())]
    points = [(one.backend, one.params["dataset_path"], one.params["input_workers"]) for one in found]
    assert sorted(points) == sorted(product(TRAINING_BACKENDS, ("images", "tfrecords", "array_records"), (0, 1, 2)))
    assert {(one.feed, one.params["base"]) for one in found} == {("pipeline", "timed_wait")}

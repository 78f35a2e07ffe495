"""The feed of workloads with an input pipeline, and the settings that need one."""

from __future__ import annotations

from pathlib import Path

import pytest

from keras_matrix.runner.matrix import catalog
from keras_matrix.runner.matrix.overrides import Overrides
from keras_matrix.runner.matrix.reader import Cell, expand, parse

CATALOG = catalog.load()


def cells(workload: str, *lines: str, defaults: str = "{}") -> list[Cell]:
    text = f"version: 1\ndefaults: {defaults}\nbackends: [jax]\ncells:\n  - workload: {workload}\n"
    text += "".join(f"    {line}\n" for line in lines)
    return expand(parse(Path("matrix.yaml"), text.encode(), CATALOG), Overrides())


def test_workload_with_a_pipeline_is_fed_by_it_unless_the_matrix_sets_another_feed() -> None:
    assert [cell.settings.feed for cell in cells("finetune")] == ["pipeline"]
    assert [cell.settings.feed for cell in cells("mnist_mlp")] == ["device_resident"]
    assert [cell.settings.feed for cell in cells("finetune", "feed: [host_fed, pipeline]")] == ["host_fed", "pipeline"]
    assert [cell.settings.feed for cell in cells("finetune", defaults="{feed: host_fed}")] == ["host_fed"]


def test_page_cache_and_timers_are_axes_of_a_pipeline() -> None:
    found = cells("finetune", "page_cache: [warm, cold]", "input_timers: [false, true]")
    assert [(one.settings.page_cache, one.settings.input_timers) for one in found] == [
        ("warm", False),
        ("warm", True),
        ("cold", False),
        ("cold", True),
    ]


def test_workload_of_a_user_may_have_a_pipeline() -> None:
    (cell,) = cells("mine:build", "feed: pipeline", "page_cache: cold")
    assert (cell.settings.feed, cell.settings.page_cache) == ("pipeline", "cold")


def test_catalog_with_an_unknown_feed_is_refused() -> None:
    entry = {"family": "f", "summary": "s", "batch_size": 1, "samples": 1, "data": ["synthetic"], "params": {}}
    with pytest.raises(ValueError, match="one: feed must be one of device_resident, host_fed, pipeline, got 'tube'"):
        catalog.parse({"version": 1, "workloads": {"one": {**entry, "feed": "tube"}}})

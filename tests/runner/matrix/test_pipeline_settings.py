"""The feed of workloads with an input pipeline, and the settings that need one."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from keras_matrix.runner.errors import MatrixError
from keras_matrix.runner.matrix import catalog
from keras_matrix.runner.matrix.overrides import Overrides
from keras_matrix.runner.matrix.reader import Cell, expand, parse

CATALOG = catalog.load()


def cells(workload: str, *lines: str, defaults: str = "{}") -> list[Cell]:
    text = f"version: 1\ndefaults: {defaults}\nbackends: [jax]\ncells:\n  - workload: {workload}\n"
    text += "".join(f"    {line}\n" for line in lines)
    return expand(parse(Path("matrix.yaml"), text.encode(), CATALOG), Overrides())


def problems(workload: str, *lines: str, defaults: str = "{}") -> list[str]:
    with pytest.raises(MatrixError) as raised:
        cells(workload, *lines, defaults=defaults)
    return [re.sub(r"^matrix\.yaml:", "", problem) for problem in raised.value.problems]


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


@pytest.mark.parametrize(
    ("workload", "lines", "expected"),
    [
        (
            "mnist_mlp",
            ("feed: [host_fed, pipeline]",),
            "6: cells[0].feed: must be device_resident or host_fed for mnist_mlp, got 'pipeline'",
        ),
        (
            "mnist_mlp",
            ("page_cache: cold",),
            "6: cells[0].page_cache: must be warm with feed: device_resident, which reads no files, got 'cold'",
        ),
        (
            "finetune",
            ("feed: host_fed", "input_timers: true"),
            "7: cells[0].input_timers: must be false with feed: host_fed, which has no input pipeline, got true",
        ),
        (
            "finetune",
            ("phase: [fit, predict]",),
            "6: cells[0].phase: must be fit with feed: pipeline, got 'predict'; set feed: device_resident to predict",
        ),
    ],
)
def test_setting_without_its_pipeline_is_refused(workload: str, lines: tuple[str, ...], expected: str) -> None:
    assert problems(workload, *lines) == [expected]


def test_pipeline_for_every_workload_is_refused_where_it_was_written() -> None:
    found = problems("mnist_mlp", defaults="{feed: pipeline}")
    assert found == ["5: cells[0]: feed must be device_resident or host_fed for mnist_mlp, got 'pipeline'"]


def test_workload_of_a_user_may_have_a_pipeline() -> None:
    (cell,) = cells("mine:build", "feed: pipeline", "page_cache: cold")
    assert (cell.settings.feed, cell.settings.page_cache) == ("pipeline", "cold")


def test_catalog_with_an_unknown_feed_is_refused() -> None:
    entry = {"family": "f", "summary": "s", "batch_size": 1, "samples": 1, "data": ["synthetic"], "params": {}}
    with pytest.raises(ValueError, match="one: feed must be one of device_resident, host_fed, pipeline, got 'tube'"):
        catalog.parse({"version": 1, "workloads": {"one": {**entry, "feed": "tube"}}})

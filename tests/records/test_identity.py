"""Identifiers are determined by the settings."""

from __future__ import annotations

from dataclasses import fields
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest

from keras_matrix.records.identity import LATER, RUN_ID, cell_id, run_id
from keras_matrix.records.settings import Settings
from tests.conftest import make_settings


def test_a_cell_keeps_its_name() -> None:
    assert cell_id(make_settings()) == "9451167242ca2b87"


def test_a_new_axis_ends_no_history() -> None:
    assert {one.name for one in fields(Settings) if one.name in LATER} == set(LATER)
    assert cell_id(make_settings(**{one.name: one.default for one in fields(Settings) if one.name in LATER})) == (
        "9451167242ca2b87"
    )


@pytest.mark.parametrize("name", [f.name for f in fields(Settings)])
def test_every_setting_is_part_of_a_cells_name(name: str) -> None:
    changed: Any = {"params": {"width": 1}}.get(name, 77)
    assert cell_id(make_settings(**{name: changed})) != cell_id(make_settings())


@pytest.mark.parametrize("between", [timedelta(seconds=1), timedelta(microseconds=1)])
def test_run_names_sort_by_time(between: timedelta) -> None:
    begun = datetime(2026, 1, 2, 3, 4, 5, 999_998, tzinfo=UTC)
    assert all(run_id(begun, str(i)) < run_id(begun + between, str(j)) for i in range(16) for j in range(16))
    assert RUN_ID.fullmatch(run_id(begun, "z"))

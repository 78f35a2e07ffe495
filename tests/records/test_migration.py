"""Renamed fields are read under their current names, and only in records written before the rename."""

from __future__ import annotations

import pytest

from keras_matrix.records.schema import SCHEMA_VERSION
from keras_matrix.records.validity import RENAMED, migrated, name_in


@pytest.mark.fault("F24", mutation="migrated() returns its value unchanged")
@pytest.mark.parametrize("version", [1, 2, 3])
def test_suite_total_of_older_versions_gets_its_current_name_in_the_same_place(version: int) -> None:
    data = {"schema_version": version, "times": {"a": 1, "seed_total_time_s": 2.5, "b": 3}}
    assert list(migrated(data)["times"].items()) == [("a", 1), ("suite_total_time_s", 2.5), ("b", 3)]
    assert data["times"]["seed_total_time_s"] == 2.5


@pytest.mark.parametrize(
    "data",
    [
        None,
        7,
        [],
        {},
        {"schema_version": "3", "times": {"seed_total_time_s": 1}},
        {"schema_version": 3, "times": None},
        {"schema_version": 3, "times": {"seed_total_time_s": 1, "suite_total_time_s": 2}},
        {"schema_version": SCHEMA_VERSION, "times": {"seed_total_time_s": 1}},
    ],
)
def test_other_values_are_unchanged(data: object) -> None:
    assert migrated(data) == data


def test_metric_name_follows_the_schema_version() -> None:
    names = [name_in(version, "times.suite_total_time_s") for version in (1, 3, 4)]
    assert names == ["times.seed_total_time_s", "times.seed_total_time_s", "times.suite_total_time_s"]
    assert name_in(1, "times.step_time_s") == "times.step_time_s"


def test_no_rename_is_newer_than_the_schema() -> None:
    assert max(one.version for one in RENAMED) <= SCHEMA_VERSION

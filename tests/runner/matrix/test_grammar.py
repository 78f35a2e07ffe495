"""The rules of a matrix file, the workloads' own rules, and the JSON Schema made of both."""

from __future__ import annotations

import json
from dataclasses import fields
from pathlib import Path
from typing import Any

import jsonschema
import pytest
import yaml

from keras_matrix.records.settings import Settings
from keras_matrix.records.text import near
from keras_matrix.runner.errors import InfrastructureError
from keras_matrix.runner.matrix import catalog, json_schema
from keras_matrix.runner.matrix.grammar import DEFAULTS, NAME, SETTINGS, ValueRule, workload_name_problem

ROOT = Path(__file__).parents[3]
FIXTURE = catalog.load(Path(__file__).parents[1] / "catalog.json")
HOSTILE_NAMES = [
    "../etc",
    "a/b",
    "a\0b",
    "a\n",
    "a'b",
    'a"; drop table x; --',
    "$(ls)",
    "раypal",
    "ﬁt",
    "a" * 300,
    "CON",
    "1a",
    "",
    "a b",
    "a-b",
]


def test_every_settings_field_has_a_rule_and_a_description() -> None:
    assert {f.name for f in fields(Settings)} == {*SETTINGS, "backend", "workload", "params", "set_by_matrix"}
    assert all(rule.meaning for rule in DEFAULTS.values())


def test_every_default_follows_its_rule() -> None:
    assert [key for key, rule in DEFAULTS.items() if rule.default is not None and not rule.accepts(rule.default)] == []


@pytest.mark.parametrize(
    ("key", "value"),
    [("steps_per_epoch", "seed"), ("steps_per_epoch", 1), ("jit", False), ("threads", 1024), ("timeout_s", 86_400)],
)
def test_valid_value_is_accepted(key: str, value: Any) -> None:
    assert DEFAULTS[key].problem(value) is None


def test_integer_for_a_float_key_becomes_a_float() -> None:
    rule = ValueRule("float", -1, 1)

    assert [repr(rule.normal(value)) for value in (1, 0, -0.0)] == ["1.0", "0.0", "0.0"]


@pytest.mark.parametrize(
    ("value", "expected"), [("1,0", "0-1"), ("0-1", "0-1"), ("3", "3-3"), (3, 3), ("all", "all"), ("4,0-1,1", "0-1,4")]
)
def test_cpu_list_has_one_normal_form_and_is_not_a_count(value: Any, expected: Any) -> None:
    assert SETTINGS["cpus"].accepts(value)
    assert SETTINGS["cpus"].normal(value) == expected


def test_text_must_be_printable_and_short() -> None:
    rule = ValueRule("str")

    assert [rule.accepts(text) for text in ("a" * 200, "a" * 201, "a\x1b")] == [True, False, False]


@pytest.mark.fault("F33", mutation="names may contain a hyphen")
@pytest.mark.parametrize("name", HOSTILE_NAMES)
def test_name_with_path_characters_is_refused(name: str) -> None:
    assert NAME.fullmatch(name) is None


@pytest.mark.fault("F33", mutation="the name of a user's workload is not checked")
@pytest.mark.parametrize("name", [*(f"{name}:build" for name in HOSTILE_NAMES if name != "CON"), "a.b", "a:b:c", "a:"])
def test_user_workload_must_be_module_and_function(name: str) -> None:
    problem = workload_name_problem(name)

    assert problem is not None
    assert problem.startswith("must be a workload of the catalog or package.module:function, got ")


def test_user_workload_may_be_in_any_package() -> None:
    for package in ("my_models", "models", "runner", "records", "keras_matrix"):
        assert workload_name_problem(f"{package}.net:Build") is None


def test_only_a_similar_name_is_suggested() -> None:
    assert near("batchsize", SETTINGS) == "; did you mean batch_size?"
    assert near("zzz", SETTINGS) == ""
    assert near("batch_size" * 30, SETTINGS) == ""


# The catalog.


def test_missing_catalog_is_an_installation_error(tmp_path: Path) -> None:
    with pytest.raises(InfrastructureError, match="install the program again"):
        catalog.load(tmp_path / "catalog.json")


@pytest.mark.parametrize("data", [{}, {"version": 2, "workloads": {}}, {"version": 1, "workloads": {"A": {}}}, []])
def test_damaged_catalog_is_an_installation_error(data: object, tmp_path: Path) -> None:
    (tmp_path / "catalog.json").write_text(json.dumps(data))

    with pytest.raises(InfrastructureError, match="not a catalog"):
        catalog.load(tmp_path / "catalog.json")


def test_parameter_named_like_a_setting_is_refused() -> None:
    workloads = json.loads((Path(__file__).parents[1] / "catalog.json").read_text())
    workloads["workloads"]["bert"]["params"]["seed"] = {"type": "int", "default": 0}

    with pytest.raises(ValueError, match="bert: parameter 'seed' must not be named like a setting"):
        catalog.parse(workloads)


def test_shipped_catalog_can_be_read() -> None:
    assert "mnist_mlp" in catalog.load().workloads


# The schema for editors.


def accepted(matrix: object) -> bool:
    return bool(jsonschema.Draft7Validator(json_schema.json_schema(FIXTURE, ())).is_valid(matrix))


def cell(**keys: object) -> dict[str, object]:
    return {"version": 1, "backends": ["jax"], "cells": [{"workload": "mobilenet_v3_small", **keys}]}


def test_schema_is_valid_json_schema() -> None:
    jsonschema.Draft7Validator.check_schema(json_schema.json_schema(FIXTURE))


def test_checked_in_schema_is_current() -> None:
    """Renew it with `python -m keras_matrix.runner.matrix.json_schema > matrix.schema.json`."""
    assert json_schema.text(catalog.load()) == (ROOT / "matrix.schema.json").read_text()


@pytest.mark.parametrize("path", [ROOT / "matrix.yaml", *sorted((ROOT / "matrices").glob("*.yaml"))], ids=str)
def test_shipped_matrices_are_valid_by_the_checked_in_schema(path: Path) -> None:
    schema = json.loads((ROOT / "matrix.schema.json").read_text())

    jsonschema.Draft7Validator(schema).validate(yaml.safe_load(path.read_text()))


@pytest.mark.parametrize(
    "keys",
    [
        {"batch_size": [1, 2], "image_size": 64},
        {"params": {"image_size": [64, 96]}},
        {"include": [{"image_size": 32, "batch_size": 1}], "exclude": [{"backend": "jax", "image_size": 64}]},
        {"workload": "my_package.net:build", "params": {"width": 3}, "exclude": [{"width": 3}]},
        {"steps_per_epoch": ["seed", 5], "jit": [True, "auto"], "timeout_s": 5.5},
    ],
)
def test_schema_accepts_what_the_reader_accepts(keys: dict[str, object]) -> None:
    assert accepted(cell(**keys))


@pytest.mark.parametrize(
    "keys",
    [
        {"batch_size": 0},
        {"batch_size": []},
        {"batch_size": "32"},
        {"size": "tiny"},
        {"workload": "mobilenet"},
        {"workload": "my_package.net:build", "width": 3},
        {"workload": "my_package.net:build", "params": {"Width": 3}},
        {"repeats": [1, 2]},
        {"include": []},
        {"exclude": [{}]},
        {"exclude": [{"sequence_length": 3}]},
        {"data": "digits"},
    ],
)
def test_schema_refuses_what_the_reader_refuses(keys: dict[str, object]) -> None:
    assert not accepted(cell(**keys))

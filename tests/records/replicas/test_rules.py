"""The rules of Keras workloads on several devices."""

from __future__ import annotations

from typing import Any

import pytest

from keras_matrix.records import replicas
from keras_matrix.records.identity import cell_id
from tests.conftest import make_settings


def test_one_device_is_the_cell_without_the_key() -> None:
    assert cell_id(make_settings(devices=1, distribution="data")) == cell_id(make_settings())
    assert cell_id(make_settings(devices=2)) != cell_id(make_settings())
    assert cell_id(make_settings(devices=2)) != cell_id(make_settings(devices=2, distribution="model"))


def test_one_device_divides_nothing() -> None:
    assert replicas.normalised(make_settings(distribution="model")) == make_settings()
    both = make_settings(devices=2, distribution="model")
    assert replicas.normalised(both) is both


@pytest.mark.parametrize(
    ("changes", "expected"),
    [
        ({"devices": 2}, []),
        ({"devices": 1, "eager": True, "phase": "predict"}, []),
        (
            {"devices": 2, "eager": True},
            ["devices: must be 1 with eager: true, got 2: a traced step is what is divided; set eager: false"],
        ),
        (
            {"devices": 2, "phase": "predict"},
            [
                "devices: must be 1 with phase: predict, got 2: predict_on_batch of TensorFlow and PyTorch computes "
                "the entire batch on every device; set phase: fit"
            ],
        ),
        (
            {"devices": 2, "nodes": 2},
            [
                "devices: must be 1 with nodes: 2, got 2: the devices are those of one machine; the workload fc has "
                "workers on several; set nodes: 1"
            ],
        ),
        (
            {"devices": 2, "feed": "pipeline"},
            [
                "devices: must be 1 with feed: pipeline, got 2: its batches are not divided among devices; set feed: "
                "device_resident or host_fed"
            ],
        ),
        ({"devices": 3}, ["devices: must divide batch_size (32), got 3"]),
        ({"devices": 3, "distribution": "model"}, []),
        (
            {"devices": 2, "batch_size": 0},
            ["devices: must be 1 with batch_size: largest, got 2; set a batch size"],
        ),
        (
            {"devices": 2, "workload": "fc", "params": {"mode": "fc_data"}},
            ["devices: must be 1 for fc_data, which divides its work among workers, got 2; set workers"],
        ),
        ({"devices": 2, "workload": "fc", "params": {"mode": "fc_keras"}}, []),
    ],
)
def test_settings_that_no_backend_can_divide_are_named(changes: dict[str, Any], expected: list[str]) -> None:
    assert replicas.problems(make_settings(**changes)) == expected


def test_a_users_own_feed_is_known_in_the_cell_only() -> None:
    own = make_settings(devices=2, feed="pipeline", workload="my.module:build", set_by_matrix="")
    assert replicas.problems(own) == []


@pytest.mark.parametrize(
    ("backend", "changes"),
    [
        ("jax", {}),
        ("jax", {"distribution": "model", "jit": True, "league": "matched", "device": "tpu"}),
        ("torch", {}),
        ("tensorflow", {}),
    ],
)
def test_what_a_backend_offers_on_several_devices_is_accepted(backend: str, changes: dict[str, Any]) -> None:
    assert replicas.backend_problem(make_settings(backend=backend, devices=2, **changes)) is None


@pytest.mark.parametrize(
    ("backend", "changes"),
    [
        ("torch", {"distribution": "model"}),
        ("tensorflow", {"jit": True}),
        ("torch", {"league": "matched"}),
        ("torch", {"device": "tpu"}),
    ],
)
def test_what_a_backend_offers_on_one_device_alone_is_accepted_there(backend: str, changes: dict[str, Any]) -> None:
    assert replicas.backend_problem(make_settings(backend=backend, **changes)) is None


def test_labels_of_external_commands_are_no_backends() -> None:
    assert replicas.backend_problem(make_settings(backend="variant-a")) is None


def test_each_device_of_a_cpu_needs_a_cpu() -> None:
    assert replicas.too_few_cpus(make_settings(devices=2), 2) is None
    assert replicas.too_few_cpus(make_settings(devices=3, device="gpu"), 2) is None

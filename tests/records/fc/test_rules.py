"""Which parameters each FC mode has, and which problems are the same work."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from keras_matrix.records.backends import TRAINING_BACKENDS
from keras_matrix.records.fc import rules
from keras_matrix.records.fc.network import Network, network_problem, normal_rate
from keras_matrix.records.fc.spec import DIVIDERS, MODES, WORKLOAD, FcProblem, Parallelism
from keras_matrix.runner.matrix import catalog
from keras_matrix.runner.matrix.reader import Cell, expand, parse
from tests.conftest import make_settings

SIZES = ("mode", "workers", "level", "weight_size")
# A value of each parameter that is not its default, and the modes that the documentation gives it to.
VALUES: dict[str, tuple[Any, set[str]]] = {
    "phy_blocks": (2, {"fc_phy"}),
    "shared_ratio": (0.5, {"fc_phy"}),
    "reduce": ("mean", {"fc_data", "fc_data_slice", "fc_data_manual", "fc_hybrid", "fc_zero"}),
    "overlap": ("off", {"fc_data", "fc_data_manual"}),
    "partition": ("named_sharding", {"fc_data"}),
    "model_workers": (1, {"fc_hybrid"}),
    "micro_batches": (2, {"fc_pipeline"}),
    "network": ("200mbit", set(MODES) - {"fc_single_manual", "fc_keras", "fc_data_ff"}),
    "bucket_cap_mb": (8.0, {"fc_data"}),
    "buckets": ("2,3", {"fc_data"}),
    "bytes_per_pack": (4096, {"fc_data"}),
    "forward_sleep_ms": (6.0, {"fc_data"}),
    "backward_sleep_ms": (14.0, {"fc_data"}),
    "gradient_accumulation": (2, {"fc_data"}),
    "recompute": (True, {"fc_data"}),
    "amp": ("0-2", {"fc_data"}),
    "fuse": ("0-1,2-4", {"fc_data"}),
}
TINY = FcProblem(level=4, weight_size=24, batch_size=24)
CASES = [(mode, name) for mode in MODES for name in VALUES]


def problem_of(mode: str, **changes: Any) -> FcProblem:
    workers = 1 if MODES[mode].kind is Parallelism.SINGLE else 2
    return TINY.changed(**{"mode": mode, "workers": workers, **changes})


def test_every_parameter_of_the_workload_is_a_size_or_belongs_to_some_modes() -> None:
    assert set(catalog.load().workloads[WORKLOAD].params) == {*SIZES, *VALUES}


@pytest.mark.parametrize(("mode", "name"), CASES)
def test_a_parameter_is_accepted_by_the_modes_that_have_it_and_refused_by_name_elsewhere(mode: str, name: str) -> None:
    value, modes = VALUES[name]
    found = rules.problems_of(problem_of(mode, **{name: value}))
    assert [fault.partition(":")[0] for fault in found] == ([] if mode in modes else [name])


@pytest.mark.parametrize("mode", [mode for mode in MODES if mode != "fc_keras"])
def test_on_one_worker_only_parameters_that_change_the_step_make_another_cell(mode: str) -> None:
    own = {name for name, (_, modes) in VALUES.items() if mode in modes}
    plain = problem_of(mode, workers=1)
    different = {name for name in own if rules.normalised(plain.changed(**{name: VALUES[name][0]})) != plain}
    assert different == own & {"phy_blocks", "micro_batches", *rules.WHAT_IF} - {*rules.GROUPING}


@pytest.mark.parametrize(("mode", "name"), CASES)
def test_on_several_workers_every_parameter_of_a_mode_makes_another_cell(mode: str, name: str) -> None:
    value, modes = VALUES[name]
    if mode in modes:
        problem = problem_of(mode, workers=4, **{name: value})
        assert rules.normalised(problem) == problem


def test_the_default_mesh_and_the_same_mesh_by_number_are_one_cell() -> None:
    meshes = [FcProblem("fc_hybrid", workers=4, model_workers=n) for n in (0, 1, 2, 4)]
    assert [rules.normalised(mesh).model_workers for mesh in meshes] == [0, 1, 0, 4]


def test_a_mesh_of_one_row_reduces_nothing() -> None:
    mesh = FcProblem("fc_hybrid", workers=4, reduce="mean")
    reduced = [rules.normalised(mesh.changed(model_workers=n)).reduce for n in (1, 2, 4)]
    assert reduced == ["mean", "mean", "sum"]


def test_a_share_of_gradients_matters_where_there_are_several_models() -> None:
    shares = [
        FcProblem("fc_phy", workers=n, phy_blocks=blocks, shared_ratio=0.5) for n, blocks in ((1, 1), (1, 2), (2, 1))
    ]
    assert [rules.normalised(problem).shared_ratio for problem in shares] == [1 / 1024, 0.5, 0.5]


@pytest.mark.parametrize(
    ("text", "normal"),
    [("1000mbit", "1gbit"), ("1000000kbit", "1gbit"), ("200mbit", "200mbit"), ("1500mbit", "1500mbit"), ("1gb", None)],
)
def test_equal_rates_have_one_spelling(text: str, normal: str | None) -> None:
    assert normal_rate(text) == normal
    assert rules.normalised(problem_of("fc_data", network=text)).network == (normal or text)


def test_namespaces_of_an_equal_rate_serve_whatever_its_spelling() -> None:
    assert network_problem(Network("1000mbit", ("a", "b")), "1gbit", 2) is None


def cells_of(entry: str, backends: str = "torch") -> list[Cell]:
    text = f"version: 1\nbackends: [{backends}]\ncells:\n  - {{workload: fc, {entry}}}\n"
    return expand(parse(Path("matrix.yaml"), text.encode()))


def points_of(cells: list[Cell], name: str) -> list[tuple[Any, Any]]:
    return [(cell.settings.params["workers"], cell.settings.params[name]) for cell in cells]


def test_points_of_a_matrix_that_are_the_same_work_are_one_cell() -> None:
    cells = cells_of("mode: fc_data, workers: [1, 2], overlap: [off, on]")
    assert points_of(cells, "overlap") == [(1, "on"), (2, "off"), (2, "on")]
    plain = cells_of("mode: fc_data, workers: [1, 2]")
    assert [cell.cell_id for cell in plain] == [cells[0].cell_id, cells[2].cell_id]


def test_the_one_worker_cell_over_a_network_is_the_local_one() -> None:
    cells = cells_of("mode: fc_model, workers: [1, 2], network: 200mbit")
    assert points_of(cells, "network") == [(1, "local"), (2, "200mbit")]
    assert cells[0].cell_id == cells_of("mode: fc_model")[0].cell_id


def test_unsupported_partition_is_rejected_on_one_worker_too() -> None:
    for backend in TRAINING_BACKENDS:
        params = {"mode": "fc_data", "partition": "named_sharding"}
        settings = make_settings(workload="fc", backend=backend, params=params)
        assert (rules.settings_problems(settings) == []) is (backend == DIVIDERS["named_sharding"][0])


def problems_over_a_network(backend: str, **changes: Any) -> list[str]:
    params = {"mode": "fc_data", "workers": 2, "network": "200mbit", **changes}
    return rules.settings_problems(make_settings(workload="fc", backend=backend, params=params))


@pytest.mark.parametrize("backend", TRAINING_BACKENDS)
def test_every_backend_has_fc_data_over_a_network_on_a_cpu(backend: str) -> None:
    assert problems_over_a_network(backend) == []


@pytest.mark.parametrize(
    ("mode", "changes"),
    [
        ("fc_data", {"overlap": "off", "reduce": "mean", "network": "200mbit"}),
        ("fc_hybrid", {"model_workers": 2}),
        ("fc_phy", {"shared_ratio": 0.5}),
        ("fc_pipeline", {"micro_batches": 8}),
    ],
)
def test_a_cell_of_several_workers_finds_its_cell_of_one(mode: str, changes: dict[str, Any]) -> None:
    params = {"mode": mode, "workers": 2, **changes}
    two = make_settings(workload="fc", backend="torch", params=params)
    plain = {name: value if name == "micro_batches" else rules.DEFAULTS[name] for name, value in changes.items()}
    assert rules.one_worker(two) == replace(two, params={"mode": mode, "workers": 1, **plain})


@pytest.mark.parametrize("name", [name for name, backends in rules.WHAT_IF.items() if "torch" in backends])
def test_a_what_if_parameter_is_part_of_the_settings_only_if_it_is_not_at_its_default(name: str) -> None:
    default, value = (json.dumps(value) for value in (rules.DEFAULTS[name], VALUES[name][0]))
    plain, explicit = (cells_of(f"mode: fc_data, workers: 2, level: 4{more}") for more in ("", f", {name}: {default}"))
    both = cells_of(f"mode: fc_data, workers: 2, level: 4, {name}: [{default}, {value}]")
    assert [cell.cell_id for cell in (*plain, *explicit)] == [both[0].cell_id] * 2
    assert [cell.settings.params.get(name) for cell in both] == [None, VALUES[name][0]]
    assert rules.one_worker(plain[0].settings) == replace(
        plain[0].settings, params={**plain[0].settings.params, "workers": 1}
    )
    assert cells_of(
        f"mode: fc_data, workers: 2, level: 4, {name}: [{default}, {value}], exclude: [{{{name}: {value}}}]"
    ) == (plain)


def test_what_if_parameters_changed_no_cell_id() -> None:
    (cell,) = cells_of("mode: fc_data, workers: 2")
    assert cell.cell_id == "1036d33949348002"


@pytest.mark.parametrize(
    ("backend", "settings", "found"),
    [
        ("torch", {"workers": 4, "nodes": 2}, []),
        ("jax", {"workers": 2, "nodes": 2, "mode": "fc_zero"}, []),
        ("tensorflow", {"workers": 2, "nodes": 2, "bytes_per_pack": 4096}, []),
        ("torch", {"workers": 2, "nodes": 2, "device": "gpu"}, []),
        ("torch", {"workers": 2, "nodes": 3}, ["nodes: must divide workers (2), got 3"]),
        (
            "torch",
            {"workers": 2, "nodes": 2, "network": "200mbit"},
            ["network: must be local with nodes 2, whose network is used, got 200mbit"],
        ),
        (
            "jax",
            {"workers": 2, "nodes": 2, "device": "gpu"},
            ["nodes: must be 1 for jax on gpu, got 2; available on cpu"],
        ),
        (
            "tensorflow",
            {"workers": 2, "nodes": 2, "mode": "fc_zero"},
            ["nodes: must be 1 for fc_zero on tensorflow, got 2; available for fc_data"],
        ),
        (
            "jax",
            {"workers": 2, "nodes": 2, "partition": "named_sharding"},
            ["partition: must be program on jax with nodes 2, got named_sharding"],
        ),
    ],
)
def test_workers_are_divided_among_machines_where_they_communicate_over_a_network(
    backend: str, settings: dict[str, Any], found: list[str]
) -> None:
    outside = {"backend": backend, "workload": WORKLOAD, "batch_size": 24}
    outside |= {name: settings.pop(name) for name in ("nodes", "device") if name in settings}
    params = {"mode": "fc_data", "weight_size": 24, "level": 4, **settings}
    assert rules.settings_problems(make_settings(**outside, params=params)) == found


def test_a_single_worker_is_on_one_machine() -> None:
    params = {"mode": "fc_data", "weight_size": 24, "level": 4}
    two = make_settings(backend="torch", workload=WORKLOAD, batch_size=24, params=params | {"workers": 2}, nodes=2)
    assert rules.normalised_settings(two) == two
    assert rules.one_worker(two).nodes == 1


def test_keras_own_training_is_not_divided_among_machines() -> None:
    native = {"workload": WORKLOAD, "params": {"mode": "fc_data", "workers": 2}}
    keras = {"workload": WORKLOAD, "params": {"mode": "fc_keras"}}
    assert rules.undivided(make_settings(**native, nodes=2)) is None
    assert rules.undivided(make_settings()) is None
    for settings in (make_settings(nodes=2), make_settings(**keras, nodes=2)):
        reason = rules.undivided(settings)
        assert reason is not None
        assert reason.startswith("nodes: 2: Keras's fit does not train on several machines: ")

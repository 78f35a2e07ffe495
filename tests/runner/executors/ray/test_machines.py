"""Which machine of a cluster can run a comparison, and what is said if none can."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from keras_matrix.records.host.device_lists import GpuChoice
from keras_matrix.records.identity import cell_id
from keras_matrix.records.schema import Machine
from keras_matrix.runner.executors.ray.machines import GIB, NodeFacts, fitting, need_of, offers
from keras_matrix.runner.matrix.entry import ANYWHERE, PlacementKeys
from keras_matrix.runner.matrix.reader import Cell
from tests.conftest import MACHINE, make_settings

SMALL = replace(MACHINE, host_id="small", logical_cpus=4, memory_bytes=8 * GIB, machine_type="n1-standard-4", gpus=[])
LARGE = replace(
    MACHINE,
    host_id="large",
    logical_cpus=64,
    memory_bytes=512 * GIB,
    machine_type="a3-highgpu-8g",
    gpus=["NVIDIA H100 80GB HBM3"] * 2,
)
GONE = "backend_not_installed: jax"


def node(node_id: str, machine: Machine, *backends: str, slot: bool = True) -> NodeFacts:
    missing = {
        f"{backend} {device}": None if backend in backends and (device == "cpu" or machine.gpus) else GONE
        for backend in ("jax", "torch", "tensorflow")
        for device in ("cpu", "gpu")
    }
    return NodeFacts(node_id, f"node-{node_id}", machine, {}, missing, slot=slot)


def cell(placement: PlacementKeys = ANYWHERE, **settings: Any) -> Cell:
    made = make_settings(**settings)
    return Cell(made, cell_id(made), 1, 60.0, None, placement=placement)


CLUSTER = offers([node("2", LARGE, "torch"), node("1", LARGE, "jax"), node("3", SMALL, "jax", "torch")])


def test_nodes_of_one_machine_are_one_offer_in_the_order_of_their_ids() -> None:
    assert [(offer.identity, [one.node_id for one in offer.nodes]) for offer in CLUSTER] == [
        ("large", ["1", "2"]),
        ("small", ["3"]),
    ]
    assert offers([node("1", SMALL, "jax", slot=False)]) == []


def test_the_node_of_a_backend_runs_its_cells() -> None:
    large = CLUSTER[0]
    found = large.node_for("torch", "cpu")
    assert found is not None
    assert found.node_id == "2"
    assert large.node_for("tensorflow", "cpu") is None


@pytest.mark.parametrize(
    ("cells", "where"),
    [
        ([cell(backend="jax"), cell(backend="torch")], {"small", "large"}),
        ([cell(backend="jax", device="gpu")], {"large"}),
        ([cell(backend="jax", cpus=8)], {"large"}),
        ([cell(backend="jax", cpus="0,60")], {"large"}),
        ([cell(PlacementKeys(machine="n1-standard-4"), backend="jax")], {"small"}),
        ([cell(PlacementKeys(machine="node-2"), backend="jax")], {"large"}),
        ([cell(PlacementKeys(gpus=GpuChoice(model="h100")), backend="jax")], {"large"}),
        ([cell(PlacementKeys(memory_gib=100), backend="jax")], {"large"}),
    ],
)
def test_a_comparison_goes_where_all_of_its_cells_fit(cells: list[Cell], where: set[str]) -> None:
    found = fitting(need_of(cells), CLUSTER)
    assert found.places == where
    assert found.reason is None


@pytest.mark.parametrize(
    ("cells", "lacks"),
    [
        ([cell(backend="tensorflow")], "backend tensorflow"),
        ([cell(PlacementKeys(machine="n1-standard-4"), backend="jax", device="gpu")], "device gpu"),
        ([cell(backend="jax", cpus=65)], "65 CPUs"),
        ([cell(PlacementKeys(machine="n2"), backend="jax")], "machine: n2"),
        ([cell(PlacementKeys(gpus=GpuChoice(model="A100")), backend="jax")], "gpu_model: A100"),
        ([cell(PlacementKeys(gpus=GpuChoice(model="H10")), backend="jax")], "gpu_model: H10"),
        ([cell(PlacementKeys(memory_gib=1000), backend="jax")], "memory_gib: 1000"),
    ],
)
def test_what_no_machine_offers_is_named(cells: list[Cell], lacks: str) -> None:
    found = fitting(need_of(cells), CLUSTER)
    assert found.places == frozenset()
    assert found.reason is not None
    assert found.reason.startswith("no node offers ")
    assert lacks in found.reason
    assert found.reason.endswith("the cluster has node-1, node-3")


def test_the_gpus_are_those_of_the_node_with_the_backend() -> None:
    """The container of a CPU image comes first and sees no GPU of the same machine."""
    cpu_image = replace(LARGE, gpus=[], memory_bytes=8 * GIB)
    mixed = offers([node("1", cpu_image, "torch"), node("2", LARGE, "jax")])
    assert fitting(need_of([cell(backend="jax", device="gpu")]), mixed).places == {"large"}
    assert fitting(need_of([cell(PlacementKeys(memory_gib=100), backend="jax")]), mixed).places == {"large"}
    assert fitting(need_of([cell(PlacementKeys(memory_gib=100), backend="torch")]), mixed).places == frozenset()


def test_a_cluster_without_a_slot_offers_nothing() -> None:
    assert fitting(need_of([cell()]), []).reason == "no node: the cluster has no node with a measuring slot"

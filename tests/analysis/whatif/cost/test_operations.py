"""Samples are the distinct operations of a graph whose work is known."""

from __future__ import annotations

from dataclasses import replace

import pytest

from keras_matrix.analysis.whatif.cost_operations import (
    FEATURES,
    OBSERVED,
    DevicePeaks,
    OperationKind,
    ideal_of,
    observed_peaks,
    product_of,
    row_of,
    samples_of,
)
from keras_matrix.analysis.whatif.graph import NodeKind
from tests.analysis.whatif.cost.fake_machine import PEAKS, node
from tests.analysis.whatif.hand_made import Nodes, header

WORK = {"flops": 2e6, "bytes": 4096, "dtype": "float32", "shape": (8, 64)}


def test_equal_operations_of_all_layers_and_ranks_are_one_sample() -> None:
    nodes = Nodes()
    for rank, durations in ((0, (1000, 2000, 9000)), (0, (3000, 3000, 3000)), (1, (4000, 4000, 4000))):
        nodes.add(durations, rank, name="aten::mm", **WORK)
    (sample,) = samples_of(nodes.graph(), 7).samples
    assert (sample.kind, sample.device, sample.time_s, sample.count) == (OperationKind.MATRIX_PRODUCT, 7, 3e-6, 3)


def test_what_differs_in_work_type_or_shape_is_another_sample() -> None:
    nodes = Nodes()
    for changes in ({}, {"flops": 3e6}, {"bytes": 1}, {"dtype": "bfloat16"}, {"shape": (64, 8)}, {"name": "aten::add"}):
        nodes.add(1000, **{"name": "aten::mm", **WORK, **changes})
    assert len(samples_of(nodes.graph(), 0).samples) == 6


def test_collectives_waits_and_inputs_are_not_operations() -> None:
    nodes = Nodes()
    first = nodes.add(1000, name="aten::mm", **WORK)
    nodes.collective(0, [500], [first], bytes=4096)
    nodes.add(1000, kind=NodeKind.WAIT, **WORK)
    nodes.add(1000, kind=NodeKind.INPUT, **WORK)
    found = samples_of(nodes.graph(), 0)
    assert (len(found.samples), found.operations) == (1, 1)


def test_operations_without_flops_and_bytes_are_counted_but_not_used() -> None:
    nodes = Nodes()
    nodes.add(1000, name="aten::mm", **WORK)
    nodes.add(3000, name="aten::mm")
    found = samples_of(nodes.graph(), 0)
    assert (found.operations, found.without_work) == (2, 1)
    assert (found.time_s, found.time_without_work_s) == pytest.approx((4e-6, 3e-6))


def test_the_best_rates_of_large_operations_stand_in_for_peaks_that_were_not_measured() -> None:
    nodes = Nodes()
    nodes.add(1, name="aten::mm", flops=1e6, bytes=1, dtype="float32")  # too short for the clock
    nodes.add(2000, name="aten::mm", flops=2e6, bytes=1 << 30, dtype="float32")
    nodes.add(1000, name="aten::mm", flops=2.5e6, dtype="float32", cores=1.0)  # one of two cores
    nodes.add(1000, name="aten::add", bytes=4096)
    graph = nodes.graph(machine={"cpu_model": "Some CPU"}, cores=2)
    found = observed_peaks(graph.header, samples_of(graph, 0).samples)
    assert found.byte_per_s == pytest.approx(4096 / 1e-6)
    assert found.flop_per_s == pytest.approx({"float32": 2 * 2.5e6 / 1e-6})
    assert (found.identity, found.source) == (("torch", "Some CPU", 2), OBSERVED)


def test_an_operation_has_the_share_of_the_peaks_that_its_cores_have() -> None:
    product = node("aten::mm", 1, flops=1e9)
    assert ideal_of(replace(product, cores=2.0), PEAKS) == pytest.approx(0.01)
    assert ideal_of(replace(product, cores=1.0), PEAKS) == pytest.approx(0.02)
    assert ideal_of(replace(product, cores=0.0), PEAKS) == pytest.approx(0.01)  # an accelerator
    assert ideal_of(replace(product, cores=1.0), replace(PEAKS, cores=None)) == pytest.approx(0.01)


def test_the_product_is_that_of_the_device() -> None:
    machine = {"cpu_model": "Some CPU", "gpus": ["Some GPU"]}
    assert product_of(header(machine=machine)) == "Some CPU"
    assert product_of(header(machine=machine, device="gpu")) == "Some GPU"
    assert product_of(header(device="gpu")) == "gpu"


def test_a_row_has_the_features_in_their_order_and_names_what_is_unknown() -> None:
    nodes = Nodes()
    nodes.add(1000, name="aten::mm", flops=2.0**20, bytes=2**10, dtype="float32", shape=(8, 64))
    nodes.add(1000, name="aten::add", bytes=2**20)
    product, other = samples_of(nodes.graph(), 0).samples
    row = dict(zip(FEATURES, row_of(product, PEAKS, 3) or [], strict=True))
    assert [row[name] for name in FEATURES if name != "log_roofline_ns"] == [20, 10, 10, 4, 3, 6, 2, 0, 3]
    unknown = dict(zip(FEATURES, row_of(other, PEAKS, 0) or [], strict=True))
    assert [unknown[name] for name in ("log_flops", "element_bytes", "sides")] == [-1, -1, -1]
    assert None is row_of(other, DevicePeaks("torch", "x", 1, {"float32": 1e9}, None), 0)

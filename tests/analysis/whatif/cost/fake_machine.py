"""Graphs of a fake machine, whose times follow from a formula: a model that learns it is right.

Matrix products take 10 us + FLOPs / (half of the peak), and four times as long in batches, which no roofline knows.
Elementwise operations take 5 us + bytes / (the bandwidth).
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from functools import cache
from itertools import product
from statistics import median
from typing import Any

from keras_matrix.analysis.whatif.cost_model import (
    LEARNING_RATE,
    CostModel,
    DecisionTree,
    Regressor,
    TrainingData,
    train,
)
from keras_matrix.analysis.whatif.cost_operations import FEATURES, DevicePeaks, samples_of
from keras_matrix.analysis.whatif.graph import Graph, Node, NodeKind
from tests.analysis.whatif.hand_made import Nodes

PRODUCT = "Fake CPU"
PEAKS = DevicePeaks("torch", PRODUCT, 2, {"float32": 100e9, "bfloat16": 200e9}, 20e9)
FASTER = DevicePeaks("torch", "Faster CPU", 2, {"float32": 400e9}, 40e9)
SIDES = (16, 32, 64, 128, 256, 512)
BATCHED = 4
Shape = tuple[int, ...]
DATA = TrainingData(["fake"], 1, 0, 1.0, 0.0)


def product_s(shape: Shape, peaks: DevicePeaks = PEAKS) -> float:
    """Return the time of a product of an array of this shape with a square matrix."""
    slow = BATCHED if len(shape) > 2 else 1
    return slow * (10e-6 + product_work(shape)["flops"] / (peaks.flop_per_s["float32"] / 2))


def product_work(shape: Shape) -> dict[str, Any]:
    return {"flops": 2.0 * math.prod(shape) * shape[-1], "bytes": 8 * math.prod(shape), "shape": shape}


def elementwise_s(size_bytes: int, peaks: DevicePeaks = PEAKS) -> float:
    return 5e-6 + size_bytes / (peaks.byte_per_s or 1)


def node(name: str, time_s: float, **fields: Any) -> Node:
    """Return one node, for a prediction."""
    values = {"kind": NodeKind.COMPUTE, "dtype": "float32", "cores": 2.0, **fields}
    return Node(0, 0, "main", name=name, durations_ns=(round(time_s * 1e9),), gaps_ns=(0,), starts_ns=(0,), **values)


def graph(peaks: DevicePeaks = PEAKS, sides: Sequence[int] = SIDES, noise: Iterable[float] = ()) -> Graph:
    """Return a step with products of each size and elementwise operations, which take `noise` times their time."""
    nodes = Nodes()
    for shape in [(*batch, *rest) for batch in ((), (1,)) for rest in product(sides, sides)]:
        nodes.add(
            round(product_s(shape, peaks) * 1e9), name="aten::bmm", dtype="float32", cores=2.0, **product_work(shape)
        )
    for at, factor in enumerate([*noise] or [1.0] * 40):
        size = 4096 * (at + 1)
        nodes.add(
            round(factor * elementwise_s(size, peaks) * 1e9), name="aten::add", bytes=size, dtype="float32", cores=2.0
        )
    return nodes.graph(machine={"cpu_model": peaks.product}, cores=peaks.cores)


def stump(rows: Sequence[Sequence[float]], targets: Sequence[float]) -> list[DecisionTree]:
    """Return one split between matrices and batches of them, with the median of each part."""
    column, edge = FEATURES.index("sides"), 2.5
    sides = [(row[column] <= edge, target) for row, target in zip(rows, targets, strict=True)]
    parts = [[target for is_below, target in sides if is_below is below] for below in (True, False)]
    values = [median(part) / LEARNING_RATE if part else 0.0 for part in parts]
    return [DecisionTree([column, 0, 0], [edge, 0.0, 0.0], [1, -1, -1], [2, -1, -1], [0.0, *values])]


def wrong(rows: Sequence[Sequence[float]], targets: Sequence[float]) -> list[DecisionTree]:
    """Return a tree that says twice the roofline's time, whatever the operation."""
    return [DecisionTree([0], [0.0], [-1], [-1], [0.7 / LEARNING_RATE])]


def trained(*graphs: tuple[Graph, DevicePeaks], learn: Any = stump) -> CostModel:
    """Return the model of these graphs, each traced on its device."""
    devices = [peaks for _, peaks in graphs]
    samples = [sample for at, (one, _) in enumerate(graphs) for sample in samples_of(one, at).samples]
    return train(samples, devices, DATA, Regressor(learn, {"fake": "1"}))


@cache
def usual_model() -> CostModel:
    """Return the model of `graph()`, which is trained once."""
    return trained((graph(), PEAKS))

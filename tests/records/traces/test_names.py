"""Phases and layers in paths of scopes."""

from __future__ import annotations

import pytest

from keras_matrix.records.traces.neutral import Phase, Scopes
from keras_matrix.records.traces.request import Names

KERAS = Names(["dense", "block", "query"], "functional", "adam")
FC_NAMES = Names(["layer_0", "layer_1"], phases=True)


@pytest.mark.parametrize(
    ("origin", "phase", "layer"),
    [
        ("jit(train_step)/jvp(functional)/dense/dot_general", Phase.FORWARD, "dense"),
        ("jit(train_step)/transpose(jvp(functional))/dense/dot_general", Phase.BACKWARD, "dense"),
        ("jit(train_step)/jvp(dense)/add", Phase.FORWARD, "dense"),
        ("jit(train_step)/transpose(jvp(block))/query/mul", Phase.BACKWARD, "block/query"),
        ("jit(train_step)/jvp()/reduce_sum", Phase.FORWARD, None),
        ("jit(train_step)/adam/sqrt", Phase.UPDATE, None),
        ("jit(predict_step)/functional/dense/dot_general", Phase.FORWARD, "dense"),
        ("functional/dense/MatMul", Phase.FORWARD, "dense"),
        ("gradient_tape/functional/dense/MatMul/MatMul_1", Phase.BACKWARD, "dense"),
        ("StatefulPartitionedCall/adam/Sqrt", Phase.UPDATE, None),
        ("jit(train_step)/add", None, None),
        ("Cast_3", None, None),
        ("", None, None),
    ],
)
def test_of_a_workload_layers_and_the_optimiser_are_known_by_their_names(
    origin: str, phase: Phase | None, layer: str | None
) -> None:
    assert Scopes(KERAS).read(origin) == (phase, layer)


@pytest.mark.parametrize(
    ("origin", "phase", "layer"),
    [
        ("jit(_local)/backward/layer_1/dot_general", Phase.BACKWARD, "layer_1"),
        ("jit(_local)/jvp(forward)/layer_0/dot_general", Phase.FORWARD, "layer_0"),
        ("jit(_local)/transpose(jvp(forward))/layer_0/dot_general", Phase.BACKWARD, "layer_0"),
        ("update/ResourceApplyGradientDescent", Phase.UPDATE, None),
        ("jit(_local)/sub", None, None),
    ],
)
def test_of_a_crew_phases_have_scopes_of_their_own(origin: str, phase: Phase | None, layer: str | None) -> None:
    assert Scopes(FC_NAMES).read(origin) == (phase, layer)


@pytest.mark.parametrize(
    ("origin", "phase", "layer"),
    [
        ("kbm.phase.forward/m_1/kbm.layer.conv2d/conv2d_1/Conv2D", Phase.FORWARD, "conv2d"),
        ("gradient_tape/kbm.phase.forward/m/kbm.layer.block/block/kbm.layer.query/x", Phase.BACKWARD, "block/query"),
        ("StatefulPartitionedCall/kbm.phase.update/adam/Mul", Phase.UPDATE, None),
        ("conv2d_1/Conv2D", None, None),
    ],
)
def test_scopes_of_marks_stand_for_themselves(origin: str, phase: Phase | None, layer: str | None) -> None:
    assert Scopes(Names()).read(origin) == (phase, layer)


def test_layer_named_like_a_phase_is_not_a_phase() -> None:
    assert Scopes(Names(["update"], "functional")).read("functional/update/Relu") == (Phase.FORWARD, "update")

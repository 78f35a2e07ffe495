"""The graph of a model from its own description, without Keras."""

from __future__ import annotations

from typing import Any

import pytest

from keras_matrix.runner.measure.tensorboard import LayerNode, nodes_of


def layer(name: str, kind: str = "Dense", *sources: Any, **config: Any) -> dict[str, Any]:
    """A layer as Keras 3 describes it; each source is (layer, output)."""
    tensors = [
        {"class_name": "__keras_tensor__", "config": {"shape": [None, 4], "keras_history": [source, 0, output]}}
        for source, output in sources
    ]
    calls = [{"args": [tensors[0] if len(tensors) == 1 else tensors], "kwargs": {}}] if tensors else []
    return {"class_name": kind, "config": {"name": name, **config}, "inbound_nodes": calls}


def functional(name: str, layers: list[Any], entrances: Any, ends: Any, *sources: Any) -> dict[str, Any]:
    inner = {"layers": layers, "input_layers": entrances, "output_layers": ends}
    return layer(name, "Functional", *sources, **inner)


def sequential(name: str, layers: list[Any], *sources: Any) -> dict[str, Any]:
    return layer(name, "Sequential", *sources, layers=layers)


def edges(nodes: list[LayerNode]) -> dict[str, tuple[str, ...]]:
    return {node.name: node.inputs for node in nodes}


def test_sequential_model_is_a_chain() -> None:
    model = sequential("s", [layer("in", "InputLayer"), layer("a"), layer("b", "Dropout")])
    assert nodes_of(model) == [
        LayerNode("s/in", "InputLayer", ()),
        LayerNode("s/a", "Dense", ("s/in",)),
        LayerNode("s/b", "Dropout", ("s/a",)),
    ]


def test_functional_model_has_its_branches() -> None:
    layers = [
        layer("in", "InputLayer"),
        layer("left", "Dense", ("in", 0)),
        layer("right", "Dense", ("in", 0)),
        layer("sum", "Add", ("left", 0), ("right", 0)),
    ]
    model = functional("f", layers, ["in", 0, 0], ["sum", 0, 0])
    assert edges(nodes_of(model)) == {
        "f/in": (),
        "f/left": ("f/in",),
        "f/right": ("f/in",),
        "f/sum": ("f/left", "f/right"),
    }


def test_nested_model_is_a_scope_connected_by_its_inputs_and_outputs() -> None:
    inner = functional(
        "inner",
        [layer("x", "InputLayer"), layer("one", "Dense", ("x", 0)), layer("two", "Dense", ("x", 0))],
        [["x", 0, 0]],
        [["one", 0, 0], ["two", 0, 0]],
        ("in", 0),
    )
    layers = [layer("in", "InputLayer"), inner, layer("end", "Dense", ("inner", 1))]
    found = edges(nodes_of(functional("f", layers, [["in", 0, 0]], [["end", 0, 0]])))
    assert found["f/inner/x"] == ("f/in",)
    assert found["f/end"] == ("f/inner/two",)


def test_sequential_model_within_a_functional_one_is_a_chain_from_its_source() -> None:
    inner = sequential("tower", [layer("a"), layer("b")], ("in", 0))
    layers = [layer("in", "InputLayer"), inner, layer("end", "Dense", ("tower", 0))]
    found = edges(nodes_of(functional("f", layers, ["in", 0, 0], ["end", 0, 0])))
    assert (found["f/tower/a"], found["f/tower/b"], found["f/end"]) == (("f/in",), ("f/tower/a",), ("f/tower/b",))


@pytest.mark.parametrize("entrances", [{"b": ["two", 0, 0], "a": ["one", 0, 0]}, [["two", 0, 0], ["one", 0, 0]]])
def test_named_and_positional_inputs_are_found(entrances: Any) -> None:
    layers = [
        layer("one", "InputLayer"),
        layer("two", "InputLayer"),
        layer("sum", "Add", ("one", 0), ("two", 0)),
    ]
    assert edges(nodes_of(functional("f", layers, entrances, ["sum", 0, 0])))["f/sum"] == ("f/one", "f/two")


def test_tensor_among_the_named_arguments_is_a_source_too() -> None:
    attention = layer("attention", "MultiHeadAttention", ("q", 0))
    attention["inbound_nodes"][0]["kwargs"] = {"value": layer("_", "_", ("v", 0))["inbound_nodes"][0]["args"][0]}
    layers = [layer("q", "InputLayer"), layer("v", "InputLayer"), attention]
    found = edges(nodes_of(functional("f", layers, [["q", 0, 0], ["v", 0, 0]], ["attention", 0, 0])))
    assert found["f/attention"] == ("f/q", "f/v")


@pytest.mark.parametrize("described", [{}, {"config": {}}, {"config": {"name": "x"}}, {"config": None}])
def test_invalid_model_description_is_refused(described: dict[str, Any]) -> None:
    with pytest.raises((KeyError, TypeError)):
        nodes_of(described)

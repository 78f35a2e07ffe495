"""Single layers and operations of Keras, built and called on the backend of the tests."""

from __future__ import annotations

import json
from typing import Any

import keras
import numpy as np
import pytest

from keras_matrix.models import keras_parts
from keras_matrix.models.workload import Built, Request, UnsupportedWorkload
from keras_matrix.runner.matrix.parts import PARTS_PATH

PARTS = json.loads(PARTS_PATH.read_text())


def built(kind: str, name: str, shapes: str = "", **arguments: Any) -> Built:
    return keras_parts.load_part(f"keras:{kind}")(
        Request({kind: name, "input": shapes, **arguments}, "synthetic", None)
    )


def outputs_and_input(kind: str, name: str, shapes: str, **arguments: Any) -> tuple[Any, Any]:
    item = built(kind, name, shapes, **arguments)
    (x,) = item.samples(item.available_samples or 0, 0)
    return keras.tree.map_structure(keras.ops.convert_to_numpy, item.model(x)), x


def refused(kind: type[Exception], *part: str, **arguments: Any) -> str:
    with pytest.raises(kind) as raised:
        built(*part, **arguments)
    return str(raised.value)


def test_an_operation_computes_from_its_inputs() -> None:
    """Mutation: the inputs of an operation are constants of its model."""
    outputs, (x, y) = outputs_and_input("op", "einsum", "2x3x4, 2x4x5", subscripts="bij,bjk->bik")
    np.testing.assert_allclose(outputs, x @ y, rtol=1e-5)


def test_arguments_of_several_sizes_are_tuples() -> None:
    outputs, x = outputs_and_input("op", "reshape", "4x6", newshape="3x8")
    np.testing.assert_array_equal(outputs, x.reshape(3, 8))


def test_operations_of_lists_get_one() -> None:
    outputs, arrays = outputs_and_input("op", "concatenate", "4x6, 4x2", axis=1)
    np.testing.assert_array_equal(outputs, np.concatenate(arrays, axis=1))


def test_a_layer_of_queries_and_values_gets_one_input_as_both() -> None:
    outputs, x = outputs_and_input("layer", "MultiHeadAttention", "2x5x8", num_heads=2, key_dim=4)
    assert (outputs.shape, x.shape) == ((2, 5, 8), (2, 5, 8))


def test_a_layer_of_several_inputs_gets_a_list() -> None:
    outputs, (x, y) = outputs_and_input("layer", "Add", "2x5, 2x5")
    np.testing.assert_allclose(outputs, x + y)


def test_weights_of_a_layer_are_those_of_the_model() -> None:
    assert built("layer", "Dense", "2x5", units=3).model.count_params() == 18


def test_a_layer_is_called_in_inference_and_can_train() -> None:
    """Mutation: the model takes no `training`, so that JAX's counter of FLOPs cannot call it."""
    item = built("layer", "Dropout", "8x64", rate=0.5)
    (x,) = item.samples(8, 0)
    is_input = [bool(np.array_equal(keras.ops.convert_to_numpy(item.model(x, training=on)), x)) for on in (False, True)]
    assert is_input == [True, False]


def test_inputs_are_equal_for_equal_seeds_and_in_range() -> None:
    specs = keras_parts.array_specs("8x4, 8x4:int32, 8x4:bool")
    first, second = (keras_parts.arrays_of(specs, 3, "sort") for _ in range(2))
    assert all((one == other).all() for one, other in zip(first, second, strict=True))
    assert [array.dtype.name for array in first] == ["float32", "int32", "bool"]
    assert first[0].min() >= 0.05
    assert first[0].max() <= 1
    assert first[1].min() >= 0


def test_a_matrix_of_a_decomposition_has_an_inverse() -> None:
    (matrix,) = [keras_parts.arrays_of(keras_parts.array_specs("16x16"), 0, "inv")]
    assert np.linalg.cond(matrix) < 10


def test_the_state_of_a_recurrent_cell_is_a_batch_of_states() -> None:
    """Mutation: the cell gets the state's array where it expects a list: two rows of it are its states."""
    outputs, states = built("layer", "LSTMCell", "4x3, 4x3", units=3).model([np.ones((4, 3), "float32")] * 2)
    assert tuple(outputs.shape) == (4, 3)
    assert [tuple(state.shape) for state in states] == [(4, 3), (4, 3)]


@pytest.mark.parametrize("error", [MemoryError(), RuntimeError("CUDA out of memory. Tried to allocate 64 GiB")])
def test_a_part_that_finds_no_memory_is_not_unsupported(error: Exception, monkeypatch: pytest.MonkeyPatch) -> None:
    def called(kind: str, name: str, function: Any, inputs: int) -> Any:
        raise error

    monkeypatch.setattr(keras_parts, "part_model", called)
    with pytest.raises(type(error)):
        built("op", "sort", "2x3")


class TestRefusals:
    def test_a_name_that_keras_does_not_have(self) -> None:
        text = refused(ValueError, "op", "einsun", "2x3")
        assert text == "op: the installed Keras has no 'einsun' (did you mean 'einsum'?)"

    def test_a_part_that_needs_other_arguments(self) -> None:
        text = refused(UnsupportedWorkload, "op", "clip", "2x3")
        assert text.startswith("op clip: cannot be called with input 2x3: TypeError: ")
        assert "x_min" in text

    def test_an_argument_that_the_part_does_not_take(self) -> None:
        text = refused(UnsupportedWorkload, "layer", "Dense", "2x3", unit=3)
        assert text.startswith("layer Dense: cannot be called with input 2x3, unit=3: TypeError: ")

    def test_an_input_that_does_not_fit(self) -> None:
        text = refused(UnsupportedWorkload, "layer", "Conv2D", "8x4", filters=2, kernel_size=3)
        assert "expected min_ndim=4, found ndim=2" in text
        assert "\n" not in text

    def test_more_inputs_than_the_operation_takes(self) -> None:
        text = refused(UnsupportedWorkload, "op", "round", "2x3, 2x3, 2x3")
        assert "takes 2 arrays (x, decimals), got 3" in text

    def test_an_operation_that_returns_no_array(self) -> None:
        text = refused(UnsupportedWorkload, "op", "ndim", "2x3")
        assert text == "op ndim: must return arrays to be measured, returned int"

    def test_inputs_that_are_none(self) -> None:
        assert refused(ValueError, "op", "sort", "").startswith("input: must be sizes")

    def test_other_data(self) -> None:
        with pytest.raises(UnsupportedWorkload, match="data='digits'"):
            keras_parts.load_part("keras:op")(Request({"op": "sort", "input": "2x3"}, "digits", None))


@pytest.mark.parametrize("kind", ["layer", "op"])
def test_the_catalogue_has_every_public_part_of_its_version_of_keras(kind: str) -> None:
    """Mutation: operations of `keras.ops.image` are left out."""
    assert keras.__version__ == PARTS["keras"], "write it anew: python ci/catalog.py --parts"
    assert list(PARTS[kind]) == sorted(keras_parts.without_aliases(keras_parts.names_of(kind)))


def test_images_and_sounds_of_the_catalogue_are_batches_and_lists_have_several_arrays() -> None:
    """Mutation: three sizes are tried first, which Keras takes as one image of many channels."""
    of_images = {name: one for name, one in PARTS["op"].items() if name.startswith("image.") and "input" in one}
    of_images |= {name: PARTS["layer"][name] for name in ("RandomFlip", "Resizing", "CenterCrop")}
    assert len(of_images) > 5
    assert {name for name, one in of_images.items() if len(one["input"].split(",")[0].split("x")) != 4} == set()
    assert PARTS["layer"]["MelSpectrogram"]["input"] == "4x16000"
    assert {len(PARTS["op"][name]["input"].split(",")) for name in ("concatenate", "stack", "hstack", "vstack")} == {2}


@pytest.mark.parametrize("name", ["det", "arccosh", "searchsorted", "digitize", "outer"])
def test_what_the_catalogue_calls_returns_finite_numbers(name: str) -> None:
    entry = PARTS["op"][name]
    model = built("op", name, entry["input"], **entry["params"])
    (x,) = model.samples(model.available_samples, 0)
    outputs = keras.ops.convert_to_numpy(model.model(x))
    assert np.isfinite(outputs).all()
    assert outputs.size <= keras_parts.MOST_OUTPUTS


@pytest.mark.parametrize(("kind", "least"), [("layer", 110), ("op", 290)])
def test_the_catalogue_says_how_each_part_is_called_or_why_it_is_not(kind: str, least: int) -> None:
    entries = PARTS[kind].values()
    assert all({*entry} in ({"input", "params"}, {"problem"}) for entry in entries)
    assert sum("input" in entry for entry in entries) >= least


@pytest.mark.parametrize(
    ("kind", "name"),
    [
        *(("layer", name) for name in ("Conv2D", "LSTM", "Embedding", "Dropout", "GroupQueryAttention", "Lambda")),
        *(("op", name) for name in ("scatter", "sort", "conv", "fft", "image.resize", "clip", "while_loop", "dtype")),
    ],
)
def test_trying_finds_what_the_catalogue_has(kind: str, name: str) -> None:
    """Mutation: `tried` returns the last try."""
    tried = keras_parts.tried(kind, name, keras_parts.names_of(kind)[name])
    assert {*tried} == {*PARTS[kind][name]}
    assert "problem" in tried or tried == PARTS[kind][name]

"""Bytes and operations follow from the shapes of an operator's inputs."""

from __future__ import annotations

import pytest

from keras_matrix.analysis.whatif.reconstruct.kineto.reading import NOTHING, Operands, operands_of

FLOATS = ["float", "float"]


@pytest.mark.parametrize(
    ("name", "dims", "flops"),
    [
        ("aten::mm", [[2, 3], [3, 5]], 2 * 2 * 3 * 5),
        ("aten::bmm", [[4, 2, 3], [4, 3, 5]], 2 * 4 * 2 * 3 * 5),
        ("aten::add", [[2, 3], [2, 3]], None),
    ],
)
def test_product_has_operations_and_every_operator_the_bytes_of_its_inputs(
    name: str, dims: list[list[int]], flops: float | None
) -> None:
    found = operands_of(name, {"Input Dims": dims, "Input type": FLOATS})
    size = 4 * sum(len(dims[0]) and _product(one) for one in dims)
    assert Operands(size, "float32", tuple(dims[0]), flops) == found


def _product(shape: list[int]) -> int:
    count = 1
    for side in shape:
        count *= side
    return count


def test_bias_is_not_part_of_the_product_of_addmm() -> None:
    found = operands_of("aten::addmm", {"Input Dims": [[5], [2, 3], [3, 5]], "Input type": ["float"] * 3})
    assert found.flops == 2 * 2 * 3 * 5


def test_operations_of_a_convolution_follow_from_its_stride_and_padding() -> None:
    args = {
        "Input Dims": [[1, 3, 8, 8], [16, 3, 3, 3], [16], [], [], [], [], [], []],
        "Input type": ["float", "float", "float", "ScalarList", "ScalarList", "ScalarList", "", "ScalarList", "Scalar"],
        "Concrete Inputs": ["", "", "", "[2, 2]", "[1, 1]", "[1, 1]", "False", "[0, 0]", "1"],
    }
    assert operands_of("aten::convolution", args).flops == 2 * 4 * 4 * 16 * 3 * 3 * 3


def test_backward_convolution_has_twice_the_operations_of_the_forward_one() -> None:
    args = {"Input Dims": [[1, 16, 4, 4], [1, 3, 8, 8], [16, 3, 3, 3]], "Input type": ["float"] * 3}
    assert operands_of("aten::convolution_backward", args).flops == 2 * 2 * 4 * 4 * 16 * 3 * 3 * 3


@pytest.mark.parametrize(
    "args",
    [
        {},
        {"Input Dims": "[[2, 3]]", "Input type": ["float"]},
        {"Input Dims": [[[2, 3]]], "Input type": ["TensorList"]},
        {"Input Dims": [["two"]], "Input type": ["float"]},
        {"Input Dims": [[2]], "Input type": ["quaternion"]},
    ],
)
def test_shapes_of_an_unknown_form_say_nothing(args: dict[str, object]) -> None:
    assert operands_of("aten::mm", args) == NOTHING


def test_product_without_its_second_shape_has_no_operations() -> None:
    assert operands_of("aten::mm", {"Input Dims": [[2, 3]], "Input type": ["float"]}).flops is None

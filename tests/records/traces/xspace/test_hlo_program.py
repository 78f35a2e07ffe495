"""What XLA's stored programs say of their operations."""

from __future__ import annotations

import pytest

from keras_matrix.records.traces.xspace import hlo_program
from keras_matrix.records.traces.xspace.hlo_program import ArrayShape, HloOperation, HloProgram
from tests.records.traces.synthetic import hlo, hlo_array, hlo_instruction, message, varint

F32, BF16 = 11, 16


def read(data: bytes) -> HloProgram:
    return hlo_program.read(memoryview(data))


def program() -> HloProgram:
    """A dot, a fusion of a product and a sum, and the sum over all devices of both."""
    inner = [
        hlo_instruction(11, "p", "parameter", hlo_array(F32, 4, 5)),
        hlo_instruction(12, "multiply.1", "multiply", hlo_array(F32, 4, 5), operands=(11, 11)),
        hlo_instruction(13, "add.1", "add", hlo_array(F32, 4, 5), operands=(12, 11)),
    ]
    entry = [
        hlo_instruction(1, "x", "parameter", hlo_array(F32, 4, 3)),
        hlo_instruction(2, "w", "parameter", hlo_array(F32, 3, 5)),
        hlo_instruction(3, "dot.1", "dot", hlo_array(F32, 4, 5), operands=(1, 2), origin="jit(f)/dense/dot", dot=(1,)),
        hlo_instruction(4, "fusion.1", "fusion", hlo_array(F32, 4, 5), operands=(3,), called=(100,)),
        hlo_instruction(
            5, "all-reduce.1", "all-reduce", (hlo_array(F32, 4, 5), hlo_array(F32, 4, 5)), operands=(3, 4),
            groups=((0, 2), (1, 3)),
        ),
    ]  # fmt: skip
    return read(hlo("jit_f", {"fused": (100, inner), "main": (200, entry)}, entry=200))


def test_operations_have_shape_operands_origin_and_computation() -> None:
    found = program()
    dot = found.operations["dot.1"]
    assert (found.name, found.entry, list(found.operations)) == (
        "jit_f",
        "main",
        ["p", "multiply.1", "add.1", "x", "w", "dot.1", "fusion.1", "all-reduce.1"],
    )
    assert (dot.opcode, dot.origin, dot.computation, dot.operands) == ("dot", "jit(f)/dense/dot", "main", ("x", "w"))
    assert dot.shape == ArrayShape("float32", (4, 5), 32)
    assert found.operations["fusion.1"].called == ("fused",)


def test_bytes_are_those_of_operands_and_result() -> None:
    found = program()
    sizes = {name: found.bytes(found.operations[name]) for name in ("dot.1", "fusion.1", "all-reduce.1")}
    assert sizes == {"dot.1": 4 * (12 + 15 + 20), "fusion.1": 4 * 40, "all-reduce.1": 4 * 80}


def test_flops_of_a_product_a_fusion_and_a_sum() -> None:
    found = program()
    flops = {name: found.flops(found.operations[name]) for name in ("dot.1", "fusion.1", "x")}
    assert flops == {"dot.1": 2 * 4 * 5 * 3, "fusion.1": 40, "x": 0}


def test_groups_of_devices_are_listed() -> None:
    assert program().operations["all-reduce.1"].groups == ((0, 2), (1, 3))


def test_arrays_of_a_tuple_are_separate() -> None:
    shape = program().operations["all-reduce.1"].shape
    assert ([array.bytes for array in shape.arrays], shape.bytes, shape.elements) == ([80, 80], 160, 40)


def test_flops_of_a_convolution_follow_from_its_kernel() -> None:
    operations = {
        "x": HloOperation("x", "parameter", "", "main", ArrayShape("float32", (8, 16, 16, 3), 32)),
        "k": HloOperation("k", "parameter", "", "main", ArrayShape("float32", (5, 5, 3, 32), 32)),
        "c": HloOperation(
            "c", "convolution", "", "main", ArrayShape("float32", (8, 16, 16, 32), 32), ("x", "k"), output_feature=3
        ),
    }
    found = HloProgram("f", operations, "main")
    assert found.flops(operations["c"]) == 2 * (8 * 16 * 16 * 32) * (5 * 5 * 3)


@pytest.mark.parametrize("opcode", ["while", "custom-call"])
def test_flops_are_unknown_where_the_program_does_not_say_them(opcode: str) -> None:
    operation = HloOperation("a", opcode, "", "main", ArrayShape("float32", (4,), 32))
    around = HloOperation("b", "call", "", "main", ArrayShape("float32", (4,), 32), called=("inner",))
    inner = HloOperation("c", opcode, "", "inner", ArrayShape("float32", (4,), 32))
    found = HloProgram("f", {"a": operation, "b": around, "c": inner}, "main")
    assert [found.flops(operation), found.flops(around)] == [None, None]


def test_single_and_packed_numbers_are_read() -> None:
    packed = memoryview(varint(3) + varint(300))
    assert list(hlo_program.numbers([7, packed])) == [7, 3, 300]


def test_a_type_without_a_name_has_no_size() -> None:
    operation = hlo_instruction(1, "token", "after-all", hlo_array(17))
    found = read(hlo("f", {"main": (1, [operation])}, entry=1))
    assert (found.operations["token"].shape.dtype, found.operations["token"].shape.bytes) == (None, 0)


def test_half_precision_takes_two_bytes() -> None:
    operation = hlo_instruction(1, "x", "parameter", hlo_array(BF16, 3))
    assert read(hlo("f", {"main": (1, [operation])}, entry=1)).operations["x"].shape.bytes == 6


def test_an_empty_program_has_no_operations() -> None:
    assert read(message()).operations == {}


def test_a_truncated_program_raises_an_error() -> None:
    data = hlo("f", {"main": (1, [hlo_instruction(1, "x", "parameter", hlo_array(F32, 3))])}, entry=1)
    with pytest.raises((IndexError, ValueError)):
        read(data[:-3])

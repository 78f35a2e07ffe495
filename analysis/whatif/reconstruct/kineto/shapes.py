"""Bytes, floating-point operations and dtype of an operator, from the shapes of its inputs (`record_shapes`).

Only matrix products and convolutions have floating-point operations here: they are nearly all of a network's.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from math import prod
from typing import Any, NamedTuple

from keras_matrix.records.dtypes import ELEMENT_BYTES

# By the names of C++ types, and by those that c10d gives to collectives.
DTYPES: Mapping[str, str] = {
    "float": "float32",
    "double": "float64",
    "c10::half": "float16",
    "half": "float16",
    "c10::bfloat16": "bfloat16",
    "bfloat16": "bfloat16",
    "long int": "int64",
    "long": "int64",
    "int": "int32",
    "short int": "int16",
    "short": "int16",
    "signed char": "int8",
    "char": "int8",
    "unsigned char": "uint8",
    "byte": "uint8",
    "bool": "bool",
}

Shape = tuple[int, ...]


class Operands(NamedTuple):
    """The inputs of an operator: their bytes, dtype and shape of the first; operations if it is a product."""

    bytes: int | None = None
    dtype: str | None = None
    shape: Shape | None = None
    flops: float | None = None


NOTHING = Operands()


def dtype_of(name: str) -> str | None:
    """Return the dtype, None if unknown."""
    return DTYPES.get(name.lower())


def operands_of(name: str, args: Mapping[str, Any]) -> Operands:
    """Return what the arguments of an operator's event say. Shapes that do not have the usual form are ignored."""
    dims, types = args.get("Input Dims"), args.get("Input type")
    if not isinstance(dims, list) or not isinstance(types, list):
        return NOTHING
    tensors = [
        (tuple(shape), dtype)
        for shape, text in zip(dims, types, strict=False)
        if (dtype := dtype_of(text) if isinstance(text, str) else None) and _is_shape(shape)
    ]
    if not tensors:
        return NOTHING
    size = sum(prod(shape) * ELEMENT_BYTES[dtype] for shape, dtype in tensors)
    count = FLOPS.get(name)
    try:
        flops = count([tuple(shape) if _is_shape(shape) else () for shape in dims], args) if count else None
    except (LookupError, ValueError, TypeError, ZeroDivisionError):
        flops = None
    return Operands(size, tensors[0][1], tensors[0][0], flops)


def _is_shape(value: Any) -> bool:
    return isinstance(value, list) and all(type(one) is int for one in value)


def _matmul(left: Shape, right: Shape) -> float:
    return 2.0 * prod(left) * right[-1]


def _convolution(dims: Sequence[Shape], args: Mapping[str, Any]) -> float | None:
    """Return the operations of a convolution, whose arguments have its strides, padding and dilation as text."""
    image, weight = dims[0], dims[1]
    texts = args.get("Concrete Inputs")
    if not isinstance(texts, list) or texts[6] != "False":
        return None
    stride, padding, dilation = ([int(part) for part in text.strip("[]").split(",")] for text in texts[3:6])
    sizes = image[2:]
    output = 1
    for axis, size in enumerate(sizes):
        step, pad, spread = (values[axis % len(values)] for values in (stride, padding, dilation))
        output *= (size + 2 * pad - spread * (weight[2 + axis] - 1) - 1) // step + 1
    return 2.0 * image[0] * output * prod(weight)


def _convolution_backward(dims: Sequence[Shape], args: Mapping[str, Any]) -> float:
    """Return the operations for both gradients, each as many as those of the forward pass."""
    gradient, weight = dims[0], dims[2]
    return 4.0 * gradient[0] * prod(gradient[2:]) * prod(weight)


FLOPS: Mapping[str, Callable[[Sequence[Shape], Mapping[str, Any]], float | None]] = {
    "aten::mm": lambda dims, args: _matmul(dims[0], dims[1]),
    "aten::bmm": lambda dims, args: _matmul(dims[0], dims[1]),
    "aten::addmm": lambda dims, args: _matmul(dims[1], dims[2]),
    "aten::baddbmm": lambda dims, args: _matmul(dims[1], dims[2]),
    "aten::convolution": _convolution,
    "aten::convolution_backward": _convolution_backward,
}

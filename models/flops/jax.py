"""JAX: our count walks the traced program, with the lengths of loops; XLA's own cost analysis is the framework's count.

XLA counts every operation of the compiled program, also element-wise ones; of a convolution only the products that do
not involve padding; and the body of a loop once, since its length is unknown.

On a GPU cuDNN runs LSTM layers and half-precision attention as one operation each without products in the traced
program, so that formulas count them (`recurrent_flops`, `attention_flops`).
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from typing import Any

import jax

from keras_matrix.models.flops import ToolCount, attention_flops, flat_matrix_elements, recurrent_flops

TOOL = "XLA cost analysis of the compiled program"


def forward(model: Any, x: Any) -> int:
    """Count one forward pass."""
    function, arguments = _forward(model, x)
    return _flops(jax.make_jaxpr(function)(*arguments).jaxpr)


def framework(model: Any, x: Any, y: Any) -> ToolCount:
    """Compile forward pass and training step and return XLA's counts of them; its bytes are those of the step."""
    function, arguments = _forward(model, x)
    forward_counts = _analysis(function, *arguments)
    model._symbolic_build(data_batch=(x, y))  # makes the variables of optimiser and metrics; a real step would compile
    state = tuple(
        [variable.value for variable in variables]
        for variables in (
            model.trainable_variables,
            model.non_trainable_variables,
            model.optimizer.variables,
            model.metrics_variables,
        )
    )
    step = _analysis(model.train_step, state, (x, y))
    return ToolCount(forward_counts.get("flops"), step.get("flops"), step.get("bytes accessed"))


def _forward(model: Any, x: Any) -> tuple[Callable[..., Any], tuple[Any, ...]]:
    weights = [v.value for v in model.trainable_variables], [v.value for v in model.non_trainable_variables]
    return lambda t, n, x: model.stateless_call(t, n, x, training=False)[0], (*weights, x)


def _analysis(function: Callable[..., Any], *arguments: Any) -> dict[str, float]:
    analysis = jax.jit(function).lower(*arguments).compile().cost_analysis()
    return dict(analysis[0] if isinstance(analysis, (list, tuple)) else analysis or {})


def _flops(jaxpr: Any) -> int:
    total = 0
    for equation in jaxpr.eqns:
        name = equation.primitive.name
        if name in FLOPS:
            total += FLOPS[name](equation)
        elif name == "cond":
            total += max(_flops(branch.jaxpr) for branch in equation.params["branches"])
        elif name == "while":
            raise NotImplementedError("a loop whose length is known only at run time")
        else:
            times = equation.params["length"] if name == "scan" else 1
            total += times * sum(map(_flops, _inner(equation)))
    return total


def _inner(equation: Any) -> Iterator[Any]:
    for value in equation.params.values():
        inner = getattr(value, "jaxpr", value)
        if hasattr(inner, "eqns"):
            yield inner


def _product(equation: Any) -> int:
    (contracted, _), _ = equation.params["dimension_numbers"]
    left_shape, out_shape = equation.invars[0].aval.shape, equation.outvars[0].aval.shape
    return int(2 * math.prod(out_shape) * math.prod(left_shape[axis] for axis in contracted))


def _convolution(equation: Any) -> int:
    """Count a multiply-add for each output and element of its channel's kernel; of a transposed one for each input.

    Which of them it is, the sizes say: a transposed convolution makes more outputs than it takes inputs.
    """
    inputs, kernel = (variable.aval.shape for variable in equation.invars)
    output_axis, input_axis, *_ = equation.params["dimension_numbers"].rhs_spec
    output_products = math.prod(equation.outvars[0].aval.shape) * math.prod(kernel) // kernel[output_axis]
    input_products = (
        math.prod(inputs) * math.prod(kernel) // (kernel[input_axis] * equation.params["feature_group_count"])
    )
    return int(2 * min(output_products, input_products))


def _recurrent(equation: Any) -> int:
    """Count cuDNN's LSTM, the only cell that JAX has as an operation (`jax.experimental.rnn`)."""
    params, (inputs, _, _, weights) = equation.params, (variable.aval.shape for variable in equation.invars[:4])
    cells = params["num_layers"] * (2 if params["bidirectional"] else 1)
    return recurrent_flops(inputs, flat_matrix_elements(math.prod(weights), "lstm", params["hidden_size"], cells))


def _attention(equation: Any) -> int:
    shapes = [variable.aval.shape for variable in equation.invars[:3]]
    if equation.params["layout"] == HEADS_THIRD:
        shapes = [(batch, heads, positions, features) for batch, positions, heads, features in shapes]
    return attention_flops(*shapes)


# The value of `AttentionLayout.BTNH` in jax/_src/cudnn/fused_attention_stablehlo.py; the other layout is BNTH.
HEADS_THIRD = 0
FLOPS: dict[str, Callable[[Any], int]] = {
    "dot_general": _product,
    "conv_general_dilated": _convolution,
    "rnn_fwd": _recurrent,
    "dot_product_attention_fwd": _attention,
    "dot_product_attention_fwd_wrapper": _attention,
    "dot_product_attention_fp8_fwd": _attention,
    "dot_product_attention_fp8_fwd_wrapper": _attention,
}

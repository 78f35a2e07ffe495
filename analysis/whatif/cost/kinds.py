"""The kind of an operation, from the name that a backend or a device's library gives it.

A rule of a kind is a search in the name; the first one that matches decides, so that a fused matrix product counts as a
matrix product. Names that no rule knows are of kind `OTHER`, which is learned like any other.
"""

from __future__ import annotations

import re
from enum import StrEnum
from functools import lru_cache


class OperationKind(StrEnum):
    """Kinds whose time depends on their work in the same way."""

    ATTENTION = "attention"
    RECURRENT = "recurrent layer"
    CONVOLUTION = "convolution"
    FUSED_PRODUCT = "fused product"
    MATRIX_PRODUCT = "matrix product"
    NORMALISATION = "normalisation"
    POOLING = "pooling"
    UPDATE = "optimizer update"
    FUSION = "fusion"
    INDEXING = "indexing"
    REDUCTION = "reduction"
    COPY = "copy"
    ELEMENTWISE = "elementwise"
    VIEW = "view"  # moves no data
    SEGMENT = "segment"  # several operations of a phase and layer as one
    OTHER = "other"


_RULES = {
    OperationKind.ATTENTION: r"attention|flash|fmha|scaled_dot",
    OperationKind.RECURRENT: r"lstm|gru(?![a-z])|rnn",
    OperationKind.FUSED_PRODUCT: r"ynn",  # XLA's calls of XNNPACK: products or convolutions with what follows
    OperationKind.CONVOLUTION: r"conv(?!ert)|winograd|fprop|dgrad|wgrad",
    OperationKind.MATRIX_PRODUCT: r"gemm|gemv|mat_?mul|addmm|(?<![a-z])b?mm(?![a-z])"
    r"|(?<![a-z])dot|linear|einsum|cutlass",
    OperationKind.NORMALISATION: r"(batch|layer|group|instance|rms)_?norm",
    OperationKind.POOLING: r"pool",
    OperationKind.UPDATE: r"adam|sgd|rmsprop|resourceapply|multi_tensor|foreach",
    OperationKind.FUSION: r"fusion|fused|triton|cluster",
    OperationKind.INDEXING: r"gather|scatter|embedding|index|sort|top_?k|one_?hot|select|where",
    OperationKind.REDUCTION: r"reduc|sum|mean|softmax|arg_?m|norm|loss|xent|entropy|(?<![a-z])all(?![a-z])",
    OperationKind.COPY: r"copy|memcpy|memset|transpose|concat|(?<![a-z])cat|slice|pad|clone|fill|zero|ones"
    r"|expand|reshape|split|stack|broadcast|convert|cast|iota|bias_?grad",
    OperationKind.ELEMENTWISE: r"add|sub|mul|div|relu|elu|tanh|sigmoid|exp|log|pow|sqrt|max|min|neg|abs|sign|clamp"
    r"|clip|threshold|dropout|random|bernoulli|elementwise|square|floor|ceil|round|accumulate|compare"
    r"|(?<![a-z])(gt|ge|lt|le|eq|ne|not|and|or|xor)(?![a-z])",
}
_VIEW = re.compile(
    r"aten::(t|numpy_t|transpose|permute|view|_unsafe_view|reshape|flatten|unflatten|expand|as_strided|detach|alias|chunk"
    r"|squeeze|unsqueeze|select|slice|narrow|unbind|split|empty|empty_like|empty_strided|new_empty|lift_fresh)_?$"
    r"|(t|view|transpose|permute|reshape|squeeze|unsqueeze|alias|detach)backward\d*$|bitcast(\.\d+)?$"
)
# Names that `reconstruct.xplane.graph` gives: phase and layer.
_SEGMENT = re.compile(r"(forward|backward|update|input|operations)( |$)")
_SEARCHES = tuple((kind, re.compile(rule)) for kind, rule in _RULES.items())


@lru_cache(maxsize=1 << 14)
def kind_of(name: str) -> OperationKind:
    """Return the kind of an operation. Scopes before it, as in `lstm/dense/MatMul` or `aten::mm`, do not count.

    The backward pass of an operation, such as `MmBackward0`, is of its kind.
    """
    if _SEGMENT.match(name):
        return OperationKind.SEGMENT
    name = name.partition(" > ")[0]  # what an operator calls, if it calls a library or a collective
    if _VIEW.match(name.lower()):
        return OperationKind.VIEW
    own = name if "<" in name else re.split(r"[/:]", name.rstrip("/:"))[-1]
    own = re.sub(r"backward\d*", " ", own.lower())
    return next((kind for kind, search in _SEARCHES if search.search(own)), OperationKind.OTHER)

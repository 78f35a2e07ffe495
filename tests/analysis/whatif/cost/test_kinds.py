"""The kind of an operation follows from its name, in the vocabulary of each backend and of CUDA's libraries."""

from __future__ import annotations

import pytest

from keras_matrix.analysis.whatif.cost_operations import OperationKind, kind_of

NAMES = {
    OperationKind.MATRIX_PRODUCT: [
        "aten::mm",
        "aten::addmm",
        "MmBackward0",
        "aten::linear > cudaLaunchKernel",
        "dot.3",
        "model/lstm/dense/MatMul:MatMul",
        "_FusedMatMul",
        "ampere_sgemm_128x64_tn",
        "void cutlass::Kernel2<cutlass_80_tensorop_bf16>",
    ],
    OperationKind.CONVOLUTION: ["aten::convolution_backward", "convolution.4", "conv2d/Conv2D:Conv2D"],
    OperationKind.RECURRENT: ["aten::lstm", "aten::gru"],
    OperationKind.NORMALISATION: ["aten::native_batch_norm", "LayerNormKernel"],
    OperationKind.FUSION: ["broadcast_add_fusion.2", "loop_fusion"],
    OperationKind.REDUCTION: ["aten::sum", "NllLossBackward0", "reduce-window.3", "aten::_log_softmax"],
    OperationKind.COPY: ["aten::_to_copy", "wrapped_convert", "Memcpy HtoD", "ExpandBackward0"],
    OperationKind.UPDATE: ["aten::_foreach_add_", "ResourceApplyGradientDescent", "Optimizer.step#SGD.step"],
    OperationKind.INDEXING: ["aten::embedding", "GatherV2"],
    OperationKind.ELEMENTWISE: [
        "aten::mul_",
        "ReluBackward0",
        "aten::gt",
        "torch::autograd::AccumulateGrad > c10d::allreduce_",
    ],
    OperationKind.SEGMENT: ["forward dense_1", "backward block/query", "update", "operations #2"],
    OperationKind.VIEW: ["aten::t", "aten::view", "TBackward0", "aten::squeeze_", "bitcast.7"],
    OperationKind.FUSED_PRODUCT: ["ynn_fusion.3"],
    OperationKind.OTHER: ["aten::item", "something new"],
}


@pytest.mark.parametrize(("kind", "name"), [(kind, name) for kind, names in NAMES.items() for name in names])
def test_the_name_of_an_operation_decides_its_kind(kind: OperationKind, name: str) -> None:
    assert kind == kind_of(name)

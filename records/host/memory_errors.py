"""The error texts of frameworks and CUDA's libraries for exhausted device memory.

XLA and TensorFlow report RESOURCE_EXHAUSTED, PyTorch's allocator "CUDA out of memory", the CUDA runtime "CUDA error:
out of memory", its driver CUDA_ERROR_OUT_OF_MEMORY; cuDNN and cuBLAS a status if they cannot allocate a workspace.
"""

from __future__ import annotations

OUT_OF_MEMORY_TEXTS = (
    "RESOURCE_EXHAUSTED",
    "CUDA out of memory",
    "CUDA error: out of memory",
    "CUDA_ERROR_OUT_OF_MEMORY",
    "CUDNN_STATUS_ALLOC_FAILED",
    "CUBLAS_STATUS_ALLOC_FAILED",
)


def says_out_of_memory(text: str) -> bool:
    """Return whether an error's message reports that the device is out of memory."""
    return any(one in text for one in OUT_OF_MEMORY_TEXTS)

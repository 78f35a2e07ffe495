"""The texts by which frameworks and CUDA's libraries say that the memory of a device is used up.

XLA and TensorFlow say RESOURCE_EXHAUSTED, PyTorch's allocator "CUDA out of memory", the CUDA runtime "CUDA error: out
of memory", its driver CUDA_ERROR_OUT_OF_MEMORY; cuDNN and cuBLAS have a status where they cannot allocate a workspace.
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
    """Return whether an error's message says that the device has no memory left."""
    return any(one in text for one in OUT_OF_MEMORY_TEXTS)

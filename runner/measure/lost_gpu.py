"""Decides whether a GPU was lost while a cell used it, or used exclusively by another process. Pure.

A report by NVML always counts. The output of a cell counts only after the cell has failed, and only to distinguish a
broken GPU (a further attempt may succeed) from an error of the cell: it never turns a failure into a success.
The texts are those of CUDA (cudaErrorECCUncorrectable, cudaErrorDevicesUnavailable; driver_types.h, cuda.h) and of
NVIDIA's kernel module, whose errors are called Xid. "Unspecified launch failure" (cudaErrorLaunchFailure) is not among
them: "common causes include dereferencing an invalid device pointer and accessing out of bounds shared memory", which
are errors in a kernel. cudaErrorDevicesUnavailable is what CUDA returns "due to use of cudaComputeModeProhibited,
cudaComputeModeExclusiveProcess, or when long running CUDA kernels have filled up the GPU".
"""

from __future__ import annotations

import re

from keras_matrix.records.schema import CellResult
from keras_matrix.runner.cell.job import Job
from keras_matrix.runner.executors import Outcome

ADVICE = "look for Xid in the kernel's log (dmesg), reset the GPU (nvidia-smi --gpu-reset) or restart the machine"
MESSAGES = re.compile(
    r"CUDA_ERROR_ECC_UNCORRECTABLE|uncorrectable ECC error|\bdevice lost\b|\bGPU is lost\b|fallen off the bus|\bXid\b",
    re.IGNORECASE,
)
BUSY = re.compile(
    r"CUDA_ERROR_DEVICE_UNAVAILABLE|CUDA-capable device\(s\) is/are busy or unavailable|cudaErrorDevicesUnavailable",
    re.IGNORECASE,
)


def lost_gpu(job: Job, outcome: Outcome, result: CellResult | None = None) -> str | None:
    """Return how a GPU of this attempt was lost and what to do, or None."""
    if job.settings.device != "gpu":
        return None
    if reported := reported_lost(outcome):
        return reported
    found = _printed(MESSAGES, outcome, result)
    return f'GPU lost: the cell failed and its output says "{found}"; {ADVICE}' if found else None


def busy_gpu(job: Job, outcome: Outcome, result: CellResult | None = None) -> str | None:
    """Return that another process used the GPU exclusively and what to do, or None."""
    found = _printed(BUSY, outcome, result) if job.settings.device == "gpu" else None
    if found is None:
        return None
    return (
        f'GPU busy: another process uses it exclusively (the output says "{found}"); stop it, or end the exclusive '
        "mode: nvidia-smi -c DEFAULT"
    )


def _printed(pattern: re.Pattern[str], outcome: Outcome, result: CellResult | None) -> str | None:
    """Return the match in the message or output of a failed cell, or None."""
    raised = result is not None and result.exception is not None
    if outcome.exit_code == 0 and not raised:
        return None
    message = (result.message or "") if result is not None else ""
    found = pattern.search(message) or pattern.search(outcome.output_tail)
    return found.group() if found else None


def reported_lost(outcome: Outcome) -> str | None:
    """Return NVML's report of a lost GPU and what to do, or None."""
    return f"GPU lost: NVML says {outcome.gpu_lost}; {ADVICE}" if outcome.gpu_lost is not None else None

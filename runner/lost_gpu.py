"""Whether a GPU was lost while a cell used it: pure.

NVML's word counts in any case. What a cell prints counts only once the cell has failed, and only to tell a broken GPU
(which another try may not meet) from an error of the cell: it never makes a failure a success.
The texts are those of CUDA (cudaErrorLaunchFailure, CUDA_ERROR_LAUNCH_FAILED, cudaErrorECCUncorrectable,
cudaErrorDevicesUnavailable; driver_types.h, cuda.h) and of NVIDIA's kernel module, whose errors are called Xid.
"""

from __future__ import annotations

import re

from records.schema import CellResult
from runner.cell.job import Job
from runner.executors import Outcome

ADVICE = "look for Xid in the kernel's log (dmesg), reset the GPU (nvidia-smi --gpu-reset) or restart the machine"
MESSAGES = re.compile(
    r"CUDA error: unspecified launch failure|CUDA_ERROR_LAUNCH_FAILED|CUDA_ERROR_ECC_UNCORRECTABLE"
    r"|uncorrectable ECC error|CUDA_ERROR_DEVICE_UNAVAILABLE"
    r"|\bdevice lost\b|\bGPU is lost\b|fallen off the bus|\bXid\b",
    re.IGNORECASE,
)


def lost_gpu(job: Job, outcome: Outcome, result: CellResult | None = None) -> str | None:
    """Return how a GPU of this attempt was lost and what to do, None where nothing says so."""
    if job.settings.device != "gpu":
        return None
    if reported := reported_lost(outcome):
        return reported
    raised = result is not None and result.exception is not None
    if outcome.exit_code == 0 and not raised:
        return None
    message = (result.message or "") if result is not None else ""
    found = MESSAGES.search(message) or MESSAGES.search(outcome.output_tail)
    return f'GPU lost: the cell failed and its output says "{found.group()}"; {ADVICE}' if found else None


def reported_lost(outcome: Outcome) -> str | None:
    """Return what NVML reported of a lost GPU and what to do, None if it reported none."""
    return f"GPU lost: NVML says {outcome.gpu_lost}; {ADVICE}" if outcome.gpu_lost is not None else None

"""Decides whether a GPU was lost while a cell used it, or used exclusively by another process. Pure but for `LostGpus`.

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

from keras_matrix.records.schema import CellResult, Record, Status
from keras_matrix.records.settings import Settings
from keras_matrix.runner.cell.job import Job
from keras_matrix.runner.executors import Outcome

GPU_LOST = "GPU lost"
# A GPU that was lost twice in a row stays lost until somebody resets it: each further cell would only fail, too.
MOST_LOST = 2
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
    return f'{GPU_LOST}: the cell failed and its output says "{found}"; {ADVICE}' if found else None


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
    return f"{GPU_LOST}: NVML says {outcome.gpu_lost}; {ADVICE}" if outcome.gpu_lost is not None else None


class LostGpus:
    """Counts the attempts in a row that lost their GPU: after `MOST_LOST` no cell is started on a GPU any more."""

    def __init__(self) -> None:
        self._in_a_row = 0

    def ended(self, record: Record) -> None:
        """Count an attempt that has ended; one that was not started changes nothing."""
        if record.settings.device == "gpu" and not self._is_over:
            is_lost = record.status is Status.INFRA and (record.reason or "").startswith(GPU_LOST)
            self._in_a_row = self._in_a_row + 1 if is_lost else 0

    def why_not(self, settings: Settings) -> str | None:
        """Return why no cell with these settings is started, or None."""
        if settings.device != "gpu" or not self._is_over:
            return None
        return (
            f"gpu_lost: not started, as {MOST_LOST} attempts in a row lost their GPU; {ADVICE}, and repeat the command"
        )

    @property
    def _is_over(self) -> bool:
        return self._in_a_row >= MOST_LOST

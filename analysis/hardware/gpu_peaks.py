"""Merging of a GPU's peaks from several images: each image has one backend, and all measured the same device.

Guarantee: pure. Figures of CPUs are those of one measurement, never merged.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import replace

from keras_matrix.records.instruments.peaks import Peaks

DEVICE = "gpu"


def merged(own: Peaks, others: Iterable[Peaks]) -> Peaks:
    """Return `own`, which has figures of a GPU, with the newest ones of other backends from the same GPU."""
    for other in sorted(others, key=lambda one: one.measured_at, reverse=True):
        if same_gpu(own, other):
            own = _with_backends_of(own, other)
    return own


def same_gpu(one: Peaks, other: Peaks) -> bool:
    """Return whether both measured the same GPU: by its UUID; if one lacks it, by host and product name."""
    if one.gpu_uuid and other.gpu_uuid:
        return one.gpu_uuid == other.gpu_uuid
    product = one.devices.get(DEVICE)
    same_host = one.machine.host_id == other.machine.host_id
    return product is not None and product == other.devices.get(DEVICE) and same_host


def backends(peaks: Peaks) -> tuple[str, ...]:
    """Return the backends whose matrix products were timed on the GPU."""
    return tuple(sorted({gemm.backend for gemm in peaks.gemms if gemm.device == DEVICE}))


def note(peaks: Peaks) -> str | None:
    """Return a note on the backends that a GPU's peaks are of; None without a GPU."""
    found = backends(peaks)
    if not found:
        return None
    if len(found) > 1:
        return f"the GPU's peaks are the best of {', '.join(found)}, each measured on this GPU"
    return (
        f"the GPU's peaks are of {found[0]}, this image's backend only: measure them with the other backends' GPU "
        "images too, into the same results folder, with: runner roofline --measure"
    )


def _with_backends_of(own: Peaks, other: Peaks) -> Peaks:
    known, timed = backends(own), {stream.by for stream in own.streams if stream.device == DEVICE}
    gemms = [one for one in other.gemms if one.device == DEVICE and one.backend not in known]
    streams = [one for one in other.streams if one.device == DEVICE and one.by not in timed]
    # On a GPU the number of CPUs does not identify a figure, and images may have different ones.
    threads = next(gemm.threads for gemm in own.gemms if gemm.device == DEVICE)
    return replace(
        own,
        gemms=own.gemms + [replace(one, threads=threads) for one in gemms],
        streams=own.streams + [replace(one, threads=threads) for one in streams],
        devices=other.devices | own.devices,
    )

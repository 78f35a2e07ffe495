"""The peaks of JAX's allocator on the devices of several workers."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any


def device_peaks_bytes(devices: Sequence[Any]) -> list[int]:
    """Return the peak of the allocator on each device; empty if a device does not report it, such as a CPU."""
    reported = [(device.memory_stats() or {}).get("peak_bytes_in_use") for device in devices]
    return [int(peak) for peak in reported if peak is not None] if None not in reported else []

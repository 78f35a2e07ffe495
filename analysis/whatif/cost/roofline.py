"""The time of an operation from a device's peaks: overhead + max(FLOPs / peak, bytes / bandwidth) / efficiency.

The part without overhead and efficiency is the roofline: Williams, Waterman, Patterson, "Roofline: an insightful visual
performance model for multicore architectures", CACM 52(4), 2009. Both are learned by kind of operation. The overhead is
what an operation without work takes: its call, and the start of threads or of a kernel. Efficiencies above 1 occur
where data stay in caches, because the bandwidth is that of memory.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

from keras_matrix.analysis.roofline import ComputePlace, MachinePeaks, products, slopes
from keras_matrix.records.instruments.peaks import Peaks

MEASURED = "measured"
OBSERVED = "best rates in the traces"
DTYPES = {
    **dict.fromkeys(("float", "f32", "float32", "torch.float32", "float32_ref", "single"), "float32"),
    **dict.fromkeys(("double", "f64", "float64"), "float64"),
    **dict.fromkeys(("bf16", "bfloat16", "c10::bfloat16"), "bfloat16"),
    **dict.fromkeys(("half", "f16", "float16", "c10::half"), "float16"),
}
# Candidates for the overhead and the efficiency of a kind; more do not change the figures of docs/costmodels.md.
_QUANTILES = 24
_SHARES = (0.25, 0.5, 0.75, 0.9, 1.0)
_MOST_FITTED = 400


@dataclass(frozen=True, slots=True)
class DevicePeaks:
    """Where operations ran: a backend on a product with so many cores (None on an accelerator), and its peaks.

    `flop_per_s` is by precision. `source` is `MEASURED`, or `OBSERVED` if only the traces themselves bound the rates:
    efficiencies relative to these are not used for other devices. A rate is None if nothing is known of it.
    """

    backend: str
    product: str
    cores: int | None
    flop_per_s: dict[str, float]
    byte_per_s: float | None
    source: str = MEASURED

    @property
    def identity(self) -> tuple[str, str, int | None]:
        """What makes two of these the same device, whatever their peaks."""
        return self.backend, self.product, self.cores

    def __str__(self) -> str:
        cores = f", {self.cores} cores" if self.cores else ""
        return f"{self.backend} on {self.product}{cores}"


@dataclass(frozen=True, slots=True)
class Fitted:
    """The overhead and the efficiency of a kind of operation."""

    overhead_s: float
    efficiency: float

    def time_s(self, ideal_s: float) -> float:
        """Return the time of an operation whose roofline is `ideal_s`."""
        return self.overhead_s + ideal_s / self.efficiency


def precision_of(dtype: str | None) -> str | None:
    """Return the precision by its name in the peaks; None for integers and unknown types."""
    return DTYPES.get(dtype.lower()) if dtype else None


def ideal_s(flops: float | None, moved_bytes: float | None, dtype: str | None, peaks: DevicePeaks) -> float | None:
    """Return the roofline's time of this work, in seconds; None if no part of it and of the peaks is known.

    A precision without a peak, such as that of integers, takes that of float32: the learned efficiency corrects it.
    """
    rate = peaks.flop_per_s.get(precision_of(dtype) or "float32") or peaks.flop_per_s.get("float32")
    compute_s = flops / rate if flops and rate else 0.0
    memory_s = moved_bytes / peaks.byte_per_s if moved_bytes and peaks.byte_per_s else 0.0
    return max(compute_s, memory_s) or None


def fit(points: Sequence[tuple[float, float]]) -> Fitted:
    """Return overhead and efficiency of points (roofline's time, measured time), both in seconds and positive.

    They have the smallest mean absolute difference of logarithms, over a grid of quantiles of what the points suggest.
    """
    kept = sorted(points)
    kept = [kept[at * len(kept) // _MOST_FITTED] for at in range(_MOST_FITTED)] if len(kept) > _MOST_FITTED else kept
    times = sorted(time for _, time in kept)
    best, smallest = Fitted(0.0, 1.0), math.inf
    for overhead in (0.0, *(time * share for time in (times[0], times[len(times) // 4]) for share in _SHARES)):
        rates = sorted(ideal / (time - overhead) for ideal, time in kept if time > overhead)
        for efficiency in _quantiles(rates):
            found = Fitted(overhead, efficiency)
            error = sum(abs(math.log(found.time_s(ideal) / time)) for ideal, time in kept)
            if error < smallest:
                best, smallest = found, error
    return best


def _quantiles(values: Sequence[float]) -> list[float]:
    """Return at most `_QUANTILES` of the sorted values, evenly spaced, without repetitions."""
    count = min(len(values), _QUANTILES)
    return sorted({values[at * (len(values) - 1) // max(1, count - 1)] for at in range(count)})


def device_peaks(peaks: Peaks, backend: str, device: str, cores: int | None) -> DevicePeaks | None:
    """Return the measured peaks of a device with as many cores; None if none of them was measured there.

    With cores None, or on an accelerator, it is the device as a whole.
    """
    measured = MachinePeaks(products(peaks), slopes(peaks))
    places = [roof.place for roof in measured.roofs if roof.place.device == device]
    threads = cores if device == "cpu" and cores else max((place.threads for place in places), default=0)
    here = {place.precision: place for place in places if device != "cpu" or place.threads == threads}
    rates = {name: roof.best_flop_per_s for name, place in here.items() if (roof := measured.product(place))}
    slope = measured.slope(ComputePlace(device, "float32", threads))
    if not rates and slope is None:
        return None
    product = peaks.machine.cpu_model if device == "cpu" else peaks.devices.get(device, device)
    return DevicePeaks(
        backend, product, threads if device == "cpu" else None, rates, slope.best_byte_per_s if slope else None
    )

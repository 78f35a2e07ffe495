"""Judges the figures of a first hour: each function returns an outcome with the measured values. Pure.

The limits are wide enough for noisy machines: they distinguish a broken measurement from a correct one, not a fast GPU
from a slow one.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from statistics import fmean

from keras_matrix.analysis.hardware.datasheet import TERA, Datasheet
from keras_matrix.records.instruments.first_hour import ProbeAnswer
from keras_matrix.records.instruments.peaks import Gemm, Stream
from keras_matrix.records.text import bytes_text, percentage, seconds
from keras_matrix.runner.checks.first_hour.steps import Found, Outcome

# |found - wanted| / |wanted| of a product of random values: 3e-4 with TF32's 10 bits of mantissa, 1e-6 with float32's.
TF32_ERROR = 3e-5
TWICE = (1.8, 2.2)
# The device's time for a step with the profiler, relative to the step's time without. On a CPU it costs more.
TRACED = {"gpu": (0.8, 1.15), "cpu": (0.3, 2.0)}
# After a barrier that waited, reading a number takes a negligible share of the time of the work.
READ_SHARE = 0.2
ASYNCHRONOUS = 0.5  # maximum share of the time of the work after which asynchronous calls have returned
ALLOCATED = (0.95, 1.5)
# Share of the data sheet: matrix products and STREAM.
GEMM, STREAM = (0.60, 1.02), (0.70, 1.02)
ENERGY = (0.85, 1.15)
CLOCK_SCATTER = 0.01
PRECISIONS = ("matmul", "convolution", "rnn")


def within(value: float, limits: tuple[float, float]) -> Outcome:
    """Return OK if a value is within its limits, else FAILED."""
    return Outcome.OK if limits[0] <= value <= limits[1] else Outcome.FAILED


def doubled(short_s: float, long_s: float) -> Found:
    """Judge the times of an epoch and of one with twice the steps."""
    ratio = long_s / short_s
    text = f"{short_s:.3f} s and {long_s:.3f} s: {ratio:.2f} times as long"
    return Found(within(ratio, TWICE), text, figures={"short_s": short_s, "long_s": long_s})


def synchronised(found: ProbeAnswer, device: str) -> Found:
    """Judge whether a barrier waits: calls return before the work is done, and reading afterwards takes no time."""
    figures = {"called_s": found.called_s, "waited_s": found.waited_s, "read_s": found.read_s}
    text = (
        f"the calls returned after {found.called_s:.4f} s, the barrier after {found.waited_s:.4f} s; "
        f"reading the result took {found.read_s:.4f} s more"
    )
    if found.read_s > READ_SHARE * found.waited_s:
        return Found(Outcome.FAILED, f"{text}: the barrier did not wait for the device", figures=figures)
    if found.called_s <= ASYNCHRONOUS * found.waited_s:
        return Found(Outcome.OK, text, figures=figures)
    if device == "cpu":
        return Found(Outcome.NOT_RUN, f"{text}: on this CPU the calls do the work themselves", figures=figures)
    return Found(Outcome.FAILED, f"{text}: the calls waited themselves, so the barrier is not tested", figures=figures)


def traced(busy_s: float, step_s: float, device: str) -> Found:
    """Compare the device's time for a step in a trace with the step's time without a profiler."""
    share = busy_s / step_s
    text = f"busy for {seconds(busy_s)} of a step in the trace, {seconds(step_s)} a step without: {percentage(share)}"
    limits = TRACED.get(device, TRACED["gpu"])
    return Found(within(share, limits), text, figures={"busy_s": busy_s, "step_s": step_s})


def resident(copies: Sequence[tuple[str, int | None]], batch_bytes: int) -> Found:
    """Judge the copies from host to device in traced steps: name and bytes of each, None if not reported."""
    total = sum(size or 0 for _, size in copies)
    unknown = sum(size is None for _, size in copies)
    figures = {"copies": len(copies), "bytes": total, "of_unknown_size": unknown, "batch_bytes": batch_bytes}
    text = f"{len(copies)} copies from host to device, {total:,} bytes ({unknown} of unknown size); a batch is "
    text += f"{batch_bytes:,} bytes"
    return Found(Outcome.OK if total < batch_bytes / 2 and not unknown else Outcome.FAILED, text, figures=figures)


def precise(errors: Mapping[str, float], recorded: Mapping[str, bool | None], device: str) -> Found:
    """Compare a record's use of TF32 with the errors of a product, a convolution and a recurrent layer."""
    words = {None: "not probed", True: "yes", False: "no"}
    lines = [
        f"{name}: error {errors[name]:.1e}, TF32 in the record: {words[recorded.get(name)]}" for name in PRECISIONS
    ]
    wrong = [name for name in PRECISIONS if bool(recorded.get(name)) != (errors[name] > TF32_ERROR)]
    unknown = [name for name in PRECISIONS if recorded.get(name) is None and device == "gpu"]
    outcome = Outcome.FAILED if wrong or unknown else Outcome.OK
    return Found(outcome, "; ".join(lines), figures={"errors": dict(errors), "recorded": dict(recorded)})


def allocated(wanted_bytes: int, grown_bytes: int | None, pools_bytes: Mapping[str, int | None]) -> Found:
    """Judge the growth of the allocator's peak by a known allocation, and whether the driver's peaks include it.

    A backend may reserve memory in advance; then the driver's peaks do not grow. None means not reported.
    """
    pools = {name: size for name, size in pools_bytes.items() if size is not None}
    share = None if grown_bytes is None else grown_bytes / wanted_bytes
    fits = share is not None and within(share, ALLOCATED) is Outcome.OK
    lines = [f"the peak grew by {'an unknown part' if share is None else f'{share:.2f}'} of it"]
    lines += [f"{name} {bytes_text(size)}" for name, size in pools.items()]
    lines += [f"{name} not reported" for name in pools_bytes.keys() - pools.keys()]
    text = f"{bytes_text(wanted_bytes)} more were allocated: {', '.join(lines)}"
    outcome = Outcome.OK if fits and all(size >= wanted_bytes for size in pools.values()) else Outcome.FAILED
    return Found(outcome, text, figures={"wanted_bytes": wanted_bytes, "grown_bytes": grown_bytes, **pools})


def against_datasheet(gemms: Iterable[Gemm], streams: Iterable[Stream], sheet: Datasheet | None) -> Found:
    """Compare the peaks that a backend reached on its device with those that the device's maker states."""
    rates = {one.precision: one.flop_per_s.best for one in gemms}
    memory = max((one.byte_per_s.best for one in streams), default=None)
    figures = {"flop_per_s": rates, "byte_per_s": memory}
    if sheet is None:
        measured = [f"{name} {rate / TERA:.3g} TFLOP/s" for name, rate in rates.items()]
        text = ", ".join([*measured, *([f"memory {memory / TERA:.3g} TB/s"] if memory else [])])
        return Found(Outcome.NOT_RUN, f"the data sheet of this device is not known; measured {text}", figures=figures)
    shares = {name: (rates[name] / stated, GEMM) for name, stated in sheet.flop_per_s.items() if name in rates}
    if memory:
        shares["memory"] = (memory / sheet.memory_byte_per_s, STREAM)
    outside = [name for name, (share, limits) in shares.items() if within(share, limits) is Outcome.FAILED]
    text = ", ".join(f"{name} {percentage(share)}" for name, (share, _) in shares.items())
    outcome = Outcome.FAILED if outside or not shares else Outcome.OK
    return Found(outcome, f"of the data sheet of {sheet.product}: {text}", figures=figures)


def clocks_constant(clocks_hz: Sequence[int | None]) -> Found:
    """Judge the clocks at the ends of the epochs of a cell with locked clocks."""
    known = [clock for clock in clocks_hz if clock is not None]
    if not known:
        return Found(Outcome.FAILED, "the driver reports no clock")
    scatter = (max(known) - min(known)) / max(known)
    text = f"{min(known) / 1e6:,.0f} to {max(known) / 1e6:,.0f} MHz at {len(known)} ends of epochs"
    outcome = Outcome.OK if scatter <= CLOCK_SCATTER else Outcome.FAILED
    return Found(outcome, text, figures={"clocks_hz": list(clocks_hz)})


def energy_agrees(energies_j: Sequence[float | None], times_s: Sequence[float], power_w: float | None) -> Found:
    """Compare the counted energy of epochs with the mean of the power sampled in them."""
    known = [(energy, time) for energy, time in zip(energies_j, times_s, strict=False) if energy is not None]
    if not known or power_w is None:
        return Found(Outcome.FAILED, "the driver reports no energy, or no power")
    counted_w = fmean(energy / time for energy, time in known)
    ratio = counted_w / power_w
    text = f"{counted_w:.0f} W by the energy counter, {power_w:.0f} W by sampled power: {ratio:.2f}"
    return Found(within(ratio, ENERGY), text, figures={"counted_w": counted_w, "sampled_w": power_w})


def ended_with(status: str, wanted: str, reason: str | None) -> Found:
    """Compare a status with the one that a check provokes."""
    outcome = Outcome.OK if status == wanted else Outcome.FAILED
    return Found(outcome, f"{status}: {reason or 'no reason'}", figures={"status": status})

"""How much of the machine a cell uses: its FLOPs against what the machine was measured to do.

Model FLOPs, not hardware FLOPs: what the model needs, two per multiply-add of every matrix product and convolution,
with nothing for recomputation or element-wise work. A training step counts three times its forward pass: the backward
pass makes two products for each one forward (Kaplan et al., "Scaling laws for neural language models", 2020, 2.1).
Their share of a stated peak is the model FLOPs utilisation, MFU (Chowdhery et al., "PaLM", 2022, appendix B).

A roof is the best matrix product that any installed backend reached in that precision on that many CPUs; the slope is
STREAM's triad. Source: Williams, Waterman, Patterson, "Roofline: an insightful visual performance model for multicore
architectures", CACM 52(4), 2009.

Promise: pure; None where FLOPs, bytes or peak are not known.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass

from keras_matrix.analysis.comparison import tf32
from keras_matrix.analysis.comparison.table import CellSummary
from keras_matrix.analysis.hardware import gpu_peaks
from keras_matrix.analysis.hardware.datasheet import datasheet
from keras_matrix.records.fc import spec
from keras_matrix.records.instruments.peaks import Gemm, Peaks, Stream
from keras_matrix.records.instruments.work import Work, work_key
from keras_matrix.records.settings import Settings

TRAINING_PER_FORWARD = 3
# What a dtype policy computes in, and what its variables are kept in, in bytes an element.
COMPUTED_IN = {
    "float32": "float32",
    "float64": "float64",
    "bfloat16": "bfloat16",
    "mixed_bfloat16": "bfloat16",
    "mixed_float16": "float16",
}
ELEMENT_BYTES = {"float64": 8, "float32": 4, "tf32": 4, "bfloat16": 2, "float16": 2}
MIXED_VARIABLE_BYTES = 4
ABOVE_PEAK = 1.02
QUIET_SHARE = 0.05  # of all CPU time, by others: above it the peaks are told to be doubtful


@dataclass(frozen=True, slots=True)
class Place:
    """Where products run: a device, a precision, a number of CPUs. On an accelerator the CPUs do not matter."""

    device: str
    precision: str
    threads: int


@dataclass(frozen=True, slots=True)
class Roof:
    """The best product of any backend at a place: best and median over `calls` calls, in FLOP/s."""

    place: Place
    backend: str
    size: int
    best_flop_per_s: float
    median_flop_per_s: float
    calls: int
    processes: int
    datasheet_flop_per_s: float | None


@dataclass(frozen=True, slots=True)
class Slope:
    """The best triad, and the best copy, on as many CPUs of a device, in byte/s."""

    device: str
    threads: int
    by: str
    best_byte_per_s: float
    median_byte_per_s: float
    calls: int
    copy_byte_per_s: float | None
    array_bytes: int


@dataclass(frozen=True, slots=True)
class OwnGemm:
    """A backend's own product against the machine's best at the same place."""

    place: Place
    backend: str
    size: int
    best_flop_per_s: float
    median_flop_per_s: float
    calls: int
    share_of_best: float


@dataclass(frozen=True, slots=True)
class Share:
    """One cell's use of the machine. Shares are of 1; None where a part of them is not known.

    `low` and `high` are the ends of the step time's interval between processes, turned into shares of the peak.
    `peak_of` says of which backend a GPU's measured peak is, and out of how many; None on a CPU.
    `bytes_per_step` is a lower bound, so that `intensity_flop_per_byte` is an upper one.
    """

    cell_id: str
    title: str
    backend: str
    place: Place | None
    flops_per_step: int | None
    bytes_per_step: int | None
    intensity_flop_per_byte: float | None
    step_time_s: float | None
    achieved_flop_per_s: float | None
    peak_flop_per_s: float | None
    share_of_peak: float | None
    low: float | None
    high: float | None
    own_gemm_flop_per_s: float | None
    share_of_own_gemm: float | None
    roof_flop_per_s: float | None
    datasheet_flop_per_s: float | None
    mfu: float | None
    note: str | None
    peak_of: str | None = None


@dataclass(frozen=True, slots=True)
class Roofline:
    """A run against its machine."""

    shares: tuple[Share, ...]
    roofs: tuple[Roof, ...]
    slopes: tuple[Slope, ...]
    own: tuple[OwnGemm, ...]
    notes: tuple[str, ...]


def roofline(cells: Iterable[tuple[str, CellSummary]], works: Mapping[str, Work], peaks: Peaks | None) -> Roofline:
    """Set each cell, given with its row's title, against the peaks. `works` maps `records.instruments.work.work_key`
    to counts.
    """
    all_roofs = roofs(peaks) if peaks else ()
    all_slopes = slopes(peaks) if peaks else ()
    own = own_gemms(peaks, all_roofs) if peaks else ()
    found = []
    for title, cell in cells:
        work = works.get(work_key(cell.settings.workload, cell.settings.params))
        found.append(_share(title, cell, work, Measured(all_roofs, all_slopes, own)))
    return Roofline(tuple(found), all_roofs, all_slopes, own, tuple(_notes(peaks)))


@dataclass(frozen=True, slots=True)
class Measured:
    """What was found of a machine."""

    roofs: tuple[Roof, ...] = ()
    slopes: tuple[Slope, ...] = ()
    own: tuple[OwnGemm, ...] = ()

    def roof(self, place: Place | None) -> Roof | None:
        """Return the roof over a place."""
        return next((r for r in self.roofs if place and _same(r.place, place)), None)

    def own_gemm(self, place: Place | None, backend: str) -> OwnGemm | None:
        """Return a backend's own product at a place."""
        return next((o for o in self.own if place and o.backend == backend and _same(o.place, place)), None)

    def peak_of(self, place: Place | None) -> str | None:
        """Return of which backend a GPU's peak is, and out of how many; None on a CPU."""
        roof = self.roof(place)
        if roof is None or roof.place.device != gpu_peaks.DEVICE:
            return None
        count = sum(_same(one.place, roof.place) for one in self.own)
        return (
            f"{roof.backend}, this image's backend only" if count == 1 else f"{roof.backend}, best of {count} backends"
        )

    def slope(self, place: Place | None) -> Slope | None:
        """Return the memory's slope at a place."""
        if place is None:
            return None
        slopes = (s for s in self.slopes if s.device == place.device)
        return next((s for s in slopes if place.device != "cpu" or s.threads == place.threads), None)


def flops_per_step(settings: Settings, work: Work | None) -> int | None:
    """Return the model FLOPs of one step, or of one call of predict; of the FC modes, all workers' by formula."""
    if spec.is_native(settings):
        return spec.flops_per_step(spec.problem_of(settings))
    if work is None or work.forward_flops_per_sample is None:
        return None
    forward = work.forward_flops_per_sample * settings.batch_size
    return forward * TRAINING_PER_FORWARD if settings.phase == "fit" else forward


def bytes_per_step(settings: Settings, work: Work | None) -> int | None:
    """Return a lower bound of the bytes a step moves: each array that a later pass needs crosses memory once a way.

    A training step reads and writes the weights, writes and reads their gradients, reads and writes the optimiser's
    slots, reads the batch, and writes and reads the inputs of every layer with weights. A call of predict reads the
    weights (of embedding tables nothing: a few rows) and the batch. Programs move more; only where some of this stays
    in the caches from pass to pass do they move less. Of the FC modes, whose workers hold what their mode says, None.
    """
    if spec.is_native(settings):
        return None
    if work is None or work.weight_elements is None or work.input_elements_per_sample is None:
        return None
    computed = ELEMENT_BYTES[COMPUTED_IN[settings.precision]]
    kept = MIXED_VARIABLE_BYTES if settings.precision.startswith("mixed_") else computed
    batch = settings.batch_size * work.input_elements_per_sample * computed
    if settings.phase != "fit":
        return kept * (work.weight_elements - (work.lookup_elements or 0)) + batch
    if work.trainable_elements is None or work.slot_elements is None or work.kept_elements_per_sample is None:
        return None
    variables = 2 * work.weight_elements + 2 * work.trainable_elements + 2 * work.slot_elements
    return kept * variables + batch + 2 * settings.batch_size * work.kept_elements_per_sample * computed


def place_of(cell: CellSummary) -> Place | None:
    """Return where a cell's products ran, as its records tell; None where none was measured."""
    record = next((r for r in cell.measured if r.resolved is not None), None)
    if record is None or record.resolved is None:
        return None
    precision = COMPUTED_IN[cell.settings.precision]
    if precision == "float32" and tf32.of_step(record.resolved):
        precision = "tf32"
    threads = record.resolved.cpus if record.resolved.cpus is not None else record.machine.logical_cpus
    return Place(cell.settings.device, precision, threads)


def roofs(peaks: Peaks) -> tuple[Roof, ...]:
    """Return one roof a place: the fastest call of the fastest backend."""
    found = {}
    for gemm in sorted(peaks.gemms, key=lambda gemm: gemm.flop_per_s.best):
        found[Place(gemm.device, gemm.precision, gemm.threads)] = gemm
    return tuple(_roof(place, gemm, peaks) for place, gemm in sorted(found.items(), key=_order))


def slopes(peaks: Peaks) -> tuple[Slope, ...]:
    """Return one slope a device and number of CPUs: the fastest triad of whoever timed it."""
    found: dict[tuple[str, int], Stream] = {}
    for stream in sorted(peaks.streams, key=lambda stream: stream.byte_per_s.best):
        if stream.kernel == "triad":
            found[stream.device, stream.threads] = stream
    return tuple(_slope(triad, peaks) for _, triad in sorted(found.items()))


def own_gemms(peaks: Peaks, over: tuple[Roof, ...]) -> tuple[OwnGemm, ...]:
    """Return each backend's best product at each place, against the roof there."""
    best = {roof.place: roof.best_flop_per_s for roof in over}
    found: dict[tuple[Place, str], Gemm] = {}
    for gemm in sorted(peaks.gemms, key=lambda gemm: gemm.flop_per_s.best):
        found[Place(gemm.device, gemm.precision, gemm.threads), gemm.backend] = gemm
    return tuple(
        OwnGemm(
            place,
            backend,
            gemm.size,
            gemm.flop_per_s.best,
            gemm.flop_per_s.median,
            len(gemm.flop_per_s.rates),
            gemm.flop_per_s.best / best[place],
        )
        for (place, backend), gemm in sorted(found.items(), key=lambda item: (*_order(item[0]), item[0][1]))
    )


def _order(item: tuple[Place, object]) -> tuple[str, int, str]:
    place = item[0]
    return place.device, -place.threads, place.precision


def _same(one: Place, other: Place) -> bool:
    cpus_differ = one.device == "cpu" and one.threads != other.threads
    return one.device == other.device and one.precision == other.precision and not cpus_differ


def _roof(place: Place, gemm: Gemm, peaks: Peaks) -> Roof:
    timed = gemm.flop_per_s
    sheet = datasheet(peaks.devices.get(place.device)) if place.device != "cpu" else None
    stated = sheet.flop_per_s.get(place.precision) if sheet else None
    return Roof(place, gemm.backend, gemm.size, timed.best, timed.median, len(timed.rates), timed.processes, stated)


def _slope(triad: Stream, peaks: Peaks) -> Slope:
    copies = [
        stream.byte_per_s.best
        for stream in peaks.streams
        if stream.kernel == "copy" and (stream.device, stream.threads) == (triad.device, triad.threads)
    ]
    timed = triad.byte_per_s
    return Slope(
        device=triad.device,
        threads=triad.threads,
        by=triad.by,
        best_byte_per_s=timed.best,
        median_byte_per_s=timed.median,
        calls=len(timed.rates),
        copy_byte_per_s=max(copies, default=None),
        array_bytes=triad.array_bytes,
    )


def _share(title: str, cell: CellSummary, work: Work | None, measured: Measured) -> Share:
    place, step = place_of(cell), cell.step_time
    flops, moved = flops_per_step(cell.settings, work), bytes_per_step(cell.settings, work)
    roof, own = measured.roof(place), measured.own_gemm(place, cell.settings.backend)
    peak, slope = (roof.best_flop_per_s if roof else None), measured.slope(place)
    intensity = flops / moved if flops and moved else None
    stated = roof.datasheet_flop_per_s if roof else None
    achieved = flops / step.centre if flops and step else None
    return Share(
        cell_id=cell.cell_id,
        title=title,
        backend=cell.settings.backend,
        place=place,
        flops_per_step=flops,
        bytes_per_step=moved,
        intensity_flop_per_byte=intensity,
        step_time_s=step.centre if step else None,
        achieved_flop_per_s=achieved,
        peak_flop_per_s=peak,
        share_of_peak=_over(achieved, peak),
        low=_over(flops, peak, step.high if step else None),
        high=_over(flops, peak, step.low if step else None),
        own_gemm_flop_per_s=own.best_flop_per_s if own else None,
        share_of_own_gemm=_over(achieved, own.best_flop_per_s if own else None),
        roof_flop_per_s=min(peak, intensity * slope.best_byte_per_s) if peak and intensity and slope else None,
        datasheet_flop_per_s=stated,
        mfu=_over(achieved, stated),
        note=_why(cell, flops, place, (achieved, peak)),
        peak_of=measured.peak_of(place),
    )


def _over(value: float | None, *divisors: float | None) -> float | None:
    """Return the value divided by each; None where any is not known."""
    for divisor in divisors:
        if value is None or not divisor:
            return None
        value = value / divisor
    return value


def _why(
    cell: CellSummary, flops: int | None, place: Place | None, rates: tuple[float | None, float | None]
) -> str | None:
    """Return why there is no share, or why it is doubtful."""
    achieved, peak = rates
    if cell.step_time is None or place is None:
        return "not measured"
    if flops is None:
        return "FLOPs not known"
    if achieved is None or peak is None:
        return f"no {place.precision} peak measured on {place.device} with {_cpus(place)}"
    if achieved > peak * ABOVE_PEAK:
        return "above the measured peak: the machine was busier then; measure the peaks again with --measure"
    return None


def _cpus(place: Place) -> str:
    return f"{place.threads} CPU" + "s" * (place.threads != 1)


def _notes(peaks: Peaks | None) -> Iterable[str]:
    if peaks is None:
        yield "no peaks measured for this machine and these versions: run `runner roofline` there"
        return
    if whose := gpu_peaks.note(peaks):
        yield whose
    if peaks.other_cpu_share is not None and peaks.other_cpu_share > QUIET_SHARE:
        yield (
            f"other processes used {peaks.other_cpu_share:.0%} of the CPU time while the peaks were measured: they may "
            "be too low; measure again with --measure when the machine is quiet"
        )
    for what, reason in sorted(peaks.refused.items()):
        yield f"not timed: {what}: {reason}"
    for what, note in sorted(peaks.notes.items()):
        yield f"{what}: {note}"

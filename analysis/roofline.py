"""How much of the machine a cell uses: its FLOP rate against the measured peaks of the machine.

Model FLOPs, not hardware FLOPs: two per multiply-add of every matrix product and convolution of the model, without
recomputation and element-wise work. A training step counts three times its forward pass: the backward
pass makes two products for each one forward (Kaplan et al., "Scaling laws for neural language models", 2020, 2.1).
Their share of a stated peak is the model FLOPs utilisation, MFU (Chowdhery et al., "PaLM", 2022, appendix B).

A roof is the best matrix product that any installed backend reached in that precision on that many CPUs; the slope is
STREAM's triad. Several accelerators of a cell have the roof and the slope of all together; several devices on a CPU
share the machine's. The FLOPs are those of the batch that all devices share. Source: Williams, Waterman, Patterson,
"Roofline: an insightful visual performance model for multicore architectures", CACM 52(4), 2009.

Peaks that GPU makers state are listed by product name. CPUs are not: their peak depends on clocks without guarantee.
They are dense rates, without structured sparsity, of the unit that a matrix product in that precision runs on (tensor
cores where there are any; float32 means full float32, not TF32), at boost clock. Memory in byte/s. Sources: NVIDIA's
data sheets V100 (2020), T4 (2019), A10 (2021), A100 (2022), A30 (2022), L4 (2023), L40S (2023), H100 (2023), H200
(2024), and the white paper of the Hopper architecture (2022) for the H100's dense rates; where a sheet gives
tensor-core rates "with sparsity" only, half of them. On 23 November 2026 the sheets were not available: L40S was
compared with a dealer's copy, H100 80GB HBM3 and H200 with other publications, and they agree; H100 NVL and H200 NVL
were entered without a copy and must still be compared with their sheets; the others are unchanged.

A GPU's peaks are merged from several images: each has one backend, and all measured the same device. Figures of CPUs
are those of one measurement, never merged.

Guarantee: pure; None if FLOPs, bytes or peak are unknown.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace

from keras_matrix.analysis.comparison import same_work
from keras_matrix.analysis.comparison.table import CellSummary, work_id
from keras_matrix.analysis.generation import median_of, read_rate
from keras_matrix.records.dtypes import COMPUTED_IN, ELEMENT_BYTES, variable_bytes
from keras_matrix.records.fc import spec
from keras_matrix.records.instruments.peaks import Gemm, Peaks, Stream
from keras_matrix.records.instruments.work import Work, work_key
from keras_matrix.records.settings import BACKWARD, DATA, GENERATE, GRADIENT, Settings
from keras_matrix.records.text import percentage

TRAINING_PER_FORWARD = 3
ABOVE_PEAK = 1.02
QUIET_SHARE = 0.05  # of all CPU time, by others: above it a note says that the peaks may be too low
TERA = 1e12
DEVICE = "gpu"


@dataclass(frozen=True, slots=True)
class ComputePlace:
    """Where products run: device, precision and number of CPUs. On an accelerator the CPUs do not matter."""

    device: str
    precision: str
    threads: int


@dataclass(frozen=True, slots=True)
class Product:
    """A backend's best matrix product at a place: best and median over `calls` calls, in FLOP/s.

    `share_of_best` is against the best of all backends there, whose product is the roof.
    """

    place: ComputePlace
    backend: str
    size: int
    best_flop_per_s: float
    median_flop_per_s: float
    calls: int
    processes: int
    datasheet_flop_per_s: float | None
    share_of_best: float


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
class PeakShare:
    """One cell's use of the machine. Shares are of 1; None if a part of them is unknown.

    `low` and `high` are the ends of the step time's interval between processes, converted to shares of the peak.
    `peak_of` says whose peak it is: the backend of a GPU's, with the number of backends, and of several devices what
    they are; None on a CPU with one device.
    `devices` are the accelerators whose peaks and memories count together; 1 on a CPU, whose devices share its peak.
    `bytes_per_step` is a lower bound, `intensity_flop_per_byte` an upper one. `read_byte_per_s` is of our own loop.
    `work_id` identifies the row, whose title is `title`.
    """

    cell_id: str
    title: str
    backend: str
    place: ComputePlace | None
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
    devices: int = 1
    read_byte_per_s: float | None = None
    share_of_bandwidth: float | None = None
    work_id: str = ""


@dataclass(frozen=True, slots=True)
class Roofline:
    """A run against the peaks of its machine."""

    shares: tuple[PeakShare, ...]
    roofs: tuple[Product, ...]
    slopes: tuple[Slope, ...]
    own: tuple[Product, ...]
    notes: tuple[str, ...]


def roofline(cells: Iterable[tuple[str, CellSummary]], works: Mapping[str, Work], peaks: Peaks | None) -> Roofline:
    """Compare each cell, given with its row's title, with the peaks. `works` are counts by `work_key`."""
    machine_peaks = MachinePeaks(products(peaks), slopes(peaks)) if peaks else MachinePeaks()
    shares = tuple(
        _share(title, cell, works.get(work_key(cell.settings.workload, cell.settings.params)), machine_peaks)
        for title, cell in cells
    )
    return Roofline(shares, machine_peaks.roofs, machine_peaks.slopes, machine_peaks.own, tuple(_notes(peaks)))


@dataclass(frozen=True, slots=True)
class MachinePeaks:
    """The measured peaks of a machine: each backend's products, and the memory's slopes."""

    own: tuple[Product, ...] = ()
    slopes: tuple[Slope, ...] = ()

    @property
    def roofs(self) -> tuple[Product, ...]:
        """The best product at each place."""
        return tuple({product.place: product for product in self.own if product.share_of_best == 1}.values())

    def together(self, devices: int) -> MachinePeaks:
        """Return the peaks of several equal accelerators together; those of a CPU are the machine's."""
        if devices == 1:
            return self
        own_products = tuple(
            _times(product, devices) if product.place.device != "cpu" else product for product in self.own
        )
        return MachinePeaks(
            own_products, tuple(_wider(slope, devices) if slope.device != "cpu" else slope for slope in self.slopes)
        )

    def product(self, place: ComputePlace | None, backend: str | None = None) -> Product | None:
        """Return a backend's own product at a place, without a backend the roof there."""
        candidates = (product for product in self.own if place and _same(product.place, place))
        return next(
            (
                product
                for product in candidates
                if product.backend == backend or (not backend and product.share_of_best == 1)
            ),
            None,
        )

    def peak_of(self, place: ComputePlace | None) -> str | None:
        """Return the backend of a GPU's peak, and the number of backends; None on a CPU."""
        roof = self.product(place)
        if roof is None or roof.place.device != DEVICE:
            return None
        count = sum(_same(product.place, roof.place) for product in self.own)
        return (
            f"{roof.backend}, this image's backend only" if count == 1 else f"{roof.backend}, best of {count} backends"
        )

    def slope(self, place: ComputePlace | None) -> Slope | None:
        """Return the memory's slope at a place."""
        if place is None:
            return None
        slopes = (s for s in self.slopes if s.device == place.device)
        return next((s for s in slopes if place.device != "cpu" or s.threads == place.threads), None)


def flops_per_step(settings: Settings, work: Work | None) -> int | None:
    """Return the model FLOPs of a step or call of predict, none of generate; of the FC modes, all workers'."""
    if spec.is_native(settings):
        return spec.flops_per_step(spec.problem_of(settings))
    if work is None or work.forward_flops_per_sample is None or settings.phase == GENERATE:
        return None
    forward = work.forward_flops_per_sample * settings.batch_size
    return forward * TRAINING_PER_FORWARD if settings.phase in BACKWARD else forward


def bytes_per_step(settings: Settings, work: Work | None) -> int | None:
    """Return a lower bound of the bytes a step moves: each array that a later pass needs is moved once each way.

    A training step reads and writes the weights, writes and reads their gradients, reads and writes the optimiser's
    slots, reads the batch, and writes and reads the inputs of every layer with weights. With data
    parallelism each device has its own copy of all but the batch's arrays. A call of predict reads the
    weights (without embedding tables, of which it reads a few rows) and the batch. Programs move more; they move less
    only if some of this stays in the caches between passes. None for gradients alone, whose temporaries no
    update reads, and for the FC modes, whose workers' arrays depend on the mode.
    """
    if spec.is_native(settings) or settings.phase in (GENERATE, GRADIENT):
        return None
    if work is None or work.weight_elements is None or work.input_elements_per_sample is None:
        return None
    copy_count = settings.devices if settings.distribution == DATA else 1
    computed = ELEMENT_BYTES[COMPUTED_IN[settings.precision]]
    of_variables = variable_bytes(settings.precision)
    batch = settings.batch_size * work.input_elements_per_sample * computed
    if settings.phase != "fit":
        return of_variables * (work.weight_elements - (work.lookup_elements or 0)) + batch
    if work.trainable_elements is None or work.slot_elements is None or work.kept_elements_per_sample is None:
        return None
    arrays = 2 * work.weight_elements + 2 * work.trainable_elements + 2 * work.slot_elements
    return (
        copy_count * of_variables * arrays + batch + 2 * settings.batch_size * work.kept_elements_per_sample * computed
    )


def _as_ran(cell: CellSummary) -> Settings:
    """Return a cell's settings with the precision in which its layers ran, which a user's workload may choose."""
    if ":" not in cell.settings.workload:
        return cell.settings
    precisions = {record.resolved.precision for record in cell.measured if record.resolved is not None}
    ran = precisions.pop() if len(precisions) == 1 else cell.settings.precision
    return replace(cell.settings, precision=ran) if ran in COMPUTED_IN else cell.settings


def place_of(cell: CellSummary) -> ComputePlace | None:
    """Return where a cell's products ran, by its records; None without a measured record."""
    record = next((r for r in cell.measured if r.resolved is not None), None)
    if record is None or record.resolved is None:
        return None
    precision = COMPUTED_IN[_as_ran(cell).precision]
    if precision == "float32" and same_work.of_step(record.resolved):
        precision = "tf32"
    thread_count = record.resolved.cpus if record.resolved.cpus is not None else record.machine.logical_cpus
    return ComputePlace(cell.settings.device, precision, thread_count)


def products(peaks: Peaks) -> tuple[Product, ...]:
    """Return each backend's best product at each place, against the best of all backends there."""
    gemm_by_place: dict[tuple[ComputePlace, str], Gemm] = {}
    best: dict[ComputePlace, float] = {}
    for gemm in sorted(peaks.gemms, key=lambda gemm: gemm.flop_per_s.best):
        place = ComputePlace(gemm.device, gemm.precision, gemm.threads)
        gemm_by_place[place, gemm.backend] = gemm
        best[place] = gemm.flop_per_s.best
    ordered = sorted(gemm_by_place, key=lambda key: (key[0].device, -key[0].threads, key[0].precision, key[1]))
    return tuple(_product(place, gemm_by_place[place, name], best[place], peaks) for place, name in ordered)


def slopes(peaks: Peaks) -> tuple[Slope, ...]:
    """Return one slope a device and number of CPUs: the best triad of all programs, with the best copy."""
    best: dict[tuple[str, str, int], Stream] = {}
    for stream in sorted(peaks.streams, key=lambda stream: stream.byte_per_s.best):
        best[stream.kernel, stream.device, stream.threads] = stream
    triads = [(triad, best.get(("copy", *key[1:]))) for key, triad in sorted(best.items()) if key[0] == "triad"]
    return tuple(
        Slope(
            device=triad.device,
            threads=triad.threads,
            by=triad.by,
            best_byte_per_s=triad.byte_per_s.best,
            median_byte_per_s=triad.byte_per_s.median,
            calls=len(triad.byte_per_s.rates),
            copy_byte_per_s=copy.byte_per_s.best if copy else None,
            array_bytes=triad.array_bytes,
        )
        for triad, copy in triads
    )


def _same(place: ComputePlace, other: ComputePlace) -> bool:
    cpus_differ = place.device == "cpu" and place.threads != other.threads
    return place.device == other.device and place.precision == other.precision and not cpus_differ


def _times(product: Product, devices: int) -> Product:
    stated_flop_per_s = product.datasheet_flop_per_s
    return replace(
        product,
        best_flop_per_s=product.best_flop_per_s * devices,
        median_flop_per_s=product.median_flop_per_s * devices,
        datasheet_flop_per_s=None if stated_flop_per_s is None else stated_flop_per_s * devices,
    )


def _wider(slope: Slope, devices: int) -> Slope:
    copy_byte_per_s = slope.copy_byte_per_s
    return replace(
        slope,
        best_byte_per_s=slope.best_byte_per_s * devices,
        median_byte_per_s=slope.median_byte_per_s * devices,
        copy_byte_per_s=None if copy_byte_per_s is None else copy_byte_per_s * devices,
    )


def _product(place: ComputePlace, gemm: Gemm, best: float, peaks: Peaks) -> Product:
    timed_rate = gemm.flop_per_s
    sheet = datasheet(peaks.devices.get(place.device)) if place.device != "cpu" else None
    return Product(
        place=place,
        backend=gemm.backend,
        size=gemm.size,
        best_flop_per_s=timed_rate.best,
        median_flop_per_s=timed_rate.median,
        calls=len(timed_rate.rates),
        processes=timed_rate.processes,
        datasheet_flop_per_s=sheet.flop_per_s.get(place.precision) if sheet else None,
        share_of_best=timed_rate.best / best,
    )


def devices_of(settings: Settings) -> int:
    """Return how many accelerators' peaks count for a Keras workload; 1 on a CPU, which its devices share."""
    return settings.devices if settings.device != "cpu" else 1


def _share(title: str, cell: CellSummary, work: Work | None, of_one: MachinePeaks) -> PeakShare:
    place, step_time, devices = place_of(cell), cell.step_time, devices_of(cell.settings)
    machine_peaks = of_one.together(devices)
    flops, moved_bytes = flops_per_step(cell.settings, work), bytes_per_step(_as_ran(cell), work)
    roof, own_product = machine_peaks.product(place), machine_peaks.product(place, cell.settings.backend)
    peak, slope = (roof.best_flop_per_s if roof else None), machine_peaks.slope(place)
    intensity = flops / moved_bytes if flops and moved_bytes else None
    datasheet_flop_per_s = roof.datasheet_flop_per_s if roof else None
    achieved = flops / step_time.centre if flops and step_time else None
    read_byte_per_s = median_of(cell.measured, read_rate)
    return PeakShare(
        cell_id=cell.cell_id,
        title=title,
        backend=cell.settings.backend,
        place=place,
        flops_per_step=flops,
        bytes_per_step=moved_bytes,
        intensity_flop_per_byte=intensity,
        step_time_s=step_time.centre if step_time else None,
        achieved_flop_per_s=achieved,
        peak_flop_per_s=peak,
        share_of_peak=_over(achieved, peak),
        low=_over(flops, peak, step_time.high if step_time else None),
        high=_over(flops, peak, step_time.low if step_time else None),
        own_gemm_flop_per_s=own_product.best_flop_per_s if own_product else None,
        share_of_own_gemm=_over(achieved, own_product.best_flop_per_s if own_product else None),
        roof_flop_per_s=min(peak, intensity * slope.best_byte_per_s) if peak and intensity and slope else None,
        datasheet_flop_per_s=datasheet_flop_per_s,
        mfu=_over(achieved, datasheet_flop_per_s),
        note=_why(cell, flops, place, (achieved, peak)),
        peak_of=_peak_of(machine_peaks.peak_of(place), cell.settings),
        devices=devices,
        read_byte_per_s=read_byte_per_s,
        share_of_bandwidth=_over(read_byte_per_s, slope.best_byte_per_s if slope else None),
        work_id=work_id(cell.settings),
    )


def _peak_of(backend: str | None, settings: Settings) -> str | None:
    """Return whose peak it is; None on a CPU with one device."""
    if settings.devices == 1:
        return backend
    if settings.device == "cpu":
        return f"of the machine, which {settings.devices} devices share"
    devices_text = f"{settings.devices} {settings.device.upper()}s together"
    return f"{backend}; {devices_text}" if backend else devices_text


def _over(value: float | None, *divisors: float | None) -> float | None:
    """Return the value divided by each; None if any is unknown."""
    for divisor in divisors:
        if value is None or not divisor:
            return None
        value = value / divisor
    return value


def _why(
    cell: CellSummary, flops: int | None, place: ComputePlace | None, rates: tuple[float | None, float | None]
) -> str | None:
    """Return why there is no share, or why it may be wrong."""
    achieved, peak = rates
    if cell.step_time is None or place is None:
        return "not measured"
    if flops is None:
        return "FLOPs not known"
    if achieved is None or peak is None:
        cpus_text = f"{place.threads} CPU" + "s" * (place.threads != 1)
        return f"no {place.precision} peak measured on {place.device} with {cpus_text}"
    if achieved > peak * ABOVE_PEAK:
        return "above the measured peak: the machine was busier then; measure the peaks again with --measure"
    return None


def _notes(peaks: Peaks | None) -> Iterable[str]:
    if peaks is None:
        yield "no peaks measured for this machine and these versions: measure them there with: runner roofline"
        return
    if gpu_note := other_gpu_note(peaks):
        yield gpu_note
    if peaks.other_cpu_share is not None and peaks.other_cpu_share > QUIET_SHARE:
        yield (
            f"other processes used {percentage(peaks.other_cpu_share)} of the CPU time while the "
            "peaks were measured: they may be too low; measure again with --measure when the machine is quiet"
        )
    for measurement, reason in sorted(peaks.refused.items()):
        yield f"not timed: {measurement}: {reason}"
    for measurement, note in sorted(peaks.notes.items()):
        yield f"{measurement}: {note}"


@dataclass(frozen=True, slots=True)
class Datasheet:
    """The peaks stated by a product's maker."""

    product: str
    flop_per_s: Mapping[str, float]
    memory_byte_per_s: float


def _sheet(product: str, memory_tb_per_s: float, **tera_flop_per_s: float) -> Datasheet:
    return Datasheet(product, {name: rate * TERA for name, rate in tera_flop_per_s.items()}, memory_tb_per_s * TERA)


SHEETS = (
    _sheet("H200", 4.8, float64=67, float32=67, tf32=494.7, bfloat16=989.4, float16=989.4),
    _sheet("H200 NVL", 4.8, float64=60, float32=60, tf32=417.5, bfloat16=835.5, float16=835.5),
    _sheet("H100 NVL", 3.9, float64=60, float32=60, tf32=417.5, bfloat16=835.5, float16=835.5),
    _sheet("H100 PCIe", 2.0, float64=51, float32=51, tf32=378, bfloat16=756, float16=756),
    _sheet("H100 80GB HBM3", 3.35, float64=67, float32=67, tf32=494.7, bfloat16=989.4, float16=989.4),
    _sheet("A100-SXM4-80GB", 2.039, float64=19.5, float32=19.5, tf32=156, bfloat16=312, float16=312),
    _sheet("A100-SXM4-40GB", 1.555, float64=19.5, float32=19.5, tf32=156, bfloat16=312, float16=312),
    _sheet("A100-PCIE-40GB", 1.555, float64=19.5, float32=19.5, tf32=156, bfloat16=312, float16=312),
    _sheet("A100 80GB PCIe", 1.935, float64=19.5, float32=19.5, tf32=156, bfloat16=312, float16=312),
    _sheet("A30", 0.933, float64=10.3, float32=10.3, tf32=82, bfloat16=165, float16=165),
    _sheet("A10", 0.6, float32=31.2, tf32=62.5, bfloat16=125, float16=125),
    _sheet("L40S", 0.864, float32=91.6, tf32=183, bfloat16=362, float16=362),
    _sheet("L4", 0.3, float32=30.3, tf32=60, bfloat16=121, float16=121),
    _sheet("T4", 0.32, float32=8.1, float16=65),
    _sheet("V100-SXM2", 0.9, float64=7.8, float32=15.7, float16=125),
    _sheet("V100-PCIE", 0.9, float64=7, float32=14, float16=112),
)
# Drivers before 470 omit the first, and prefix some products with the second.
MAKERS = ("NVIDIA ", "Tesla ")
# Names of one product with different memory sizes, on which its stated peaks do not depend.
SAME_SHEET = {f"{product}-{size}": product for product in ("V100-SXM2", "V100-PCIE") for size in ("16GB", "32GB")}


def datasheet(product: str | None) -> Datasheet | None:
    """Return the sheet of a device by its driver's name for it, None if no sheet has exactly this name.

    A longer name is another device: a part of a GPU (`A100-SXM4-40GB MIG 1g.5gb`), a virtual one (`A10-24Q`,
    `GRID A100-10C`), or another product (`H200 NVL`, `A10G`, `GH200 480GB`).
    """
    name = (product or "").strip()
    for maker in MAKERS:
        name = name.removeprefix(maker)
    name = SAME_SHEET.get(name, name)
    return next((sheet for sheet in SHEETS if sheet.product == name), None)


def merged(peaks: Peaks, others: Iterable[Peaks]) -> Peaks:
    """Return `peaks`, which has figures of a GPU, with the newest ones of other backends from the same GPU."""
    for other in sorted(others, key=lambda other_peaks: other_peaks.measured_at, reverse=True):
        if same_gpu(peaks, other):
            peaks = _with_backends_of(peaks, other)
    return peaks


def same_gpu(peaks: Peaks, other: Peaks) -> bool:
    """Return whether both measured the same GPU: by its UUID; if one lacks it, by host and product name."""
    if peaks.gpu_uuid and other.gpu_uuid:
        return peaks.gpu_uuid == other.gpu_uuid
    product = peaks.devices.get(DEVICE)
    same_host = peaks.machine.host_id == other.machine.host_id
    return product is not None and product == other.devices.get(DEVICE) and same_host


def backends(peaks: Peaks) -> tuple[str, ...]:
    """Return the backends whose matrix products were timed on the GPU."""
    return tuple(sorted({gemm.backend for gemm in peaks.gemms if gemm.device == DEVICE}))


def other_gpu_note(peaks: Peaks) -> str | None:
    """Return a note on the backends that a GPU's peaks are of; None without a GPU."""
    timed_backends = backends(peaks)
    if not timed_backends:
        return None
    if len(timed_backends) > 1:
        return f"the GPU's peaks are the best of {', '.join(timed_backends)}, each measured on this GPU"
    return (
        f"the GPU's peaks are of {timed_backends[0]}, this image's backend only: measure them with the other backends' "
        "GPU images too, into the same results folder, with: runner roofline --measure"
    )


def _with_backends_of(peaks: Peaks, other: Peaks) -> Peaks:
    known_backends, timed_backends = backends(peaks), {stream.by for stream in peaks.streams if stream.device == DEVICE}
    gemms = [gemm for gemm in other.gemms if gemm.device == DEVICE and gemm.backend not in known_backends]
    streams = [stream for stream in other.streams if stream.device == DEVICE and stream.by not in timed_backends]
    # On a GPU the number of CPUs does not identify a figure, and images may have different ones.
    thread_count = next(gemm.threads for gemm in peaks.gemms if gemm.device == DEVICE)
    return replace(
        peaks,
        gemms=peaks.gemms + [replace(gemm, threads=thread_count) for gemm in gemms],
        streams=peaks.streams + [replace(stream, threads=thread_count) for stream in streams],
        devices=other.devices | peaks.devices,
    )

"""Compares cells of the FC modes: rates, shares of the peak, communication, efficiency, data against model parallelism.

Also the gaps of Keras's layers to the native loop and of a library to the machine's best, and the sweep of the 2016
mini-benchmark in its CSV layout (`as_csv`).

Guarantee: pure; None if a part was not measured. Throughputs are compared block by block, in the repeats that both
cells have, and only between cells of one backend whose settings are otherwise equal. Limits: which part of Keras's step
takes the time (`lab/run fc layers` measures that) and why a library is slow are not known here. docs/fc.md and
docs/lab/roofline.md state both for one machine.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace

from keras_matrix.analysis.comparison.ratios import bracketed
from keras_matrix.analysis.comparison.table import CellSummary, log_ratios
from keras_matrix.analysis.roofline import PeakShare
from keras_matrix.analysis.scaling import StepBreakdown, step_breakdown
from keras_matrix.analysis.stats.blocks import Estimate, of_logs
from keras_matrix.records.backends import BACKENDS
from keras_matrix.records.codec import canonical
from keras_matrix.records.fc import rules, spec
from keras_matrix.records.fc.spec import LOCAL, FcProblem, gpu_aggr
from keras_matrix.records.schema import Record
from keras_matrix.records.settings import Settings
from keras_matrix.records.text import MIB, percentage

# The modes of data parallelism and those of model parallelism for the same work.
RIVALS = {"fc_data_ff": "fc_model_ff", "fc_data": "fc_model", "fc_data_manual": "fc_model_manual"}
NOTABLE_GAP = 1.05  # Keras's step over the native one
FAR_BELOW = 0.75  # a backend's own product over the machine's best
LAYERS = "fc_keras"
SECTION = "Where Keras's layers lose"  # of docs/lab/fc.md
NATIVE = ("fc_data", "fc_single_manual")  # automatic gradients first, as Keras's are
# mode, workers, gpu_aggr
COLUMNS = (
    ("fc_data", 1, 0),
    ("fc_data", 2, 0),
    ("fc_data", 2, 1),
    ("fc_data_slice", 2, 0),
    ("fc_data_slice", 2, 1),
    ("fc_model", 2, 0),
    ("fc_data_ff", 1, 0),
    ("fc_data_ff", 2, 0),
    ("fc_data_ff", 2, 1),
    ("fc_model_ff", 2, 0),
    ("fc_single_manual", 1, 0),
    ("fc_model_manual", 2, 0),
    ("fc_data_manual", 2, 0),
)
WEIGHT_SIZES = (1024, 2048, 4096, 8192)
BATCH_SIZES = tuple(2**power for power in range(1, 14))
ABSENT = "N/A"


@dataclass(frozen=True, slots=True)
class FcFigure:
    """One cell of the FC modes over its repeats.

    Shares of the machine's best measured product and of the backend's own are of 1; `communication_share` is 0 if
    no collective was called. `bytes_per_step` is the payload by formula, `wire_bytes_per_step` what processes send for
    it (None if workers share a process). `efficiency` is throughput over that of one worker times the workers, with
    its interval. `worker_memory_bytes` is the largest peak of a process with workers, `processes` their number.
    """

    cell_id: str
    settings: Settings
    task: FcProblem
    step_time_s: float
    samples_per_s: float
    flop_per_s: float
    share_of_best: float | None
    share_of_own: float | None
    bytes_per_step: int
    communication_share: float | None
    spent: StepBreakdown | None
    efficiency: Estimate | None
    worker_memory_bytes: int | None
    processes: int
    wire_bytes_per_step: int | None


@dataclass(frozen=True, slots=True)
class DataVersusModel:
    """Data against model parallelism at one size: the ratio of the model-parallel step's time to the other's."""

    data: FcFigure
    model: FcFigure
    ratio: Estimate

    @property
    def settled(self) -> bool:
        """Return whether the interval separates the two; False without an interval."""
        return self.ratio.excludes(1.0)


def fc_figures(cells: Iterable[CellSummary], shares: Mapping[str, PeakShare]) -> list[FcFigure]:
    """Return the figures of the measured cells of the FC modes; `shares` are by cell_id."""
    fc_cells = [cell for cell in cells if cell.settings.workload == spec.WORKLOAD and cell.step_time]
    one_worker_cells = {
        work_of(cell.settings): cell for cell in fc_cells if spec.problem_of(cell.settings).workers == 1
    }
    return [_figure(cell, shares.get(cell.cell_id), one_worker_cells.get(work_of(cell.settings))) for cell in fc_cells]


def work_of(settings: Settings) -> str:
    """Return the identity of a cell's backend and work, independent of the number of its workers."""
    return canonical(rules.one_worker(settings))


def data_versus_model(figures: Sequence[FcFigure], cells: Mapping[str, CellSummary]) -> list[DataVersusModel]:
    """Return data against model parallelism wherever both were measured on more than one worker.

    `cells` are those of the figures, by cell_id.
    """
    comparisons = []
    for figure in figures:
        rival = RIVALS.get(figure.task.mode) if figure.task.workers > 1 else None
        rival_figure = with_mode(figure, rival, figures) if rival else None
        if rival_figure and (ratio := ratio_of(rival_figure, figure, cells)):
            comparisons.append(DataVersusModel(figure, rival_figure, ratio))
    return comparisons


def with_mode(figure: FcFigure, mode: str, figures: Iterable[FcFigure]) -> FcFigure | None:
    """Return the figure whose settings differ from this one's only by this mode."""
    settings = replace(figure.settings, params={**figure.settings.params, "mode": mode})
    return next((figure for figure in figures if figure.settings == settings), None)


def ratio_of(figure: FcFigure, other: FcFigure, cells: Mapping[str, CellSummary]) -> Estimate | None:
    """Return the ratio one / other of the time of a step over their common blocks; `cells` are by cell_id."""
    return of_logs(list(log_ratios(cells[figure.cell_id], cells[other.cell_id]).values()))


def _figure(cell: CellSummary, share: PeakShare | None, one_worker_cell: CellSummary | None) -> FcFigure:
    assert cell.step_time is not None
    task, step_time_s = spec.problem_of(cell.settings), cell.step_time.centre
    peaks = [_peaks_bytes(record) for record in cell.measured]
    all_parallel = [record.parallel for record in cell.measured]
    spent = step_breakdown(parallel.communication for parallel in all_parallel if parallel)
    is_silent = bool(all_parallel) and all(
        parallel is not None and not parallel.counted_bytes_per_step for parallel in all_parallel
    )
    return FcFigure(
        cell_id=cell.cell_id,
        settings=cell.settings,
        task=task,
        step_time_s=step_time_s,
        samples_per_s=task.samples_per_step / step_time_s,
        flop_per_s=spec.flops_per_step(task) / step_time_s,
        share_of_best=share.share_of_peak if share else None,
        share_of_own=share.share_of_own_gemm if share else None,
        bytes_per_step=spec.traffic_per_step(task).sent_bytes(task.workers),
        communication_share=0.0 if is_silent else spent.share if spent else None,
        spent=spent,
        efficiency=_efficiency(cell, one_worker_cell),
        worker_memory_bytes=max((peak for process_peaks in peaks for peak in process_peaks), default=None),
        processes=max((len(process_peaks) for process_peaks in peaks), default=1) or 1,
        wire_bytes_per_step=spec.wire_bytes_of(record.parallel for record in cell.measured),
    )


def _peaks_bytes(record: Record) -> list[int]:
    """Return the peak of each process with workers; Keras's own path has one, the cell's."""
    if record.parallel is not None:
        return record.parallel.peak_worker_memory_bytes
    peak_bytes = record.memory.peak_host_memory_bytes
    return [] if peak_bytes is None else [peak_bytes]


def _efficiency(cell: CellSummary, one_worker_cell: CellSummary | None) -> Estimate | None:
    """Return throughput over that of one worker times the workers; None for one worker, or without its cell."""
    task = spec.problem_of(cell.settings)
    if one_worker_cell is None or task.workers == 1:
        return None
    # For fc_phy more workers take more samples a step; for the others this is 1 / workers.
    gained = task.samples_per_step / spec.problem_of(one_worker_cell.settings).samples_per_step / task.workers
    speed_up = of_logs(list(log_ratios(one_worker_cell, cell).values()))
    return speed_up.scaled(gained) if speed_up else None


@dataclass(frozen=True, slots=True)
class Gap:
    """Keras's layers' step over the native loop's; `fixed_share` of that ratio is `fit`'s own time an epoch."""

    keras: FcFigure
    native: FcFigure
    ratio: Estimate
    fixed_share: float | None

    @property
    def notable(self) -> bool:
        """Whether the interval's lower end exceeds the limit, or the centre if there is no interval."""
        low = self.ratio.low if self.ratio.low is not None else self.ratio.centre
        return low > NOTABLE_GAP


def gaps(figures: Sequence[FcFigure], cells: Mapping[str, CellSummary]) -> list[Gap]:
    """Return Keras's layers against the native loop wherever both were measured; `cells` are by cell_id."""
    gap_list = []
    for figure in figures:
        modes = NATIVE if figure.task.mode == LAYERS else ()
        native = next((candidate for mode in modes if (candidate := with_mode(figure, mode, figures))), None)
        if native and (ratio := ratio_of(figure, native, cells)):
            gap_list.append(Gap(figure, native, ratio, _fixed_share(cells[figure.cell_id])))
    return gap_list


def gap_lines(figures: Sequence[FcFigure], cells: Mapping[str, CellSummary]) -> list[str]:
    """Return the gaps as lines; empty if there is no known gap. `cells` are by cell_id."""
    return [*(_gap_line(gap) for gap in gaps(figures, cells) if gap.notable), *_library_lines(figures)]


def _fixed_share(cell: CellSummary) -> float | None:
    steps = next((r.resolved.steps_per_epoch for r in cell.measured if r.resolved), None)
    if cell.fixed_time_per_epoch_s is None or cell.step_time is None or not steps:
        return None
    return cell.fixed_time_per_epoch_s / steps / cell.step_time.centre


def _gap_line(gap: Gap) -> str:
    backend, task = gap.keras.settings.backend, gap.keras.task
    sentence = (
        f"{backend}: Keras's layers take {bracketed(gap.ratio)} the step of {gap.native.task.mode}, "
        f"{task.weight_size} wide, batch {task.batch_size}"
    )
    if gap.fixed_share is None:
        return f"{sentence}; the share of fit's own time an epoch is not known (docs/lab/fc.md: {SECTION})"
    return f"{sentence}: {percentage(gap.fixed_share)} of it is fit's own time an epoch (docs/lab/fc.md: {SECTION})"


def _library_lines(figures: Sequence[FcFigure]) -> Iterator[str]:
    """Yield a line for each backend and precision whose own product is far below the machine's best."""
    named_libraries: set[tuple[str, str]] = set()
    for figure in figures:
        name = figure.settings.backend, figure.settings.precision
        if name in named_libraries or not figure.share_of_best or not figure.share_of_own:
            continue
        share_reached = figure.share_of_best / figure.share_of_own
        if share_reached < FAR_BELOW:
            named_libraries.add(name)
            yield (
                f"{name[0]}: its own product reaches {percentage(share_reached)} of the machine's best in {name[1]}: "
                "the library it multiplies with is the limit, whatever the mode "
                "(runner roofline; docs/traces.md#roofline)"
            )


def backends_of(figures: Iterable[FcFigure]) -> list[str]:
    """Return the backends that measured a point of the sweep, in their usual order."""
    measured_backends = {figure.settings.backend for figure in figures if _is_point(figure)}
    return [backend for backend in BACKENDS if backend in measured_backends]


def as_csv(figures: Iterable[FcFigure], backend: str) -> str:
    """Return the sweep of one backend as text with a final newline.

    The layout is that of `parse_mini.py` for the output of `run_mini.sh`.

    For each weight size a heading line, then a line for each batch size: the batch size and the seconds of a batch in
    thirteen configurations, in the original's order, `N/A` if not measured. The layout has no line that names the
    configurations; they are those of `COLUMNS`.

    Two intended differences: seconds have six decimals instead of three, because steps are far below a millisecond
    here; and the original's `gpu_aggr` selected the location of the central copy of the weights, whereas here every
    worker has its own copy, so that cells on GPUs have `gpu_aggr` 1 and cells on the CPU 0. As in the original, `MB`
    counts 2^20 weights, not bytes.
    """
    times_s = {
        (*_configuration(f), f.task.weight_size, f.task.batch_size): f.step_time_s
        for f in figures
        if f.settings.backend == backend and _is_point(f)
    }
    lines = []
    for weight_size in WEIGHT_SIZES:
        lines.append(f"{weight_size} x {weight_size} weights ({weight_size * weight_size // MIB}MB)")
        for batch in BATCH_SIZES:
            column_times_s = [times_s.get((*column, weight_size, batch)) for column in COLUMNS]
            lines.append(", ".join([str(batch), *(ABSENT if s is None else f"{s:.6f}" for s in column_times_s)]))
    return "\n".join(lines) + "\n"


def _configuration(figure: FcFigure) -> tuple[str, int, int]:
    """Return the column of a cell: its mode, its workers and `gpu_aggr`."""
    task = figure.task
    return task.mode, task.workers, gpu_aggr(task.mode, task.workers, figure.settings.device)


def _is_point(figure: FcFigure) -> bool:
    """Return whether a cell is a point of the sweep: its sizes and all other settings are the sweep's."""
    task = figure.task
    expected = FcProblem(task.mode, task.workers, weight_size=task.weight_size, batch_size=task.batch_size)
    in_columns = _configuration(figure) in COLUMNS
    in_sizes = task.weight_size in WEIGHT_SIZES and task.batch_size in BATCH_SIZES
    return in_columns and in_sizes and task == expected and task.network == LOCAL

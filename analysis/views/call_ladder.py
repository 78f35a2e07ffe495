"""The ladder of calls: for each work that predicts and each backend, what each way of calling the model costs. Pure.

`call` makes cells that differ in nothing else, whose processes are measured interleaved: each is compared with
`predict_on_batch` by the mean time of a call, block by block, as every comparison. Percentiles are of single calls.

Guarantee: a call whose outputs are not those of `model(x)`, within the limit of its precision, has no ratio, and says
so; likewise one whose outputs were not compared. Limit: outputs were compared on one batch in each process.

The interval of a percentile is the wider of two: that between processes, and that of order statistics within them,
which takes the calls of a process as independent (David and Nagaraja, Order Statistics, 3rd edition, 7.1).
"""

from __future__ import annotations

import math
import statistics
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace

from keras_matrix.analysis.comparison.ratios import BackendRatio, RatioText, ratio_of, text_of
from keras_matrix.analysis.comparison.same_work import differing, of_step
from keras_matrix.analysis.comparison.table import CellSummary, Row, logs_by_machine
from keras_matrix.analysis.comparison.titles import titles
from keras_matrix.analysis.stats.blocks import Estimate, geometric, median_of_known
from keras_matrix.records.codec import canonical
from keras_matrix.records.identity import assignment
from keras_matrix.records.schema import Artefact, Record, Times
from keras_matrix.records.settings import CALLS, ON_BATCH, ON_HOST, Settings
from keras_matrix.records.text import NOTHING, bytes_text, number, plural, seconds

# By precision: how far outputs may be from those of model(x), as a share of the largest: that of a gradient's norm in
# `runner parity`, and some roundings of the narrower types.
LIMITS: Mapping[str, float] = {
    "float64": 1e-8,
    "float32": 1e-4,
    "mixed_float16": 1e-2,
    "bfloat16": 5e-2,
    "mixed_bfloat16": 5e-2,
}
LIMIT_OF_TF32 = 1e-2
COLUMNS = ("call", "p50", "p99", "first call", "ratio", "outputs")
FILE_TIMES = ("export_time_s", "load_time_s")
FILE_COLUMNS = ("size", "export", "load")  # of exported files, where a ladder has one


@dataclass(frozen=True, slots=True)
class CallRung:
    """One way of calling a model: its times in seconds, how its outputs compare, and its ratio to the reference.

    `outputs` says how far they are from those of `model(x)`; `reason` why there is no ratio, if there is none.
    `recompiles` is the largest number of a process in its measured epochs, whose time is in its calls. `file` is the
    exported file of a process, with the median times of exporting and loading it; None for other calls.
    """

    call: str
    cell_id: str
    p50: Estimate | None
    p99: Estimate | None
    first_call_s: float | None
    deviation: float | None
    outputs: str
    ratio: BackendRatio | None
    reason: str
    recompiles: int = 0
    file: Artefact | None = None

    @property
    def estimate(self) -> Estimate | None:
        """The time of a call over that of the reference; None if they are not compared."""
        return self.ratio.estimate if self.ratio else None

    @property
    def ratio_text(self) -> str:
        """The ratio with its interval, or why it is missing; of the reference nothing."""
        return str(self.ratio_parts) if self.ratio else self.reason or NOTHING

    @property
    def ratio_parts(self) -> RatioText | None:
        """The ratio with its interval, and what it includes or lacks; None if they are not compared."""
        if self.ratio is None:
            return None
        text = text_of(self.ratio)
        compiled_text = plural(self.recompiles, "recompilation") + " in a process" if self.recompiles else ""
        return replace(text, remark="; ".join(filter(None, (text.remark, compiled_text))))

    @property
    def texts(self) -> tuple[str, ...]:
        """The row of the rung, by `COLUMNS`."""
        p50_text, p99_text = (_time_text(estimate) for estimate in (self.p50, self.p99))
        return self.call, p50_text, p99_text, seconds(self.first_call_s), self.ratio_text, self.outputs

    @property
    def facts(self) -> dict[str, str]:
        """The row by column, with the file and the recompilations, for pages that draw it as a strip."""
        compiled = {"recompilations": str(self.recompiles)} if self.recompiles else {}
        files = dict(zip(FILE_COLUMNS, _file_texts(self.file), strict=True)) if self.file else {}
        return dict(zip(COLUMNS, self.texts, strict=True)) | files | compiled


@dataclass(frozen=True, slots=True)
class CallLadder:
    """The calls of one work on one backend, from `predict` to the compiled forward pass.

    `work` is the title of the work, whichever way it is called, and `key` its identity, the same on all backends.
    """

    key: str
    work: str
    backend: str
    reference: str
    rungs: tuple[CallRung, ...]

    @property
    def columns(self) -> tuple[str, ...]:
        """The columns of its table."""
        return COLUMNS + FILE_COLUMNS if any(rung.file for rung in self.rungs) else COLUMNS

    @property
    def rows(self) -> list[tuple[str, ...]]:
        """The rows of its table, by `columns`."""
        return [(*rung.texts, *_file_texts(rung.file))[: len(self.columns)] for rung in self.rungs]

    @property
    def title(self) -> str:
        """The title of its table."""
        return f"{self.work} on {self.backend}, ratios to {self.reference}"

    @property
    def runtimes(self) -> list[str]:
        """How each runtime of an exported file ran: the call, the runtime, and its options."""
        files = [(rung.call, rung.file) for rung in self.rungs if rung.file]
        return [f"{call}: {', '.join((file.runtime, *file.options))}" for call, file in files]

    def sentence(self, rung: CallRung) -> str:
        """Return what a call costs: `jax: model takes 2.10x [2.00 2.20] of predict_on_batch's time; outputs equal`."""
        outputs_text = f"outputs {rung.outputs}"
        ratio_text = rung.ratio_parts
        if ratio_text is None:
            return f"{self.backend}: {rung.call}: {rung.reason}"
        text = f"{self.backend}: {rung.call} takes {ratio_text.amount} of {self.reference}'s time"
        return f"{ratio_text.in_a_sentence(text)}; {outputs_text}"


def call_ladders(rows: Sequence[Row]) -> list[CallLadder]:
    """Return a ladder for each work and backend with several measured calls."""
    found: dict[str, dict[str, tuple[Row, CellSummary]]] = {}
    for row in rows:
        for cell in row.cells.values():
            if cell.step_time:
                found.setdefault(canonical(by_default(cell.settings)), {})[cell.settings.call] = (row, cell)
    several = [calls for calls in found.values() if len(calls) > 1]
    settings = [by_default(next(iter(calls.values()))[1].settings) for calls in several]
    works = [_with_outputs(work, one) for work, one in zip(titles(settings, {}), settings, strict=True)]
    keys = [canonical(replace(one, backend="")) for one in settings]
    return [
        _ladder(calls, key, work)
        for calls, key, work in sorted(zip(several, keys, works, strict=True), key=lambda part: part[2])
    ]


def by_default(settings: Settings) -> Settings:
    """Return the settings with the default call, the same for all calls of a ladder."""
    return replace(settings, call=ON_BATCH)


def _with_outputs(work: str, settings: Settings) -> str:
    """Return a title that says where the calls end, unless they end on the host."""
    text = assignment("outputs", settings.outputs)
    return work if settings.outputs == ON_HOST or text in work else f"{work} {text}"


def _ladder(calls: Mapping[str, tuple[Row, CellSummary]], key: str, work: str) -> CallLadder:
    names = [name for name in CALLS if name in calls]
    reference = ON_BATCH if ON_BATCH in calls else names[0]
    _, reference_cell = calls[reference]
    difference = differing({name: [_alike(record) for record in calls[name][1].measured] for name in names})
    rungs = tuple(_rung(name, *calls[name], (reference, reference_cell, difference)) for name in names)
    return CallLadder(key, work, reference_cell.settings.backend, reference, rungs)


def _alike(record: Record) -> Record:
    """Return the record without what differs between two calls by their definition: how the step was compiled."""
    return replace(record, resolved=replace(record.resolved, jit_compile=None)) if record.resolved else record


def _rung(call: str, row: Row, cell: CellSummary, against: tuple[str, CellSummary, str | None]) -> CallRung:
    reference, reference_cell, difference = against
    deviation, outputs_text, is_same = _outputs(cell)
    ratio, reason = None, ""
    if call != reference:
        _, reference_text, reference_is_same = _outputs(reference_cell)
        if not is_same:
            reason = f"not compared: outputs {outputs_text}"
        elif not reference_is_same:
            reason = f"not compared: outputs of {reference} {reference_text}"
        elif difference:
            reason = f"not comparable: {difference}"
        elif logs := logs_by_machine(cell, reference_cell):
            ratio = ratio_of(call, logs, row.looks)
        else:
            reason = f"no repeat in common with {reference}"
    return CallRung(
        call,
        cell.cell_id,
        _percentile(cell, lambda times: times.call_time_p50_s, lambda times: times.call_time_p50_interval_s),
        _percentile(cell, lambda times: times.call_time_p99_s, lambda times: times.call_time_p99_interval_s),
        median_of_known(record.times.first_step_time_s for record in cell.measured),
        deviation,
        outputs_text,
        ratio,
        reason,
        max((record.resolved.recompiles_timed or 0 for record in cell.measured if record.resolved), default=0),
        _file(cell),
    )


def _file(cell: CellSummary) -> Artefact | None:
    """Return the exported file of a cell, with the median times of its processes; None for other calls."""
    found = [record.artefact for record in cell.measured if record.artefact]
    if not found:
        return None
    export_s, load_s = (statistics.median(getattr(file, name) for file in found) for name in FILE_TIMES)
    return replace(found[0], export_time_s=export_s, load_time_s=load_s)


def _file_texts(file: Artefact | None) -> tuple[str, ...]:
    if file is None:
        return (NOTHING,) * len(FILE_COLUMNS)
    return bytes_text(file.size_bytes), seconds(file.export_time_s), seconds(file.load_time_s)


def _outputs(cell: CellSummary) -> tuple[float | None, str, bool]:
    """Return the largest deviation of a cell's outputs, what it says, and whether they are those of `model(x)`."""
    parts = [record.resolved for record in cell.measured if record.resolved]
    if problem := next((part.outputs_problem for part in parts if part.outputs_problem), None):
        return None, problem, False
    deviations = [part.outputs_deviation for part in parts if part.outputs_deviation is not None]
    if not deviations or len(deviations) < len(parts):
        return None, "were not compared with model(x)", False
    largest = max(deviations)
    limit = min(LIMIT_OF_TF32 if of_step(part) else LIMITS.get(part.precision, 0.0) for part in parts)
    if largest > limit:
        return largest, f"differ by {_short(largest)}, more than {_short(limit)}", False
    return largest, f"equal to {_short(largest)}" if largest else "equal", True


def _short(value: float) -> str:
    return f"{value:.0e}".replace("e-0", "e-").replace("e+00", "") if value < 0.1 else number(value, digits=2)


def _percentile(
    cell: CellSummary, of: Callable[[Times], float | None], within: Callable[[Times], Sequence[float]]
) -> Estimate | None:
    """Return a percentile over the processes that have it, with the wider of its two intervals."""
    times = [record.times for record in cell.measured if of(record.times)]
    estimate = geometric([value for part in times if (value := of(part))])
    if estimate is None or estimate.half_width is None:
        return estimate
    pairs = [within(part) for part in times]
    if not all(len(pair) == 2 and pair[0] > 0 for pair in pairs):
        return estimate
    half = math.sqrt(math.fsum((math.log(high / low) / 2) ** 2 for low, high in pairs)) / len(pairs)
    if half <= estimate.half_width:
        return estimate
    return replace(estimate, low=estimate.centre * math.exp(-half), high=estimate.centre * math.exp(half))


def _time_text(estimate: Estimate | None) -> str:
    return NOTHING if estimate is None else seconds(estimate.centre, estimate.low, estimate.high)

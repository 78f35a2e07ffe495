"""From a run's records to its table: one row a piece of work, one column a backend, and a verdict for each row.

Only cells that did the same work in the same league are compared. A backend is named fastest only if the intervals of
the ratios to every other, paired by block, exclude 1, and the row is a discovery among the table's rows (Benjamini and
Hochberg 1995, at 5 %). The p-values are Student's, doubled for several looks; by simulation at most about 5 % of tables
of equal backends name one (docs/lab/statistics.md). The fastest backend must be faster than each other one; so a row's
p-value is the largest of its ratios' (Berger, "Multiparameter hypothesis testing and acceptance sampling",
Technometrics 24 (1982)). Otherwise the verdict is that the row does not separate them.
"""

from __future__ import annotations

import hashlib
import math
import re
import statistics
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace

from keras_matrix.analysis.comparison.caveats import (
    first_tries,
    measurement_caveats,
    published_caveats,
    replica_caveats,
)
from keras_matrix.analysis.comparison.machines import difference, hosts, log_levels
from keras_matrix.analysis.comparison.primary_metric import (
    STEP_TIME,
    Figure,
    cost,
    figure_of,
    figure_value,
    without_ratio,
)
from keras_matrix.analysis.comparison.ratios import (
    BackendRatio,
    estimate_over,
    how,
    open_verdict,
    partial_verdict,
    ratio_of,
    ratios_text,
    without_verdict,
)
from keras_matrix.analysis.comparison.same_work import differing, mixed, work_caveats
from keras_matrix.analysis.comparison.titles import Title, Usual, title_order, titled
from keras_matrix.analysis.generation import overhead_caveats
from keras_matrix.analysis.stats.blocks import (
    LEVEL,
    Block,
    Estimate,
    adjusted_p_values,
    geometric,
    minimum_detectable_effect,
    paired_logs,
    spread,
)
from keras_matrix.analysis.stats.processes import fixed_time
from keras_matrix.analysis.stats.sequential import FIXED, Looks, levels
from keras_matrix.analysis.stats.sessions import SeparateSessions, SessionValue, separate_ratio
from keras_matrix.records.backends import BACKENDS
from keras_matrix.records.codec import canonical
from keras_matrix.records.identity import work_values
from keras_matrix.records.schema import MEASURED, Record, Status
from keras_matrix.records.settings import Settings
from keras_matrix.records.store import latest_attempts
from keras_matrix.records.task import Goal

_PARTS = re.compile(r"(\d+)")  # batch_size=8 before batch_size=32


@dataclass(frozen=True, slots=True)
class CellSummary:
    """One cell over its processes. Times in seconds, memory in bytes; None if not measured.

    `records` are the valid attempts, `superseded` the measured ones whose block was disturbed and measured again.
    For an external command `step_time` is its primary metric, in its own unit; `figure` names it. It is None if the
    metric is not above zero in a process, because it then has no ratio.
    `fixed_time` is what an epoch costs before its first step, of the process that measures it.
    `step_time_median` and `step_time_p95` are of the processes' figures too, interpolated; None below two processes.
    Of several equal machines `step_time` is the mean of theirs, and `spread` is within them
    (`analysis.stats.sequential`). Other statistics: `analysis.stats.cell_statistics`.
    """

    cell_id: str
    settings: Settings
    records: tuple[Record, ...]
    superseded: tuple[Record, ...]
    step_time: Estimate | None
    step_time_median: float | None
    step_time_p95: float | None
    spread: float | None
    smallest_difference: float | None
    samples_per_s: float | None
    first_epoch_time_s: float | None
    epoch_time_s: float | None
    fixed_time: Estimate | None
    peak_host_memory_bytes: int | None
    peak_device_memory_bytes: int | None
    failures: tuple[tuple[Status, str], ...]
    warnings: tuple[str, ...]
    caveats: tuple[str, ...] = ()
    figure: Figure = STEP_TIME

    @property
    def measured(self) -> tuple[Record, ...]:
        """The records with figures."""
        return tuple(record for record in self.records if record.status in MEASURED)

    @property
    def machines(self) -> tuple[str, ...]:
        """The `host_id` of each of several equal machines of the measured records; empty for one or for others."""
        host_names = hosts(self.measured)
        return host_names if len(host_names) > 1 and difference(self.measured) is None else ()

    @property
    def fixed_time_per_epoch_s(self) -> float | None:
        """What an epoch costs before its first step; None if its interval does not separate it from zero."""
        fixed_estimate = self.fixed_time
        return (
            fixed_estimate.centre
            if fixed_estimate is not None and fixed_estimate.low is not None and fixed_estimate.low > 0
            else None
        )

    @property
    def device_memory_span(self) -> str | None:
        """The span that the peak of device memory covers, the longest of the processes; None if unknown."""
        spans = {record.memory.peak_device_memory_span for record in self.measured} - {None}
        return next((span for span in ("process", "measured_epochs") if span in spans), None)


@dataclass(frozen=True, slots=True)
class Row:
    """One piece of work on several backends, and the verdict; `adjusted_p` is over the table, None without one.

    `caveats` of the comparison do not prevent it; `looks` are those of the run; `lowest` is the backend with the lowest
    time, the denominator of the ratios, None without ratios. `values` are the cells' values by backend if they were
    measured in separate sessions; empty if all are of one session. `machines` are those that the blocks are spread
    over, by `host_id`; empty for one machine. `slower` are the backends that are shown to be slower than the lowest in
    a row of which no fastest is named. `title` is for readers and `labels` are its parts; `key` identifies the work.
    """

    title: str
    cells: dict[str, CellSummary]
    fastest: str | None
    verdict: str
    ratios: tuple[BackendRatio, ...] = ()
    adjusted_p: float | None = None
    caveats: tuple[str, ...] = ()
    looks: Looks = FIXED
    lowest: str | None = None
    values: dict[str, SessionValue] = field(default_factory=dict)
    machines: tuple[str, ...] = ()
    slower: tuple[str, ...] = ()
    labels: Title | None = None

    @property
    def key(self) -> str:
        """The identity of the work, by which tables, pictures and texts find its row."""
        return work_key(next(iter(self.cells.values())).settings)

    def apart(self, backend: str, other: str) -> bool:
        """Return whether the values of two backends are of separate sessions."""
        ends = self.values.get(backend), self.values.get(other)
        return ends[0] is not None and ends[1] is not None and ends[0].session != ends[1].session

    def smallest_difference(self, backend: str) -> float | None:
        """Return the relative difference that a backend's ratio would probably have shown; of the lowest, all ratios.

        It is that of the verdict, from paired blocks; a cell's own (`CellSummary.smallest_difference`) is of two
        unpaired ones. None without ratios, and below 5 blocks.
        """
        smallest_by_backend = {ratio.backend: ratio.smallest_difference for ratio in self.ratios}
        if backend != self.lowest:
            return smallest_by_backend.get(backend)
        differences = [
            known_difference for known_difference in smallest_by_backend.values() if known_difference is not None
        ]
        return max(differences) if len(differences) == len(smallest_by_backend) else None


def table(records: Iterable[Record], usual: Usual | None = None, looks: Looks = FIXED) -> list[Row]:
    """Return the rows of a run, in the order of their titles.

    `usual` gives, per workload, the usual values; a title names the settings that differ from them. `looks` are those
    after which the run stopped adding repeats, if it chose their number itself.
    """
    return rows_of(summaries(records).values(), usual, looks)


def summaries(records: Iterable[Record]) -> dict[str, CellSummary]:
    """Return the summary of each cell, by cell_id."""
    records_by_cell: dict[str, list[Record]] = {}
    for record in records:
        records_by_cell.setdefault(record.cell_id, []).append(record)
    return {cell_id: summarise(cell_records) for cell_id, cell_records in records_by_cell.items()}


def rows_of(
    cells: Iterable[CellSummary],
    usual: Usual | None = None,
    looks: Looks = FIXED,
    separate: SeparateSessions | None = None,
) -> list[Row]:
    """Return the rows of these cells; with `separate` they are of several sessions, each with its own looks."""
    works: dict[str, dict[str, CellSummary]] = {}
    for cell in cells:
        works.setdefault(work_key(cell.settings), {})[cell.settings.backend] = cell
    work_titles = titled([next(iter(work_cells.values())).settings for work_cells in works.values()], usual or {})
    rows = [
        replace(_row(str(title), work_cells, looks, separate), labels=title)
        for title, work_cells in zip(work_titles, works.values(), strict=True)
    ]
    return sorted(_judged(rows), key=lambda row: title_order(row.title))


def in_order(names: Iterable[str]) -> list[str]:
    """Return the names of columns: the backends in their usual order, then the values of other axes in theirs."""
    distinct = set(names)
    others = distinct.difference(BACKENDS)
    sorted_others = sorted(others, key=lambda name: [(p.isdigit(), p.zfill(20)) for p in _PARTS.split(name)])
    return [name for name in BACKENDS if name in distinct] + sorted_others


def work_key(settings: Settings) -> str:
    """Return the identity of a work: the settings without the backend."""
    return canonical(work_values(settings))


def work_id(settings: Settings) -> str:
    """Return the identity of a work as 16 hex digits."""
    return hashlib.sha256(work_key(settings).encode(errors="surrogatepass")).hexdigest()[:16]


def summarise(records: Sequence[Record]) -> CellSummary:
    """Summarise one cell's records: of each repeat, the latest attempt."""
    latest = tuple(latest_attempts(records))
    measured_records = [record for record in latest if record.status in MEASURED]
    times = [record.times for record in measured_records]
    timed_records = (
        [] if without_ratio(measured_records) else [record for record in measured_records if figure_value(record)]
    )
    step_times = [value for record in timed_records if (value := figure_value(record))]
    step_levels, scatter = log_levels(timed_records, step_times), spread(step_times)
    return CellSummary(
        cell_id=latest[0].cell_id,
        settings=latest[0].settings,
        records=latest,
        superseded=tuple(r for r in records if r.status in MEASURED and r not in latest),
        step_time=step_levels.estimate() if step_levels else geometric(step_times),
        step_time_median=statistics.median(step_times) if len(step_times) > 1 else None,
        step_time_p95=statistics.quantiles(step_times, n=20, method="inclusive")[-1] if len(step_times) > 1 else None,
        spread=step_levels.scatter if step_levels else scatter,
        # The cell's own scatter includes what pairing removes, so a ratio's smallest difference is often smaller.
        smallest_difference=step_levels.smallest_difference(math.sqrt(2))
        if step_levels
        else minimum_detectable_effect(math.sqrt(2) * (scatter or 0.0), len(step_times)),
        samples_per_s=_throughput(measured_records),
        first_epoch_time_s=median(t.first_epoch_time_s for t in times),
        epoch_time_s=median(t.epoch_time_median_s for t in times),
        fixed_time=next((fixed for record in measured_records if (fixed := fixed_time(record))), None),
        peak_host_memory_bytes=_maximum(record.memory.peak_host_memory_bytes for record in measured_records),
        peak_device_memory_bytes=_maximum(record.memory.peak_device_memory_bytes for record in measured_records),
        failures=tuple(sorted({(r.status, r.reason or "") for r in latest if r.status not in MEASURED})),
        warnings=tuple(sorted({warning for record in latest for warning in record.warnings})),
        caveats=(*measurement_caveats(latest), *first_tries(records, latest)),
        figure=figure_of(latest),
    )


def incomparable(cells: dict[str, CellSummary], *, apart: bool = False, spread_out: bool = False) -> str | None:
    """Return why these cells did not do the same work, None if they did; `apart`: they are of two sessions.

    `spread_out`: each is of several equal machines, some of them common to all.
    """
    settings = [cell.settings for cell in cells.values()]
    if (
        any(cell_settings.precision == "float64" for cell_settings in settings)
        and len({cell_settings.backend for cell_settings in settings}) > 1
    ):
        return "in float64 Keras computes parts in float32 on JAX and torch (docs/work.md#parity-of-the-backends)"
    return differing({name: cell.measured for name, cell in cells.items()}, apart, spread_out)


def _row(title: str, cells: dict[str, CellSummary], looks: Looks, separate: SeparateSessions | None) -> Row:
    cells = {backend: cells[backend] for backend in in_order(cells)}
    timed_cells = {backend: cell for backend, cell in cells.items() if cell.step_time}
    records_by_backend = {backend: cell.measured for backend, cell in timed_cells.items()}
    caveats = (
        *replica_caveats(records_by_backend),
        *overhead_caveats(records_by_backend),
        *published_caveats(records_by_backend),
    )
    if len(timed_cells) < 2:
        figure_name = next((cell.figure.name for cell in cells.values() if without_ratio(cell.measured)), None)
        why = f": {figure_name} is not above zero, so it has no ratio" if figure_name else ""
        return Row(title, cells, None, f"nothing to compare{why}", caveats=caveats)
    is_one_session = separate is None or not separate.apart(list(timed_cells))
    for name, cell in timed_cells.items():
        if mixture := mixed(cell.measured, equal_machines=is_one_session):
            return Row(title, cells, None, f"not comparable: {mixture} within {name}", caveats=caveats)
    values, machines = _values(timed_cells, separate), _common_machines(timed_cells)
    if reason := incomparable(timed_cells, apart=bool(values), spread_out=bool(machines)):
        return Row(title, cells, None, f"not comparable: {reason}", caveats=caveats, values=values)
    lowest = _lowest(timed_cells, machines)
    looks = separate.looks[lowest] if separate else looks
    caveats = (*caveats, *work_caveats(records_by_backend))
    row = Row(title, cells, None, "", caveats=caveats, looks=looks, values=values, machines=machines)
    ratios = tuple(ratio for backend in timed_cells if backend != lowest and (ratio := _ratio(row, backend, lowest)))
    verdict = open_verdict(lowest, ratios, len(timed_cells) - 1, cells[lowest].figure)
    return replace(row, verdict=verdict, ratios=ratios, lowest=lowest if ratios else None)


def _lowest(timed_cells: Mapping[str, CellSummary], machines: Sequence[str]) -> str:
    """Return the backend with the lowest time; over several machines by the blocks that it has in common with others.

    There, cells without some blocks of a slow machine have lower means.
    """

    def ahead(backend: str) -> float:
        logs_of_pairs = [
            logs_by_machine(timed_cells[other], timed_cells[backend]) for other in timed_cells if other != backend
        ]
        return min(
            (machine_levels.centre for pair_logs in logs_of_pairs if (machine_levels := levels(pair_logs))),
            default=-math.inf,
        )

    return (
        max(timed_cells, key=ahead) if machines else min(timed_cells, key=lambda backend: cost_of(timed_cells[backend]))
    )


def _common_machines(timed_cells: Mapping[str, CellSummary]) -> tuple[str, ...]:
    """Return the machines of these cells if blocks are spread over several, some of them common to all; else none."""
    host_sets = [set(hosts(cell.measured)) for cell in timed_cells.values()]
    all_hosts = set().union(*host_sets)
    return tuple(sorted(all_hosts)) if len(all_hosts) > 1 and set.intersection(*host_sets) else ()


def _values(timed_cells: Mapping[str, CellSummary], separate: SeparateSessions | None) -> dict[str, SessionValue]:
    """Return the cells' values if they are of separate sessions; without an ok process a value has no variance."""
    if separate is None or not separate.apart(list(timed_cells)):
        return {}
    return {
        backend: separate.value(backend, cell.records)
        or SessionValue(separate.sessions[backend], math.log(cost_of(cell)), 0)
        for backend, cell in timed_cells.items()
    }


def _ratio(row: Row, backend: str, lowest: str) -> BackendRatio | None:
    """Return the ratio of a backend to the lowest one, over their common blocks if they are of one session."""
    if row.apart(backend, lowest):
        session_ratio = separate_ratio(row.values[backend], row.values[lowest])
        return BackendRatio(backend, session_ratio.estimate, session_ratio.p_value(), separate=True)
    cell, best = row.cells[backend], row.cells[lowest]
    machine_logs = logs_by_machine(cell, best)
    return (
        replace(ratio_of(backend, machine_logs, row.looks), all_data=all_data(cell, best, row.looks))
        if machine_logs
        else None
    )


def logs_by_machine(summary: CellSummary, other: CellSummary) -> dict[str, list[float]]:
    """Return the log ratios one / other of the blocks that both measured at one machine, by its `host_id`."""
    records, other_records = ({(r.place, r.repeat): r for r in cell.measured} for cell in (summary, other))
    return paired_at_machines(records, other_records)


def all_data(summary: CellSummary, other: CellSummary, looks: Looks) -> Estimate | None:
    """Return one / other over every measured block, disturbed ones included; None if no block was measured again.

    Its confidence is that of the ratio shown with it: of the look at the valid blocks.
    """
    if not summary.superseded and not other.superseded:
        return None
    attempts, other_attempts = (
        {(r.place, r.repeat, r.attempt): r for r in (*cell.measured, *cell.superseded)} for cell in (summary, other)
    )
    return estimate_over(
        paired_at_machines(attempts, other_attempts), looks.confidence(len(log_ratios(summary, other)))
    )


def paired_at_machines(
    numerator: Mapping[Block, Record], denominator: Mapping[Block, Record]
) -> dict[str, list[float]]:
    """Return the log ratio of each block that both sides have, by the numerator's machine or GPUs."""
    costs = [{key: c for key, record in side.items() if (c := cost(record))} for side in (numerator, denominator)]
    logs: dict[str, list[float]] = {}
    for block, log in paired_logs(costs[0], costs[1]).items():
        logs.setdefault(numerator[block].place, []).append(log)
    return logs


def _judged(rows: Sequence[Row]) -> list[Row]:
    """Return the rows with the fastest named in those that are discoveries among all rows that could be."""
    p_by_index = {index: p for index, row in enumerate(rows) if (p := _row_p(row)) is not None}
    adjusted = dict(zip(p_by_index, adjusted_p_values(list(p_by_index.values())), strict=True))
    decided = [
        _decided(row, adjusted[index], len(p_by_index)) if index in adjusted else row for index, row in enumerate(rows)
    ]
    adjusted_p = _behind(rows)
    return [
        _partly_decided(
            row, {ratio.backend: adjusted_p.get((index, ratio.backend), 1.0) for ratio in row.ratios}, len(p_by_index)
        )
        for index, row in enumerate(decided)
    ]


def _row_p(row: Row) -> float | None:
    """Return the largest p-value of a row's ratios; None if a backend that ran has no p-value."""
    timed_count = sum(1 for cell in row.cells.values() if cell.step_time)
    p_values = [ratio.p_value for ratio in row.ratios if ratio.p_value is not None]
    return max(p_values) if p_values and len(p_values) == timed_count - 1 else None


def _decided(row: Row, adjusted_p: float, row_count: int) -> Row:
    row = replace(row, adjusted_p=adjusted_p)
    if any((ratio.estimate.low or 0) <= 1 for ratio in row.ratios):
        return row
    lowest = row.lowest
    assert lowest is not None
    figure = row.cells[lowest].figure
    if adjusted_p > LEVEL:
        chance_text = _chance(adjusted_p, row_count)
        text = ratios_text(row.ratios, figure, lowest)
        return replace(row, verdict=f"not separable: {text}: {chance_text}{how(row.ratios)}")
    best = "fastest" if figure == STEP_TIME else f"best by {figure.name}"
    return replace(
        row, fastest=lowest, verdict=f"{lowest} is {best}: {ratios_text(row.ratios, figure)}{how(row.ratios)}"
    )


def _chance(adjusted_p: float, row_count: int) -> str:
    return f"not a discovery among {row_count} rows (p {adjusted_p:.2g})"


def _behind(rows: Sequence[Row]) -> dict[tuple[int, str], float]:
    """Return the adjusted p-value of each ratio of the table, by its row's index and its backend.

    A row in which two backends are not separated may still show that a third is slower than the lowest. Any of the k
    backends could have been the lowest, so each of the k - 1 ratios stands for k / 2 of the row's pairs, by which its
    p-value is multiplied; over the table the adjusted ones are Benjamini and Hochberg's, as those of the rows are.
    """
    p_values = {
        (index, ratio.backend): min(1.0, ratio.p_value * (len(row.ratios) + 1) / 2)
        for index, row in enumerate(rows)
        for ratio in row.ratios
        if ratio.p_value is not None
    }
    return dict(zip(p_values, adjusted_p_values(list(p_values.values())), strict=True))


def _partly_decided(row: Row, adjusted: Mapping[str, float], row_count: int) -> Row:
    """Return an open row with the backends that are slower than the lowest, by their adjusted p-values."""
    timed_count = sum(1 for cell in row.cells.values() if cell.step_time)
    if row.fastest or row.lowest is None:
        return row
    figure = row.cells[row.lowest].figure
    if without_verdict(row.lowest, row.ratios, timed_count - 1, figure):
        return row
    are_separate = [(ratio.estimate.low or 0) > 1 for ratio in row.ratios]
    are_slower = [
        is_separate and adjusted[ratio.backend] <= LEVEL
        for ratio, is_separate in zip(row.ratios, are_separate, strict=True)
    ]
    if not any(are_slower) or all(are_slower):
        return row
    ratios_behind, near_ratios = (
        [r for r, is_slower in zip(row.ratios, are_slower, strict=True) if is_slower is slower_side]
        for slower_side in (True, False)
    )
    has_chance = all(are_separate) and row.adjusted_p is not None
    chance_text = _chance(row.adjusted_p or 0.0, row_count) if has_chance else ""
    verdict = partial_verdict(row.lowest, near_ratios, ratios_behind, figure, chance_text)
    return replace(row, slower=tuple(ratio.backend for ratio in ratios_behind), verdict=verdict)


def log_ratios(numerator: CellSummary, denominator: CellSummary) -> dict[int, float]:
    """Return the log ratio of two cells' costs in each repeat that both measured."""
    return paired_logs(by_repeat(numerator), by_repeat(denominator))


def by_repeat(cell: CellSummary) -> dict[int, float]:
    """Return the cost of each measured repeat: the step time in seconds, or the primary metric of a command."""
    return {} if without_ratio(cell.measured) else {r.repeat: c for r in cell.measured if (c := cost(r))}


def cost_of(cell: CellSummary) -> float:
    """Return a measured cell's figure converted so that less is better."""
    assert cell.step_time is not None
    return cell.step_time.centre if cell.figure.goal is Goal.LOWER else 1 / cell.step_time.centre


def median(values: Iterable[float | None]) -> float | None:
    """Return the median of the values that are known; None if there are none."""
    known_values = [value for value in values if value is not None]
    return statistics.median(known_values) if known_values else None


def _throughput(measured_records: Sequence[Record]) -> float | None:
    """Return the samples per second of a cell, the same mean as that of its times per step; None if not measured."""
    with_rate = [record for record in measured_records if record.times.samples_per_s]
    speeds = [speed for record in with_rate if (speed := record.times.samples_per_s)]
    rate_levels = log_levels(with_rate, speeds)
    estimate = rate_levels.estimate() if rate_levels else geometric(speeds)
    return estimate.centre if estimate else None


def _maximum(values: Iterable[int | None]) -> int | None:
    return max((value for value in values if value is not None), default=None)

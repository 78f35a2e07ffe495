"""The findings of a run as text for the terminal and as JSON.

The table has for each row a line per backend, under headings, and the verdict in words. A terminal that is too narrow
loses the columns of the epochs and of the throughput, which the report has as well; text for a pipe or a file has all
columns.
"""

from __future__ import annotations

import shlex
from collections import Counter
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from keras_matrix.analysis.comparison.context import UnreadFile
from keras_matrix.analysis.comparison.machines import noun
from keras_matrix.analysis.comparison.primary_metric import (
    STEP_TIME,
    completed,
    epoch_quantiles,
    metrics_over,
)
from keras_matrix.analysis.comparison.ratios import bracketed
from keras_matrix.analysis.comparison.starts import START_MEANING, reported
from keras_matrix.analysis.comparison.table import CellSummary
from keras_matrix.analysis.cost import COST_LABEL
from keras_matrix.analysis.stats.blocks import Estimate
from keras_matrix.analysis.stats.cell_statistics import STATISTICS, Statistic
from keras_matrix.analysis.views.call_ladder import CallLadder
from keras_matrix.analysis.views.result_table import CellView, ResultTable, WorkView
from keras_matrix.analysis.views.warnings_view import RuleWarnings, warnings_by_rule
from keras_matrix.records import left_out
from keras_matrix.records.codec import to_json
from keras_matrix.records.identity import PARAMS
from keras_matrix.records.schema import MEASURED, Record, Status
from keras_matrix.records.settings import FIT, GENERATE
from keras_matrix.records.task import DEFINITION, PREFIX, TaskRun
from keras_matrix.records.text import (
    MILLIJOULE,
    NOTHING,
    Unit,
    amount,
    bytes_text,
    count,
    interval,
    interval_text,
    number,
    percentage,
    plural,
    printable,
    quantity,
    seconds,
)
from keras_matrix.runner.cli.render.format import columns as aligned
from keras_matrix.runner.service.stored import Findings, unread_lines

WARNINGS_SHOWN = 12
OF_A_COMMAND = ("task", "compared", "command")  # what is shown of a command besides its parameters
METRICS_SHOWN = 6  # of a command besides its primary one
CELLS_NAMED = 3  # of a warning
COUNTS_FROM = 100_000  # larger integers are counts, and shown with thousands separators
GAP = "  "
LOWEST = "1.00x"
BACKEND = "  backend"
JOULES_PER_SAMPLE = "usage.joules_per_sample"


def print_table(run_findings: Findings, printed: Collection[str] = (), stray: Sequence[UnreadFile] = ()) -> None:
    """Print the answer and the table of verdicts; then the summary of the run, failures, warnings and caveats.

    `printed` are reasons that were already printed in full: of these only the name is repeated. `stray` are further
    files that cannot be read.
    """
    from rich.console import Console

    table, console = run_findings.table, Console(highlight=False)
    console.print()
    console.print(table.answer.text, style="bold", markup=False, soft_wrap=True)
    console.print()
    for table_line in table_lines(table, console.width if console.is_terminal else None):
        console.print(table_line.text, style=table_line.style or None, markup=False, soft_wrap=True)
    for text in call_lines(table.call_ladders):
        console.print(text, markup=False, soft_wrap=True)
    console.print()
    for line in table.summary:
        console.print(_plain(line))
    if table.repeats_advice:
        console.print(table.repeats_advice, style="bold", markup=False, soft_wrap=True)
    print_problems(console, run_findings, printed, stray)
    for line in left_out.lines(run_findings.left_out):
        console.print(_plain(line), soft_wrap=True)


def call_lines(ladders: Sequence[CallLadder]) -> list[str]:
    """Return the ladders of calls as tables, each with a blank line before it."""
    lines = []
    for ladder in ladders:
        rows = [[*ladder.columns], *map(list, ladder.rows)]
        lines += ["", printable(f"calls of {ladder.title}")]
        lines += [f"  {line}" for line in aligned(rows, frozenset((1, 2, 3)))]
        lines += [f"  {printable(text)}" for text in ladder.runtimes]
    return lines


def print_problems(
    console: Any, run_findings: Findings, printed: Collection[str] = (), stray: Sequence[UnreadFile] = ()
) -> None:
    """Print what to know beside the figures: failures, warnings and caveats; of reasons `printed` before the name."""
    _print_failures(console, run_findings.table.cells, printed)
    if lines := warning_lines(warnings_by_rule(run_findings.records, run_findings.table), len(run_findings.records)):
        console.print()
    for line in lines:
        console.print(f"[yellow]warning[/] {_plain(line)}")
    _print_caveats(console, run_findings.table.cells)
    for line in unread_lines((*run_findings.run_context.unread, *stray)):
        console.print(_plain(line), style="bold", soft_wrap=True)


def _print_failures(console: Any, views: Sequence[CellView], printed: Collection[str]) -> None:
    repeated = Counter[tuple[Status, str, str]]()
    for view in views:
        for status, reason in view.cell.failures:
            if reason in printed:
                repeated[status, view.backend, reason.partition(":")[0]] += 1
            else:
                console.print(f"[red]{status}[/] {_plain(view.name)} ({view.cell.cell_id}): {_plain(reason)}")
    for (status, backend, name), cell_count in repeated.items():
        console.print(f"[red]{status}[/] {plural(cell_count, 'cell')} on {_plain(backend)}: {_plain(name)}")


def warning_lines(rules: Sequence[RuleWarnings], record_count: int) -> list[str]:
    """Return, for each warning rule, in how many of the records and in which cells it fired, and one of its texts."""
    of_all = plural(record_count, "record")
    return [
        f"in {rule.records} of {of_all} ({_first_cells(rule.cells)}), such as: {rule.example}"
        for rule in rules[:WARNINGS_SHOWN]
    ]


def _first_cells(names: Sequence[str]) -> str:
    unnamed_count = len(names) - CELLS_NAMED
    return ", ".join([*names[:CELLS_NAMED], *([f"and {unnamed_count} more"] if unnamed_count > 0 else [])])


def _print_caveats(console: Any, views: Sequence[CellView]) -> None:
    lines = [_plain(f"{view.name}: {'; '.join(view.caveats)}") for view in views if view.caveats]
    for line in lines[:WARNINGS_SHOWN]:
        console.print(f"[yellow]caveat[/] {line}")
    if len(lines) > WARNINGS_SHOWN:
        console.print(f"and {len(lines) - WARNINGS_SHOWN} more cells have caveats: the report lists all of them")


def _plain(text: str) -> str:
    from rich.markup import escape

    return escape(printable(text))


def cell_lines(work: WorkView, view: CellView) -> list[str]:
    """Return a cell in detail, as lines: requested and resolved settings, each process, failures, warnings."""
    cell = view.cell
    first_record = next(iter(cell.measured), cell.records[0])
    lines = [f"cell {cell.cell_id} of run {first_record.run_id}", "", "requested"]
    lines += _known_pairs(
        to_json(cell.settings) if first_record.task is None else _command_settings(first_record, first_record.task)
    )
    for name, part in (("resolved", first_record.resolved), ("device", first_record.device)):
        lines += ["", name, *_known_pairs(to_json(part))] if part else []
    lines += [
        "",
        "versions",
        *_pairs(first_record.versions),
        "",
        "machine",
        *_known_pairs(to_json(first_record.machine)),
    ]
    lines += task_lines(cell) or ["", "processes", *_process_lines(cell)]
    if cell.step_time:
        lines += ["", "over processes", *_summary_lines(view)]
    if cell.step_time and first_record.task is None:
        lines += ["", "context", *_context_lines(work, view)]
    for record in cell.records:
        if record.status not in MEASURED:
            lines += [
                "",
                f"repeat {record.repeat}: {record.status}: {record.reason}",
                record.evidence.output_tail.strip(),
            ]
    caveats = (*view.caveats, *work.row.caveats)
    lines += ["", *(f"warning: {warning}" for warning in cell.warnings)] if cell.warnings else []
    lines += ["", *(f"caveat: {caveat}" for caveat in caveats)] if caveats else []
    return [printable(line) for line in lines]


def _command_settings(record: Record, task: TaskRun) -> dict[str, Any]:
    """Return the settings that an external command was given; the others have their defaults."""
    params = {name: value for name, value in record.settings.params.items() if name != DEFINITION}
    params = {f"{PARAMS}{name}" if name in OF_A_COMMAND else name: value for name, value in params.items()}
    return {"task": task.name, "compared": record.settings.backend, **params, "command": shlex.join(task.command)}


def _pairs(values: dict[str, Any]) -> list[str]:
    return ["  " + line for line in aligned([[name, str(value)] for name, value in values.items()] or [["", ""]])]


def _known_pairs(values: Mapping[str, Any]) -> list[str]:
    """Return the fields that have a value, formatted: most of those without one do not apply to the cell."""
    known_texts = {name: _field_text(name, value) for name, value in values.items() if value not in (None, [], {}, "")}
    return _pairs(known_texts)


def _field_text(name: str, value: Any) -> str:
    if isinstance(value, bool):
        return str(value).lower()
    if isinstance(value, dict):
        return ", ".join(f"{key} {_field_text(key, member)}" for key, member in value.items())
    if isinstance(value, list):
        return ", ".join(_field_text(name, entry) for entry in value)
    if isinstance(value, int) and name.endswith("_bytes"):
        return bytes_text(value)
    if isinstance(value, int) and name.endswith("flops"):
        return f"{count(value)}FLOP"
    if isinstance(value, int):
        return f"{value:,}" if value >= COUNTS_FROM else str(value)
    return f"{value:.4g}" if isinstance(value, float) else str(value)


def _used(cell: CellSummary) -> dict[str, str]:
    """Return the memory, utilisation and power of the first measured process over time, as far as they were sampled."""
    usage = next((record.usage for record in cell.measured if record.usage), None)
    if usage is None:
        return {}
    memories = {"anonymous host memory": usage.host_anonymous, "reserved on the device": usage.device_memory}
    texts = {
        name: f"peak {bytes_text(memory.peak_bytes)}, mean {bytes_text(round(memory.mean_bytes))}"
        + (f" +- {bytes_text(round(memory.std_bytes))}" if memory.samples > 1 else "")
        for name, memory in memories.items()
        if memory
    }
    if usage.device_utilisation:
        texts["device utilisation"] = f"mean {percentage(usage.device_utilisation.mean_share)}"
    if usage.device_average_power_w is None and usage.device_power:
        texts["device power"] = f"{number(usage.device_power.mean_w)} W (mean of samples)"
    if usage.cpu_energy_unread:
        texts["energy of the CPUs"] = f"not measured: {usage.cpu_energy_unread}"
    return texts


def _process_lines(cell: CellSummary) -> list[str]:
    compiling = ("trace", "compile") if any(reported(record.times) for record in cell.records) else ()
    head = ["repeat", "status", "build", *compiling, "first step", "first epoch", "measured epochs", "recompiles"]
    rows = [[*head, "step: mean", "median", "p95", "2017-suite total"]]
    for record in cell.records:
        t = record.times
        epochs_text = " ".join(number(value) for value in t.epoch_times_s) + (" s" if t.epoch_times_s else "-")
        compiled_s = (t.trace_time_s, t.compile_time_s) if compiling else ()
        figures = (t.build_time_s, *compiled_s, t.first_step_time_s, t.first_epoch_time_s)
        tail = (t.step_time_s, *epoch_quantiles(record), t.suite_total_time_s)
        compiled = record.resolved.recompiles_timed if record.resolved else None
        cells = [*map(seconds, figures), epochs_text, "-" if compiled is None else str(compiled), *map(seconds, tail)]
        rows.append([str(record.repeat), record.status, *cells])
    notes = [START_MEANING] if compiling else []
    return ["  " + line for line in [*aligned(rows), *notes]]


def _context_lines(work: WorkView, view: CellView) -> list[str]:
    """Return the parity of a cell with the other backends and its share of the machine's peak, with remarks."""
    same_work, share = work.same_work_on(view.backend), view.share
    lines = {"against the other backends": same_work.text}
    if share and share.share_of_peak is not None:
        peak_text = f" ({share.peak_of})" if share.peak_of else ""
        lines["share of the measured peak"] = f"{percentage(share.share_of_peak)}{peak_text}"
    remarks = [*same_work.remarks, *(() if work.run_context.has_peaks else work.run_context.notes)]
    return [*_pairs(lines), *(f"  {remark}" for remark in remarks)]


def _has_device_memory(cell: CellSummary) -> bool:
    return cell.peak_device_memory_bytes is not None or cell.settings.device != "cpu"


def _device_memory(cell: CellSummary) -> str:
    """Return the peak of device memory; if it includes more than the measured epochs, the text says so."""
    includes_start = cell.peak_device_memory_bytes is not None and cell.device_memory_span == "process"
    return bytes_text(cell.peak_device_memory_bytes) + (" of the whole process" if includes_start else "")


def _statistics(view: CellView) -> dict[str, str]:
    """Return the statistics of a cell as texts; for an external command, median and p95 of its primary metric."""
    cell = view.cell
    if not view.is_step:
        pair = {"median of processes": cell.step_time_median, "p95 of processes": cell.step_time_p95}
        return {label: amount(value, cell.figure.unit) for label, value in pair.items()}
    texts = {}
    for statistic in STATISTICS:
        if statistic.in_tables and (value := view.statistics.get(statistic.metric)) is not None:
            texts[statistic.label] = _amount(value, statistic) + _bounds(statistic.interval(cell), statistic)
        elif statistic.in_tables and (hidden_figures := view.hidden.get(statistic.metric)):
            bound_text = "" if hidden_figures.upper is None else f", below {_amount(hidden_figures.upper, statistic)}"
            texts[statistic.label] = f"not resolved{bound_text}"
    return texts


def _bounds(estimate: Estimate | None, statistic: Statistic) -> str:
    """Return the interval of a statistic that has one, in its table's unit."""
    bounds = estimate and interval(estimate.low, estimate.high, estimate.centre, statistic.scale[1])
    return f" {bounds}" if bounds else ""


def _amount(value: float, statistic: Statistic) -> str:
    """Return a statistic with its unit: a time or a size in the unit that suits it."""
    if statistic.unit in ("s", "B"):
        return seconds(value) if statistic.unit == "s" else bytes_text(round(value))
    return quantity(value, Unit(*statistic.scale))


def _summary_lines(view: CellView) -> list[str]:
    cell, difference = view.cell, view.smallest_difference
    pairs = {
        cell.figure.name: _figure(view),
        "95 % interval": _interval(view),
        **_statistics(view),
        **({} if cell.spread is None else {"spread between processes": percentage(cell.spread)}),
        **({} if difference is None else {"smallest difference seen": percentage(difference)}),
        "peak host memory": bytes_text(cell.peak_host_memory_bytes),
        **({"peak device memory (allocator)": _device_memory(cell)} if _has_device_memory(cell) else {}),
        **_used(cell),
        **({COST_LABEL: view.cost.text} if view.cost else {}),
    }
    return _pairs(pairs)


@dataclass(frozen=True, slots=True)
class Column:
    """One column: its heading, the text of a cell, and the order in which narrow terminals leave it out; 0: never."""

    heading: str
    text: Callable[[CellView], str]
    left_out: int = 0


@dataclass(frozen=True, slots=True)
class Line:
    """One line of the table, and its style in the terms of rich."""

    text: str
    style: str = ""


TITLE, FASTEST, FAILED, VERDICT, NOTE = "bold", "bold green", "red", "bold", "dim"


def _figure(view: CellView) -> str:
    return amount(view.value, view.cell.figure.unit)


def _interval(view: CellView) -> str:
    return interval_of(view.cell) if view.compared else NOTHING


def _ratio(view: CellView) -> str:
    if view.is_lowest:
        return LOWEST
    return bracketed(view.ratio) if view.ratio else NOTHING


def _samples(view: CellView) -> str:
    return number(view.cell.samples_per_s) if view.is_step else NOTHING


def _tokens(view: CellView) -> str:
    return number(view.tokens_per_s)


def _first(view: CellView) -> str:
    return seconds(view.cell.first_epoch_time_s)


def _steady(view: CellView) -> str:
    return seconds(view.cell.epoch_time_s)


def _peak(view: CellView) -> str:
    return NOTHING if view.share_of_peak is None else percentage(view.share_of_peak)


def _energy(view: CellView) -> str:
    return quantity(view.statistics.get(JOULES_PER_SAMPLE), MILLIJOULE)


def _cost(view: CellView) -> str:
    return view.cost.figure if view.cost else NOTHING


def columns_of(table: ResultTable) -> list[Column]:
    """Return the columns that a table needs: those of a step, of the metric of a command, or both."""
    cells = [view.cell for view in table.cells]
    has_steps = any(view.is_step for view in table.cells)
    has_commands = any(not view.is_step for view in table.cells)
    has_calls = all(cell.settings.phase != FIT for cell in cells if cell.figure == STEP_TIME)
    time_heading = "time per call" if has_calls else "time per step"
    figure = "figure" if has_commands and has_steps else "metric" if has_commands else time_heading
    columns = [
        Column(figure, _figure),
        Column("95 % interval", _interval),
        Column("ratio to lowest", _ratio),
    ]
    if any(cell.settings.phase == GENERATE for cell in cells):
        columns.append(Column("tokens/s", _tokens, left_out=5))
    if has_steps:
        columns += [
            Column("samples/s", _samples, left_out=3),
            Column("first epoch", _first, left_out=2),
            Column("steady epoch", _steady, left_out=1),
        ]
    if table.run_context.has_peaks:
        columns.append(Column("of peak", _peak, left_out=4))
    if any(JOULES_PER_SAMPLE in view.statistics for view in table.cells):
        columns.append(Column("energy", _energy, left_out=4))
    if table.run_context.prices:
        columns.append(Column(f"{table.run_context.prices.currency} per 1M samples", _cost))
    return columns


def interval_of(cell: CellSummary) -> str:
    """Return the interval of a measured cell; without one, its processes, and over how many machines they were."""
    assert cell.step_time is not None
    machines_text = f", {len(cell.machines)} {noun(cell.machines)}" if cell.machines else ""
    if cell.step_time.low is None or cell.step_time.high is None:
        return f"{cell.step_time.count} process{'es'[: 2 * (cell.step_time.count > 1)]}{machines_text}"
    return f"{interval_text(cell.step_time.low, cell.step_time.high, cell.figure.unit)}{machines_text}"


def table_lines(table: ResultTable, width: int | None = None) -> list[Line]:
    """Return the table as lines; with `width`, that of a terminal, the lines of backends fit into it if possible."""
    columns = columns_of(table)
    texts = {view.cell.cell_id: [column.text(view) for column in columns] for view in table.cells}
    name_width = max([len(BACKEND), *(len(view.backend) + 2 for view in table.cells)])
    widths = [
        max(map(len, [column.heading, *column_texts]))
        for column, *column_texts in zip(columns, *texts.values(), strict=True)
    ]
    shown_indices = _fitting(columns, widths, name_width, width)

    def laid_out(name: str, cell_texts: Sequence[str]) -> str:
        return GAP.join([name.ljust(name_width), *(cell_texts[i].rjust(widths[i]) for i in shown_indices)]).rstrip()

    lines = [Line(laid_out(BACKEND, [column.heading for column in columns]), NOTE)]
    for work in table.works:
        row = work.row
        lines += [Line(""), *_title(work)]
        for view in work.cells:
            mark_text = "* " if view.is_fastest else "  "
            lines.append(Line(laid_out(mark_text + view.backend, texts[view.cell.cell_id]), _style(view)))
            lines += [Line(f"{' ' * name_width}{GAP}{text}", NOTE) for text in _below(view)]
        lines.append(Line(f"  {printable(row.verdict)}", FASTEST if row.fastest else VERDICT))
        lines += [Line(f"  {printable(work.advice)}", NOTE)] if work.advice else []
        lines += [Line(f"  {printable(text)}") for text in work.notes]
        lines += [Line(f"  caveat: {printable(caveat)}", "yellow") for caveat in row.caveats]
    left_out = [column.heading for index, column in enumerate(columns) if index not in shown_indices]
    return [*lines, *([Line(f"(a wider terminal also shows: {', '.join(left_out)})", NOTE)] if left_out else [])]


def _title(work: WorkView) -> list[Line]:
    """Return the title of a work and whether its backends did the same work; if not, how to check."""
    title = Line(printable(work.row.title), TITLE)
    if any(view.cell.settings.workload.startswith(PREFIX) for view in work.cells):
        return [title]
    agreement = work.same_work
    advice = "" if agreement.checked else "; ".join(agreement.remarks[:1])
    stated_texts = [f"{agreement.text}{': ' + advice if advice else ''}"] if agreement.checked or advice else []
    return [title, *(Line(f"  {printable(text)}", NOTE) for text in (*stated_texts, *work.device_checks))]


def _style(view: CellView) -> str:
    return FASTEST if view.is_fastest else "" if view.cell.measured else FAILED


def _below(view: CellView) -> list[str]:
    """Return what is below a cell's line: the statuses of one that was not measured, the other metrics of a command."""
    if not view.cell.measured:
        return [view.failed_with, *map(printable, metric_lines(view.cell) if completed(view.cell.records) else ())]
    return [] if view.is_step else [printable(", ".join(metric_lines(view.cell)))]


def _fitting(columns: Sequence[Column], widths: Sequence[int], name_width: int, width: int | None) -> list[int]:
    """Return the indices of the columns that fit into a terminal; the others are left out in their order."""
    shown_indices = list(range(len(columns)))
    candidates = sorted((i for i in shown_indices if columns[i].left_out), key=lambda i: columns[i].left_out)
    while width is not None and candidates and name_width + sum(len(GAP) + widths[i] for i in shown_indices) > width:
        shown_indices.remove(candidates.pop(0))
    return shown_indices


def metric_lines(cell: CellSummary) -> list[str]:
    """Return a command's metrics other than the primary one, a line each, for a cell of the table."""
    secondary = [summary for summary in metrics_over(completed(cell.records)) if summary.name != cell.figure.name]
    metric_texts = [
        f"{summary.name.removesuffix('_in_seconds')} {amount(summary.value, summary.unit)}" for summary in secondary
    ]
    return [cell.figure.name, *metric_texts[:METRICS_SHOWN], *(["..."] if len(metric_texts) > METRICS_SHOWN else [])]


def task_lines(cell: CellSummary) -> list[str]:
    """Return the processes of an external command for `runner show`: a row each, a column per metric.

    For a workload the list is empty.
    """
    names = [summary.name for summary in metrics_over(cell.records)]
    if not names:
        return []
    rows = [["repeat", "status", *names, "peak memory", "output", "left"]]
    for record in cell.records:
        task = record.task
        if task is None:
            continue
        metric_by_name = {metric.name: metric for metric in task.metrics}
        row = [number(metric_by_name[name].value) if name in metric_by_name else NOTHING for name in names]
        peak = bytes_text(task.host_memory.max_bytes if task.host_memory else record.memory.peak_host_memory_bytes)
        files = ", ".join(task.files) or NOTHING
        rows.append(
            [
                str(record.repeat),
                record.status,
                *row,
                peak,
                f"{count(task.log_bytes)}B" if task.log_bytes is not None else NOTHING,
                files,
            ]
        )
    problems = [
        f"{name}: {summary.problem}"
        for name, summary in zip(names, metrics_over(cell.records), strict=True)
        if summary.problem
    ]
    return ["", "metrics", *("  " + line for line in [*aligned(rows), *problems])]

"""The table of a run for the terminal: for each row a line per backend, under headings, and the verdict in words.

A terminal that is too narrow loses the columns of the epochs and of the throughput, which the report has as well; text
for a pipe or a file has all columns.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

from keras_matrix.analysis.comparison.context import RunContext
from keras_matrix.analysis.comparison.machines import noun
from keras_matrix.analysis.comparison.primary_metric import STEP_TIME, completed, primary_value
from keras_matrix.analysis.comparison.ratios import bracketed
from keras_matrix.analysis.comparison.table import CellSummary, Row
from keras_matrix.analysis.comparison.undecided import undecided
from keras_matrix.analysis.keras_cost import keras_costs
from keras_matrix.analysis.scaling.devices import device_scalings
from keras_matrix.analysis.warm_caches import warm_caches
from keras_matrix.records.settings import FIT, GENERATE
from keras_matrix.records.task import PREFIX
from keras_matrix.records.text import NOTHING, amount, interval_text, number, percentage, printable, seconds
from keras_matrix.runner.cli.render.figures import metric_lines

GAP = "  "
LOWEST = "1.00x"
BACKEND = "  backend"


@dataclass(frozen=True, slots=True)
class Column:
    """One column: its heading, the text of a cell, and the order in which narrow terminals leave it out; 0: never."""

    heading: str
    text: Callable[[Row, str, CellSummary, RunContext], str]
    left_out: int = 0


@dataclass(frozen=True, slots=True)
class Line:
    """One line of the table, and its style in the terms of rich."""

    text: str
    style: str = ""


TITLE, FASTEST, FAILED, VERDICT, NOTE = "bold", "bold green", "red", "bold", "dim"


def _figure(row: Row, name: str, cell: CellSummary, context: RunContext) -> str:
    if cell.step_time is not None:
        return amount(cell.step_time.centre, cell.figure.unit)
    return amount(primary_value(cell.measured), cell.figure.unit) if cell.measured else NOTHING


def _interval(row: Row, name: str, cell: CellSummary, context: RunContext) -> str:
    return interval_of(cell) if cell.step_time is not None else NOTHING


def _ratio(row: Row, name: str, cell: CellSummary, context: RunContext) -> str:
    if name == row.lowest:
        return LOWEST
    estimate = next((ratio.estimate for ratio in row.ratios if ratio.backend == name), None)
    if estimate is None:
        return NOTHING
    return bracketed(estimate)


def _samples(row: Row, name: str, cell: CellSummary, context: RunContext) -> str:
    return number(cell.samples_per_s) if cell.figure == STEP_TIME else NOTHING


def _tokens(row: Row, name: str, cell: CellSummary, context: RunContext) -> str:
    """Return the tokens of all prompts that are generated per second."""
    one = next((record.times for record in cell.measured if record.times.tokens_per_s), None)
    if one is None or not (one.tokens_per_s and one.samples_per_s and cell.samples_per_s):
        return NOTHING
    return number(cell.samples_per_s * one.tokens_per_s / one.samples_per_s)


def _first(row: Row, name: str, cell: CellSummary, context: RunContext) -> str:
    return seconds(cell.first_epoch_time_s)


def _steady(row: Row, name: str, cell: CellSummary, context: RunContext) -> str:
    return seconds(cell.epoch_time_s)


def _peak(row: Row, name: str, cell: CellSummary, context: RunContext) -> str:
    share = context.shares.get(cell.cell_id)
    return NOTHING if not share or share.share_of_peak is None else percentage(share.share_of_peak)


def columns_of(rows: Sequence[Row], context: RunContext) -> list[Column]:
    """Return the columns that these rows need: those of a step, of the metric of a command, or both."""
    cells = [cell for row in rows for cell in row.cells.values()]
    steps = any(cell.figure == STEP_TIME for cell in cells)
    commands = any(cell.figure != STEP_TIME for cell in cells)
    calls = all(cell.settings.phase != FIT for cell in cells if cell.figure == STEP_TIME)
    time = "time per call" if calls else "time per step"
    figure = "figure" if commands and steps else "metric" if commands else time
    found = [
        Column(figure, _figure),
        Column("95 % interval", _interval),
        Column("ratio to lowest", _ratio),
    ]
    if any(cell.settings.phase == GENERATE for cell in cells):
        found.append(Column("tokens/s", _tokens, left_out=5))
    if steps:
        found += [
            Column("samples/s", _samples, left_out=3),
            Column("first epoch", _first, left_out=2),
            Column("steady epoch", _steady, left_out=1),
        ]
    if context.has_peaks:
        found.append(Column("of peak", _peak, left_out=4))
    return found


def interval_of(cell: CellSummary) -> str:
    """Return the interval of a measured cell; without one, its processes, and over how many machines they were."""
    assert cell.step_time is not None
    over = f", {len(cell.machines)} {noun(cell.machines)}" if cell.machines else ""
    if cell.step_time.low is None or cell.step_time.high is None:
        return f"{cell.step_time.count} process{'es'[: 2 * (cell.step_time.count > 1)]}{over}"
    return f"{interval_text(cell.step_time.low, cell.step_time.high, cell.figure.unit)}{over}"


def table_lines(rows: Sequence[Row], context: RunContext, width: int | None = None) -> list[Line]:
    """Return the table as lines; with `width`, that of a terminal, the lines of backends fit into it if possible."""
    columns, open_rows = columns_of(rows, context), undecided(rows)
    notes = [(one.cell_id, f"scaling: {one.text}") for one in device_scalings(rows)]
    notes += [(one.cell_id, f"warm compile cache: {one.text}") for one in warm_caches(rows)]
    notes += [(one.cell_id, f"cost of Keras: {one.text}") for one in keras_costs(rows)]
    texts = {
        cell.cell_id: [column.text(row, name, cell, context) for column in columns]
        for row in rows
        for name, cell in row.cells.items()
    }
    named = max([len(BACKEND), *(len(name) + 2 for row in rows for name in row.cells)])
    widths = [max(map(len, [column.heading, *own])) for column, *own in zip(columns, *texts.values(), strict=True)]
    shown = _fitting(columns, widths, named, width)

    def laid_out(name: str, found: Sequence[str]) -> str:
        return GAP.join([name.ljust(named), *(found[i].rjust(widths[i]) for i in shown)]).rstrip()

    lines = [Line(laid_out(BACKEND, [column.heading for column in columns]), NOTE)]
    for row in rows:
        lines += [Line(""), *_title(row, context)]
        for name, cell in row.cells.items():
            mark = "* " if row.fastest == name else "  "
            lines.append(Line(laid_out(mark + name, texts[cell.cell_id]), _style(row, name, cell)))
            lines += [Line(f"{' ' * named}{GAP}{text}", NOTE) for text in _below(cell)]
        lines.append(Line(f"  {printable(row.verdict)}", FASTEST if row.fastest else VERDICT))
        if found := open_rows.get(row.key):
            lines.append(Line(f"  {printable(found.text(context.command))}", NOTE))
        own = {cell.cell_id for cell in row.cells.values()}
        lines += [Line(f"  {printable(text)}") for cell_id, text in notes if cell_id in own]
        lines += [Line(f"  caveat: {printable(caveat)}", "yellow") for caveat in row.caveats]
    left_out = [column.heading for index, column in enumerate(columns) if index not in shown]
    return [*lines, *([Line(f"(a wider terminal also shows: {', '.join(left_out)})", NOTE)] if left_out else [])]


def _title(row: Row, context: RunContext) -> list[Line]:
    """Return the title of a row and whether its backends did the same work; if not, how to check."""
    title = Line(printable(row.title), TITLE)
    if any(cell.settings.workload.startswith(PREFIX) for cell in row.cells.values()):
        return [title]
    found = context.same_work(row)
    advice = "" if found.checked else "; ".join(found.remarks[:1])
    stated = [f"{found.text}{': ' + advice if advice else ''}"] if found.checked or advice else []
    checks = [*stated, *context.on_several_devices(row)]
    return [title, *(Line(f"  {printable(text)}", NOTE) for text in checks)]


def _style(row: Row, name: str, cell: CellSummary) -> str:
    return FASTEST if row.fastest == name else "" if cell.measured else FAILED


def _below(cell: CellSummary) -> list[str]:
    """Return what is below a cell's line: the statuses of one that was not measured, the other metrics of a command."""
    if not cell.measured:
        statuses = ", ".join(sorted({status.value for status, _ in cell.failures}))
        return [statuses, *map(printable, metric_lines(cell) if completed(cell.records) else ())]
    return [] if cell.figure == STEP_TIME else [printable(", ".join(metric_lines(cell)))]


def _fitting(columns: Sequence[Column], widths: Sequence[int], named: int, width: int | None) -> list[int]:
    """Return the indices of the columns that fit into a terminal; the others are left out in their order."""
    shown = list(range(len(columns)))
    candidates = sorted((i for i in shown if columns[i].left_out), key=lambda i: columns[i].left_out)
    while width is not None and candidates and named + sum(len(GAP) + widths[i] for i in shown) > width:
        shown.remove(candidates.pop(0))
    return shown

"""Record a trace of one cell, or show where the time of a stored trace was spent.

CELL is a cell of the matrix or of a stored run. If the newest run with such a cell has its trace, it is shown;
otherwise, and with --new, --steps or --epochs, one is recorded: the cell is measured once, and traced afterwards. CELL
can also be a file of a profiler, *.xplane.pb of JAX or TensorFlow, *.json or *.json.gz of PyTorch, or a neutral trace,
packed or plain. docs/traces.md"""

from __future__ import annotations

import argparse
import tempfile
from dataclasses import dataclass, replace
from pathlib import Path

from keras_matrix.analysis.comparison.starts import START_MEANING, start_of
from keras_matrix.analysis.views.trace_view import PartTable, StepPart, part_tables
from keras_matrix.records.codec import to_json
from keras_matrix.records.schema import Record
from keras_matrix.records.text import number, percentage, plural, printable, seconds
from keras_matrix.records.traces import conversion
from keras_matrix.records.traces.request import TRACE_NAME, TraceError
from keras_matrix.records.traces.table import IdleGap, TraceSummary
from keras_matrix.runner.cli.options import add_measuring_options, check_output, run_request
from keras_matrix.runner.cli.render.format import columns, document
from keras_matrix.runner.errors import InfrastructureError, UsageError
from keras_matrix.runner.matrix.settings_text import settings_text
from keras_matrix.runner.measure.request import check_range
from keras_matrix.runner.measure.traces import table_of
from keras_matrix.runner.progress.lines import TerminalDisplay
from keras_matrix.runner.service import cells, exit_codes
from keras_matrix.runner.service.trace import (
    TracedRecord,
    call_time_s,
    cell_to_trace,
    record_trace,
    requested,
    stored_trace,
    write_copy,
    write_page,
)

NOT_REPORTED = "(not reported)"
LONGEST_NAME = 60

TOP = 20
FILE_ENDINGS = (".xplane.pb", ".json", ".json.gz", ".ctf")


def configure(parser: argparse.ArgumentParser) -> None:
    """Add this command's flags."""
    parser.add_argument("cell", metavar="CELL", help=f"{cells.HELP}; or a file of a trace")
    parser.add_argument("--matrix", type=Path, metavar="FILE", help="matrix with the cell; default: matrix.yaml")
    parser.add_argument("--run", metavar="RUN", help="show the trace of this run")
    epochs_help = "which epochs after the measured ones, from 1; default: 2"
    parser.add_argument("--epochs", type=int, nargs="+", metavar="N", help=epochs_help)
    parser.add_argument("--steps", type=int, metavar="N", help="steps of each epoch; default: 5")
    parser.add_argument("--top", type=int, default=TOP, metavar="N", help=f"lines of each table; default: {TOP}")
    parser.add_argument("--to", type=Path, metavar="FILE", help="also write the neutral trace here; .gz packs it")
    page_help = "also write a page with the timeline of one step and the tables here"
    parser.add_argument("--html", type=Path, metavar="FILE", help=page_help)
    parser.add_argument("--json", action="store_true", help="print one JSON document")
    add_measuring_options(parser)


def run(args: argparse.Namespace) -> int:
    """Find or record the trace; show it."""
    check_range("--top", args.top, 1)
    if args.to is not None:
        check_output("--to", args.to)
    if args.html is not None:
        check_output("--html", args.html)
    output = _Output(args.top, args.to, args.html, args.json)
    if args.cell.endswith(FILE_ENDINGS):
        return _of_file(Path(args.cell), output)
    trace_request = requested(args.epochs, args.steps)
    request = run_request(args)
    display, is_new = TerminalDisplay(args.json), args.new or args.steps or args.epochs
    if not is_new and (traced_record := stored_trace(request.results, args.cell, args.run, display)):
        return _show(traced_record, output) or traced_record.exit_code
    cell = replace(cell_to_trace(request, args.cell), trace=trace_request)
    recorded, finished_run = record_trace(request, cell, display)
    if recorded:
        return _show(recorded, output) or finished_run.exit_code
    for record in finished_run.latest:
        _say_why(record, as_json=args.json)
    return finished_run.exit_code or exit_codes.NOT_OK  # a measurement without a trace is a failure


@dataclass(frozen=True, slots=True)
class _Output:
    """How a trace is shown: the lines of each table, the files of a copy and of a page, and whether as JSON."""

    top: int
    copy: Path | None
    page: Path | None
    as_json: bool


def _say_why(record: Record, *, as_json: bool) -> None:
    """Print why there is no trace."""
    why = record.trace.problem if record.trace else f"{record.status}: {record.reason}"
    if as_json:
        print(document({"run": record.run_id, "cell_id": record.cell_id, "trace": None, "problem": why}))
    else:
        print(printable(f"no trace of {record.settings.backend} {settings_text(record.settings)}: {why}"))


def _show(traced_record: TracedRecord, output: _Output) -> int:
    try:
        table = table_of(traced_record.path)
        write_copy(output.copy, traced_record.path)
        title = f"{traced_record.record.settings.backend} {settings_text(traced_record.record.settings)}"
        write_page(output.page, title, table, traced_record.path)
    except TraceError as error:
        raise InfrastructureError(str(error)) from error
    record, path = traced_record.record, str(traced_record.path)
    if output.as_json:
        fields = {"run": traced_record.run.run_id, "cell_id": record.cell_id, "trace": path, "table": to_json(table)}
        print(document(fields))
        return 0
    settings = record.settings
    title = f"{settings.backend} {settings_text(settings)}, cell {record.cell_id} of run {traced_record.run.run_id}"
    lines = [title, *heading(table, call_time_s(record)), *start_lines(record), *table_lines(table, output.top)]
    print("\n".join([*map(printable, lines), f"trace: {path}   https://ui.perfetto.dev opens it"]))
    return 0


def _of_file(path: Path, output: _Output) -> int:
    """Show a file of a profiler, or a neutral trace."""
    if not path.is_file():
        raise UsageError(f"CELL: there is no file {path}")
    with tempfile.TemporaryDirectory(prefix="trace-") as folder:
        converted = Path(folder) / TRACE_NAME
        try:
            conversion.make_of(path, converted)
            table = table_of(converted)
        except TraceError as error:
            raise UsageError(str(error)) from error
        write_copy(output.copy, converted)
        write_page(output.page, path.name, table, converted)
    if output.as_json:
        print(document({"file": str(path), "table": to_json(table)}))
    else:
        print("\n".join(map(printable, [str(path), *heading(table, None), *table_lines(table, output.top)])))
    return 0


def heading(table: TraceSummary, measured_step_s: float | None) -> list[str]:
    """Return the steps that were traced, and how busy the device was."""
    workers_text = f" of {table.workers} workers" if table.workers > 1 else ""
    if table.steps and table.step_time_s is not None:
        unprofiled_text = f"; {seconds(measured_step_s)} as measured, without it" if measured_step_s else ""
        first_line = (
            f"{plural(table.steps, 'step')}{workers_text}: {seconds(table.step_time_s)} each with the profiler on"
            f"{unprofiled_text}"
        )
    else:
        first_line = f"{seconds(table.window_s)}{workers_text}; no step was marked"
    busy_share_text = "not known" if table.busy_share is None else f"{percentage(table.busy_share)} of the time"
    idle_text = f"{plural(table.gap_count, 'gap')}, {seconds(table.gap_time_s)} in all"
    lines = [first_line, f"{table.place} busy {busy_share_text}; {idle_text}"]
    if table.overlap_share is not None:
        lines.append(f"communication overlapped by compute: {percentage(table.overlap_share)} of its time")
    lines += [f"warning: the profiler reports: {text}" for text in table.warnings]
    return [*lines, *(f"caveat: {text}" for text in table.notes)]


def start_lines(record: Record) -> list[str]:
    """Return how the traced process started, as far as its backend reports it."""
    start = start_of([record])
    start_times_s = {
        "trace": start.trace_time_s,
        "compile": start.compile_time_s,
        "first step": start.first_step_time_s,
    }
    times_text = ", ".join(f"{name} {seconds(value)}" for name, value in start_times_s.items() if value is not None)
    has_compile_time = start.trace_time_s is not None or start.compile_time_s is not None
    return (
        [f"start of the process: {times_text}{f' ({START_MEANING})' if has_compile_time else ''}"] if times_text else []
    )


def table_lines(table: TraceSummary, top: int) -> list[str]:
    """Return the tables: by operation, layer, phase and, if there are several, kind of work; and the largest gaps."""
    lines = [line for part_table in part_tables(table, top) for line in ("", *_part_lines(part_table))]
    return [*lines, "", *_gap_lines(table, top), ""]


def _part_lines(table: PartTable) -> list[str]:
    rows = [[f"by {table.by}", "share", f"time{table.unit}", f"count{table.unit}"]]
    rows += [_part_row(_short(part.name or NOT_REPORTED), part) for part in table.parts]
    rows += [_part_row(f"{table.rest.others} others", table.rest)] if table.rest else []
    return columns(rows, frozenset((1, 2, 3)))


def _part_row(title: str, part: StepPart) -> list[str]:
    return [title, percentage(part.share), seconds(part.time_s), number(part.count)]


def _gap_lines(table: TraceSummary, top: int) -> list[str]:
    if not table.gaps:
        return ["no gaps"]
    rows = [["gaps, the longest", "begins at", "after", "before", "meanwhile"]]
    return columns(rows + [_gap_row(gap, table.workers) for gap in table.gaps[:top]], frozenset((0, 1)))


def _gap_row(gap: IdleGap, workers: int) -> list[str]:
    worker_text = f"worker {gap.worker}: " if workers > 1 else ""
    operation_names = [_short(name) if name else "-" for name in (gap.before, gap.after, gap.meanwhile)]
    return [f"{worker_text}{seconds(gap.duration_s)}", seconds(gap.begin_s), *operation_names]


def _short(name: str) -> str:
    return name if len(name) <= LONGEST_NAME else name[: LONGEST_NAME - 3] + "..."

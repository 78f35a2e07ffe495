"""A first look in half a minute: one model on each installed backend, one process each.

MODEL is a name of `runner list` or your own module:function (default: cifar10_cnn). It names no fastest backend, for
which one process is too little, and prints the command that decides."""

from __future__ import annotations

import argparse
import time
from collections.abc import Mapping, Sequence
from contextlib import AbstractContextManager
from dataclasses import replace
from functools import partial
from pathlib import Path

from keras_matrix.analysis.comparison.context import WorkStatus
from keras_matrix.analysis.views.result_table import WorkView
from keras_matrix.records.schema import MEASURED
from keras_matrix.records.text import amount, duration, number, printable
from keras_matrix.runner.cli.options import add_results_option, workload_choice
from keras_matrix.runner.cli.render import exported, findings
from keras_matrix.runner.cli.render.format import columns
from keras_matrix.runner.executors import registry
from keras_matrix.runner.matrix.overrides import Overrides, parse_assignment
from keras_matrix.runner.matrix.reader import Cell
from keras_matrix.runner.measure.observer import Observer
from keras_matrix.runner.measure.request import RunRequest
from keras_matrix.runner.plan.plan import PlannedRepeat
from keras_matrix.runner.progress.lines import TerminalDisplay
from keras_matrix.runner.service import quick
from keras_matrix.runner.service.commands import DECIDED_BY
from keras_matrix.runner.service.run import finished
from keras_matrix.runner.service.starter import installed
from keras_matrix.runner.service.stored import Findings

UNPROVED = {
    WorkStatus.NOT_CHECKED: "Whether they do the same work was not checked",
    WorkStatus.STALE: "Whether they do the same work was checked at other versions only",
    WorkStatus.DEVIATES: "They do not do the same work",
}


def configure(parser: argparse.ArgumentParser) -> None:
    """Add this command's flags."""
    parser.add_argument("model", nargs="?", default=quick.WORKLOAD, metavar="MODEL", help=f"default: {quick.WORKLOAD}")
    add_several = partial(parser.add_argument, action="append", default=[])
    add_several("--backend", metavar="NAME", help="only this backend; may be repeated")
    setting_help = "a setting, or a parameter of the model; may be repeated"
    add_several("--set", metavar="KEY=VALUE", dest="assignments", help=setting_help)
    add_results_option(parser)
    parser.add_argument("--datasets", type=Path, metavar="FOLDER", help="of the data sets; default: ~/.keras/datasets")
    parser.add_argument("--json", action="store_true", help="print one JSON document instead of progress and table")


def run(args: argparse.Namespace) -> int:
    """Measure each backend once, and print the ratios and the command that decides."""
    backends = args.backend or installed("quick")
    overrides = Overrides(tuple(backends), (), dict(map(parse_assignment, args.assignments)))
    request = RunRequest(
        command=("runner", *args.given),
        choice=replace(workload_choice("MODEL", args.model, overrides, quick.DEFAULTS), service=args.service),
        results=args.results,
        executors=registry.chosen(registry.DEFAULT, None, {}, args.seams.engine),
        datasets=args.datasets,
        seams=args.seams,
    )
    matrix, cells = request.choice.load()
    request.choice.check_workloads(matrix, cells)
    decided_by = quick.deciding(args.model, args.assignments, args.backend, args.results)
    display = _Display(args.json)
    display.say(_beforehand(args.model, cells, quick.expected(args.results, cells)))
    begun_s = time.perf_counter()
    finished_run = finished(quick.measured(request, cells, decided_by, display))
    if display.quiet:
        head = {
            "run_id": finished_run.run.run_id,
            "folder": str(finished_run.run.folder),
            "exit_code": finished_run.exit_code,
        }
        print(exported.as_document(head | {DECIDED_BY: decided_by}, finished_run.found))
    else:
        _print(finished_run.found, display)
        again_s = quick.DECIDING_REPEATS * (time.perf_counter() - begun_s)
        report_line = f"report: {request.results / 'latest' / 'report.html'}"
        display.say("\n".join([*next_lines(finished_run.found, decided_by, again_s), "", report_line]))
    return finished_run.exit_code


class _Display(TerminalDisplay):
    """Expects each process to take the import of its backend in addition, which it does not share with others."""

    def progress(
        self, repeats: Sequence[PlannedRepeat], pending: Sequence[PlannedRepeat], estimates_s: Mapping[str, float]
    ) -> AbstractContextManager[Observer]:
        """Return what shows the progress."""
        longer_s = {cell_id: estimate_s + quick.IMPORT_TIME_S for cell_id, estimate_s in estimates_s.items()}
        return super().progress(repeats, pending, longer_s)


def _beforehand(model: str, cells: Sequence[Cell], expected: quick.ExpectedDuration) -> str:
    """Return what will be measured, and how long that takes."""
    names_text = ", ".join(cell.settings.backend for cell in cells)
    head_text = f"{model} on {names_text}, one process each"
    if not expected.least:
        return f"{head_text}: about {duration(expected.seconds)}"
    times_text = f"{duration(expected.seconds)}, plus building and compiling your model"
    return f"{head_text}\n{times_text}; at most {duration(expected.limit_s)} (timeout_s)"


def _print(run_findings: Findings, display: TerminalDisplay) -> None:
    from rich.console import Console

    console = Console(highlight=False)
    for work in run_findings.table.works:
        if any(view.cell.measured for view in work.cells):
            console.print("\n".join(["", *work_lines(work)]), markup=False, soft_wrap=True)
    console.print()
    for line in undecided_lines(run_findings):
        console.print(line, markup=False, soft_wrap=True)
    findings.print_problems(console, run_findings, display.known_problems)


def next_lines(run_findings: Findings, decided_by: str, again_s: float) -> list[str]:
    """Return the command that decides, with the time that it takes; nothing if no process was measured."""
    if not any(record.status in MEASURED for record in run_findings.records):
        return []
    purpose_text = "to decide" if any(row.ratios for row in run_findings.rows) else "for an interval"
    return ["", f"{purpose_text}, in five processes each (about {duration(again_s)}):", f"  {decided_by}"]


def work_lines(work: WorkView) -> list[str]:
    """Return the times of a work, each with its ratio to the lowest one."""
    lines = [
        [
            f"  {view.backend}",
            amount(view.value, view.cell.figure.unit),
            "1.00x" if view.is_lowest else f"{number(view.ratio.centre)}x" if view.ratio else "",
            "one process" if view.cell.measured else view.failed_with,
        ]
        for view in work.cells
    ]
    noun = "call" if any(view.cell.settings.phase != "fit" for view in work.cells) else "step"
    head_text = f"{printable(work.row.title)}: time of a {noun}, and its ratio to the lowest"
    caveats = (f"  caveat: {printable(caveat)}" for caveat in work.row.caveats)
    return [head_text, *columns(lines, frozenset({1, 2})), *caveats]


def undecided_lines(run_findings: Findings) -> list[str]:
    """Return what these figures do not say."""
    if not any(row.ratios for row in run_findings.rows):
        measured_rows = [row for row in run_findings.rows if any(cell.measured for cell in row.cells.values())]
        return [printable(f"{row.title}: {row.verdict}") for row in measured_rows]
    lines = [
        "One process each: this does not say which backend is fastest, nor whether a",
        "difference is more than chance.",
    ]
    for work in run_findings.table.works:
        if work.row.ratios and work.same_work.status in UNPROVED:
            lines.append(f"{UNPROVED[work.same_work.status]}: runner parity {work.cells[0].cell.settings.workload}")
    if any(record.surroundings.disturbed for record in run_findings.records):
        lines.append("Other programs used this machine meanwhile: the figures may be far off.")
    return lines

"""Measure one FC mode with the flags of the 2016 mini-benchmark, or prove that all modes compute the same.

A stack of fully connected layers is trained by data, model or physics parallelism, with automatic or manual
backpropagation: docs/fc.md. Workers are virtual devices on JAX, logical devices on TensorFlow, processes on PyTorch;
over a network, processes on every backend."""

from __future__ import annotations

import argparse
import sys
from collections.abc import Mapping, Sequence
from functools import partial
from pathlib import Path

from keras_matrix.analysis.fc.cells import Summary, summary
from keras_matrix.analysis.fc.parallel import FcFigure
from keras_matrix.records.codec import to_json
from keras_matrix.records.fc.spec import MODES, gpu_aggr, problem_of
from keras_matrix.records.schema import Record, Status
from keras_matrix.records.store import Run
from keras_matrix.records.text import bytes_text, plural, printable
from keras_matrix.runner.cli.measure import fc_proof
from keras_matrix.runner.cli.measure.fc_flags import add_task_flags, fc_flags
from keras_matrix.runner.cli.options import add_measuring_options, run_request
from keras_matrix.runner.cli.render.fc_text import figure_lines
from keras_matrix.runner.cli.render.format import document
from keras_matrix.runner.errors import UsageError
from keras_matrix.runner.matrix.overrides import Overrides
from keras_matrix.runner.measure.request import CellChoice, RunRequest, check_backends
from keras_matrix.runner.progress.display import TerminalDisplay
from keras_matrix.runner.service.fc import (
    FcFlags,
    all_traces_left,
    export_csv,
    figures_of,
    measured_modes,
    prove,
)
from keras_matrix.runner.service.stored import chosen_run


def configure(parser: argparse.ArgumentParser) -> None:
    """Add this command's flags."""
    add_task_flags(parser)
    parser.add_argument(
        "--prove",
        action="store_true",
        help="compare gradients and weights of every mode (or of --mode) with plain NumPy instead, for 1, 2, 3 and 4 "
        "workers in float64 and float32, or with the sizes, parameters and seed given; exit code 1 if one is beyond "
        "its limit",
    )
    export = "instead, write a stored run of matrices/fc-sweep.yaml on one --backend in the original's layout"
    parser.add_argument("--export-csv", type=Path, metavar="FILE", help=export)
    parser.add_argument("--run", metavar="RUN", help="run for --export-csv; default: the newest")
    add_measuring_options(parser)
    parser.add_argument("--json", action="store_true", help="print one JSON document")


def run(args: argparse.Namespace) -> int:
    """Measure the task, prove, or export."""
    check_backends(args.backend)
    if args.prove:
        fc_proof.refuse_unused(vars(args))
        say = partial(print, file=sys.stderr)
        return fc_proof.show(prove(fc_flags(args), args.results, args.seams, say), as_json=args.json)
    if args.export_csv is not None:
        return _export(chosen_run(args.results, args.run), args.backend, args.export_csv)
    if args.mode is None:
        raise UsageError(f"--mode: must be one of {', '.join(MODES)}, got none")
    flags = fc_flags(args)
    request = run_request(args, CellChoice(Path("fc"), Overrides()))  # the cells come from the flags, not from a file
    return _measure(request, flags, TerminalDisplay(args.json))


# Measuring.


def _measure(request: RunRequest, flags: FcFlags, display: TerminalDisplay) -> int:
    done = measured_modes(request, flags, display)
    figures = figures_of(done.found)
    if display.quiet:
        print(document({"cells": _cell_rows(done.latest, figures)}))
    else:
        print("\n".join(measured_lines(done.latest, figures)))
        print(f"records: {done.run.folder / 'records'}")
    missing = flags.full_trace and not all_traces_left(done.run, done.latest, display)
    return done.exit_code or int(missing)


def _by_cell(records: Sequence[Record]) -> dict[str, list[Record]]:
    found: dict[str, list[Record]] = {}
    for record in records:
        found.setdefault(record.cell_id, []).append(record)
    return found


def measured_lines(records: Sequence[Record], figures: Mapping[str, FcFigure]) -> list[str]:
    """Return the original's summary of each cell, with further figures and problems."""
    lines: list[str] = []
    for cell, own in _by_cell(records).items():
        lines += [*_summary_lines(own), *(figure_lines(figures[cell]) if cell in figures else [])]
        lines += [*_problem_lines(own), ""]
    return list(map(printable, lines))


def _summary_lines(records: Sequence[Record]) -> list[str]:
    first, found = records[0], summary(records)
    if found is None:
        return []
    task = problem_of(first.settings)
    steps = sum(len(r.times.epoch_times_s) * r.resolved.steps_per_epoch for r in records if r.resolved)
    aggregated = gpu_aggr(task.mode, task.workers, first.settings.device)
    name = f"{task.mode}+{task.workers}+{aggregated}+{task.weight_size}+{task.batch_size}"
    return [
        f"{first.started_at}: Training {name} across {steps} steps, "
        f"{found.mean_s:.6f} +/- {found.sd_s:.6f} sec / batch",
        f"  {first.settings.backend}, {found.samples_per_s:,.1f} samples/sec; {_sent(found)}; {_layout(first)}",
    ]


def _sent(found: Summary) -> str:
    """Return the payload of a step by formula and the bytes sent for it; workers in one process send nothing."""
    if not found.bytes_per_step:
        return "nothing communicated"
    payload = f"{bytes_text(found.bytes_per_step)} payload a step"
    wire = found.wire_bytes_per_step
    return payload if wire is None else f"{payload}, {bytes_text(wire)} on the wire"


def _layout(record: Record) -> str:
    """Return the processes or devices with the workers' weights, as verified at run time."""
    if record.parallel is None:
        return "one device"
    places = record.parallel.places
    shapes = sorted({"x".join(map(str, place.weights[0])) for place in places})
    names = ("process", "processes") if any(place.process for place in places) else ("device", "devices")
    return f"{plural(len(places), *names)} with first weights of {', '.join(shapes)}"


def _problem_lines(records: Sequence[Record]) -> list[str]:
    named = [(f"{r.settings.params['mode']} on {r.settings.backend}", r) for r in records]
    bad = [f"{name}: {r.status}: {r.reason}" for name, r in named if r.status is not Status.OK and r.reason]
    return bad + [f"  {warning}" for _, r in named for warning in r.warnings if warning != r.reason]


def _cell_rows(records: Sequence[Record], figures: Mapping[str, FcFigure]) -> list[dict[str, object]]:
    return [
        {
            "cell_id": cell,
            "settings": to_json(own[0].settings),
            "statuses": [str(record.status) for record in own],
            "summary": to_json(summary(own)),
            "figure": to_json(figures.get(cell)),
            "parallel": to_json(own[0].parallel),
        }
        for cell, own in _by_cell(records).items()
    ]


# Exporting.


def _export(store: Run, backends: Sequence[str], path: Path) -> int:
    """Write a stored sweep of one backend as CSV."""
    backend = export_csv(store, backends, path)
    print(f"{backend} of {store.run_id}: {path}")
    return 0

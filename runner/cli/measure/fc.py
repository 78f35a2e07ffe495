"""Measure one FC mode with the flags of the 2016 mini-benchmark, or prove that all modes compute the same.

A stack of fully connected layers is trained by data, model or physics parallelism, with automatic or manual
backpropagation: docs/fc.md. Workers are virtual devices on JAX, logical devices on TensorFlow, processes on PyTorch;
over a network, processes on every backend."""

from __future__ import annotations

import argparse
import sys
from collections.abc import Mapping, Sequence
from dataclasses import asdict
from functools import partial
from pathlib import Path

from keras_matrix.analysis.fc import FcFigure
from keras_matrix.analysis.proofs import PROOF_LIMITS, Summary, fc_summary, proof_problem, worst_error
from keras_matrix.records.backends import TRAINING_BACKENDS
from keras_matrix.records.codec import to_json
from keras_matrix.records.fc.proof import ProofAnswer
from keras_matrix.records.fc.rules import DEFAULTS, WHAT_IF
from keras_matrix.records.fc.spec import LOCAL, MODES, FcProblem, gpu_aggr, problem_of
from keras_matrix.records.schema import Record, Status
from keras_matrix.records.store import Run
from keras_matrix.records.text import bytes_text, count, percentage, plural, printable
from keras_matrix.runner.cli.measure.fc_flags import add_task_flags, fc_flags
from keras_matrix.runner.cli.options import add_measuring_options, run_request
from keras_matrix.runner.cli.render.format import columns, document
from keras_matrix.runner.errors import UsageError
from keras_matrix.runner.executors import registry
from keras_matrix.runner.matrix.overrides import Overrides
from keras_matrix.runner.measure.request import CellChoice, RunRequest, check_backends
from keras_matrix.runner.progress.lines import TerminalDisplay
from keras_matrix.runner.service.fc import (
    FcFlags,
    FcProof,
    all_traces_left,
    export_csv,
    figures_of,
    measured_modes,
    prove,
)
from keras_matrix.runner.service.stored import chosen_run

# Flags that have no effect on a proof, with the only value that each may have.
NOT_GIVEN = ("export_csv", "threads", "run", "start", "budget", "order_seed", "log_dir", "datasets")
UNUSED = {
    **dict.fromkeys(NOT_GIVEN),
    **{"num_batches": 100, "repeats": 1, "full_trace": 0, "gpu_aggr": 0, "num_classes": 1, "new": False},
    **{"network": LOCAL, "amp": "", "executor": registry.DEFAULT},
    **{option.name: None for entry in registry.ENTRIES.values() for option in entry.options},
}

METHODS = {"timed": "each collective timed by itself", "profiled": "by the backend's profiler"}


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
    export_help = "instead, write a stored run of matrices/fc-sweep.yaml on one --backend in the original's layout"
    parser.add_argument("--export-csv", type=Path, metavar="FILE", help=export_help)
    parser.add_argument("--run", metavar="RUN", help="run for --export-csv; default: the newest")
    add_measuring_options(parser)
    parser.add_argument("--json", action="store_true", help="print one JSON document")


def run(args: argparse.Namespace) -> int:
    """Measure the task, prove, or export."""
    check_backends(args.backend, TRAINING_BACKENDS)
    if args.prove:
        refuse_unused(vars(args))
        say = partial(print, file=sys.stderr)
        return show_proof(prove(fc_flags(args), args.results, args.seams, say), as_json=args.json)
    if args.export_csv is not None:
        return _export(chosen_run(args.results, args.run), args.backend, args.export_csv)
    if args.mode is None:
        raise UsageError(f"--mode: must be one of {', '.join(MODES)}, got none")
    flags = fc_flags(args)
    request = run_request(args, CellChoice(Path("fc"), Overrides()))  # the cells come from the flags, not from a file
    return _measure(request, flags, TerminalDisplay(args.json))


# Measuring.


def _measure(request: RunRequest, flags: FcFlags, display: TerminalDisplay) -> int:
    finished_run = measured_modes(request, flags, display)
    figures = figures_of(finished_run.found)
    if display.quiet:
        print(document({"cells": _cell_rows(finished_run.latest, figures)}))
    else:
        print("\n".join(measured_lines(finished_run.latest, figures)))
        print(f"records: {finished_run.run.folder / 'records'}")
    has_missing_trace = flags.full_trace and not all_traces_left(finished_run.run, finished_run.latest, display)
    return finished_run.exit_code or int(has_missing_trace)


def _by_cell(records: Sequence[Record]) -> dict[str, list[Record]]:
    records_by_cell: dict[str, list[Record]] = {}
    for record in records:
        records_by_cell.setdefault(record.cell_id, []).append(record)
    return records_by_cell


def measured_lines(records: Sequence[Record], figures: Mapping[str, FcFigure]) -> list[str]:
    """Return the original's summary of each cell, with further figures and problems."""
    lines: list[str] = []
    for cell_id, cell_records in _by_cell(records).items():
        lines += [*_summary_lines(cell_records), *(figure_lines(figures[cell_id]) if cell_id in figures else [])]
        lines += [*_problem_lines(cell_records), ""]
    return list(map(printable, lines))


def _summary_lines(records: Sequence[Record]) -> list[str]:
    first_record, summary = records[0], fc_summary(records)
    if summary is None:
        return []
    task = problem_of(first_record.settings)
    steps = sum(len(r.times.epoch_times_s) * r.resolved.steps_per_epoch for r in records if r.resolved)
    aggregated = gpu_aggr(task.mode, task.workers, first_record.settings.device)
    name = f"{task.mode}+{task.workers}+{aggregated}+{task.weight_size}+{task.batch_size}"
    return [
        f"{first_record.started_at}: Training {name} across {steps} steps, "
        f"{summary.mean_s:.6f} +/- {summary.sd_s:.6f} sec / batch",
        f"  {first_record.settings.backend}, {summary.samples_per_s:,.1f} samples/sec; {_sent(summary)}; "
        f"{_layout(first_record)}",
    ]


def _sent(summary: Summary) -> str:
    """Return the payload of a step by formula and the bytes sent for it; workers in one process send nothing."""
    if not summary.bytes_per_step:
        return "nothing communicated"
    payload_text = f"{bytes_text(summary.bytes_per_step)} payload a step"
    wire_bytes = summary.wire_bytes_per_step
    return payload_text if wire_bytes is None else f"{payload_text}, {bytes_text(wire_bytes)} on the wire"


def _layout(record: Record) -> str:
    """Return the processes or devices with the workers' weights, as verified at run time."""
    if record.parallel is None:
        return "one device"
    places = record.parallel.places
    shapes = sorted({"x".join(map(str, place.weights[0])) for place in places})
    names = ("process", "processes") if any(place.process for place in places) else ("device", "devices")
    return f"{plural(len(places), *names)} with first weights of {', '.join(shapes)}"


def _problem_lines(records: Sequence[Record]) -> list[str]:
    named_records = [(f"{r.settings.params['mode']} on {r.settings.backend}", r) for r in records]
    failure_lines = [
        f"{name}: {r.status}: {r.reason}" for name, r in named_records if r.status is not Status.OK and r.reason
    ]
    return failure_lines + [f"  {warning}" for _, r in named_records for warning in r.warnings if warning != r.reason]


def _cell_rows(records: Sequence[Record], figures: Mapping[str, FcFigure]) -> list[dict[str, object]]:
    return [
        {
            "cell_id": cell_id,
            "settings": to_json(cell_records[0].settings),
            "statuses": [str(record.status) for record in cell_records],
            "summary": to_json(fc_summary(cell_records)),
            "figure": to_json(figures.get(cell_id)),
            "parallel": to_json(cell_records[0].parallel),
        }
        for cell_id, cell_records in _by_cell(records).items()
    ]


# Exporting.


def _export(store: Run, backends: Sequence[str], path: Path) -> int:
    """Write a stored sweep of one backend as CSV."""
    backend = export_csv(store, backends, path)
    print(f"{backend} of {store.run_id}: {path}")
    return 0


def figure_lines(figure: FcFigure) -> list[str]:
    """Return the rate, communication, efficiency and memory of a cell, as lines."""
    return [f"  {_rate(figure)}", f"  {_communication(figure)}; {_efficiency(figure)}; {_memory(figure)}"]


def _rate(figure: FcFigure) -> str:
    rate_text = f"{count(figure.flop_per_s)}FLOP/s"
    if figure.share_of_best is None:
        return f"{rate_text}; share of the best product not measured: runner roofline --measure"
    own_share_text = (
        "" if figure.share_of_own is None else f", {percentage(figure.share_of_own)} of {figure.settings.backend}'s own"
    )
    return f"{rate_text}: {percentage(figure.share_of_best)} of the machine's best product{own_share_text}"


def _communication(figure: FcFigure) -> str:
    if figure.communication_share is None:
        return "time in communication not measured"
    if figure.spent is None:
        return "no time in communication"
    return f"{figure.spent.share_text} of the time in communication ({METHODS[figure.spent.method]})"


def _efficiency(figure: FcFigure) -> str:
    if figure.task.workers == 1:
        return "one worker"
    if figure.efficiency is None:
        return "efficiency not measured: this run has no such cell with one worker (--num-workers 1 2)"
    efficiency = figure.efficiency
    return f"efficiency {percentage(efficiency.centre, efficiency.low, efficiency.high)} against one worker"


def _memory(figure: FcFigure) -> str:
    if figure.worker_memory_bytes is None:
        return "memory not measured"
    memory = bytes_text(figure.worker_memory_bytes)
    if figure.processes < figure.task.workers:
        return f"peak memory {memory}, all {figure.task.workers} workers in one process"
    return f"peak memory {memory}" + (" of the largest worker" if figure.task.workers > 1 else "")


def refuse_unused(flags: Mapping[str, object]) -> None:
    """Raise `UsageError` for given flags that have no effect on a proof."""
    wrong_flags = [flag.replace("_", "-") for flag, default in UNUSED.items() if flags[flag] not in (None, default)]
    if wrong_flags:
        raise UsageError(
            "\n".join(f"--{flag}: has no effect with --prove; leave one of the two out" for flag in wrong_flags)
        )


def show_proof(proof: FcProof, *, as_json: bool) -> int:
    """Print a proof; exit code 1 if a task is beyond its limit or a backend gave no answer."""
    skipped_texts = proof.request.skipped()
    if as_json:
        head = {"holds": proof.holds, "seed": proof.seed, "device": proof.device}
        print(
            document(
                {**head, "answers": to_json(list(proof.answers)), "refused": proof.refused, "skipped": skipped_texts}
            )
        )
    elif not proof.missing:
        first_task = proof.request.tasks()[0]
        sizes_text = (
            f"level {first_task.level}, weight_size {first_task.weight_size}, batch_size {first_task.batch_size}"
        )
        lines = [*proof_lines(proof.answers, proof.refused), f"{sizes_text}, seed {proof.seed}, on {proof.device}"]
        print("\n".join([*lines, *(f"* not proved: {why}" for why in skipped_texts)]))
    return 0 if proof.holds else 1


def proof_lines(answers: Sequence[ProofAnswer], reason_by_backend: Mapping[str, str]) -> list[str]:
    """Return the proof as a table: the worst error of a mode over its numbers of workers, a column per backend."""
    rows = [["mode", "precision", "limit", *(answer.backend for answer in answers)]]
    keys = dict.fromkeys((p.problem.precision, p.problem.mode) for answer in answers for p in answer.proofs)
    for precision, mode in keys:
        texts = [_worst(answer, mode, precision) for answer in answers]
        rows.append([mode, precision, f"{PROOF_LIMITS[precision]:.0e}", *texts])
    lines = columns(rows, right=frozenset(range(2, len(rows[0])))) if answers else []
    proofs = [(answer.backend, proof) for answer in answers for proof in answer.proofs]
    lines += [f"* {_named(name, proof.problem)}: {fault}" for name, proof in proofs if (fault := proof_problem(proof))]
    lines += [f"* {backend}: not proved: {why}" for backend, why in reason_by_backend.items()]
    return [printable(line) for line in [*lines, "", *_claims(answers)]]


def _worst(answer: ProofAnswer, mode: str, precision: str) -> str:
    mode_proofs = [p for p in answer.proofs if (p.problem.mode, p.problem.precision) == (mode, precision)]
    worst, mark_text = worst_error(mode_proofs), "" if not any(map(proof_problem, mode_proofs)) else " *"
    return "-" if worst is None else f"{worst:.0e}{mark_text}"


def _named(backend: str, task: FcProblem) -> str:
    extra_text = f" blocks={task.phy_blocks} ratio={task.shared_ratio:g}" if task.mode == "fc_phy" else ""
    extra_text += f" model_workers={task.model_size}" if task.mode == "fc_hybrid" else ""
    extra_text += f" micro_batches={task.micro_batches}" if task.mode == "fc_pipeline" else ""
    extra_text += " overlap=off" if task.overlap == "off" else ""
    extra_text += f" partition={task.partition}" if task.partition != "program" else ""
    values = asdict(task)
    extra_text += "".join(f" {name}={values[name]}" for name in WHAT_IF if values[name] != DEFAULTS[name])
    return f"{task.mode} on {backend}, {plural(task.workers, 'worker')}, {task.precision}, {task.reduce}{extra_text}"


def _claims(answers: Sequence[ProofAnswer]) -> list[str]:
    proofs = [proof for answer in answers for proof in answer.proofs]
    silent = [p for p in proofs if p.problem.mode == "fc_phy" and p.problem.shared_ratio == 0]
    call_count = sum(p.parallel.traffic.calls for p in silent)
    equal_count = sum(p.layout_problem is None for p in proofs)
    return [
        "worst max |difference| / max |reference| of gradients, weights, their updates and loss after 5 steps, against "
        "plain NumPy in float64",
        f"bytes and layout as the formulas say: {equal_count} of {len(proofs)} tasks",
        *([f"fc_phy with shared_ratio 0: {call_count} collectives in {len(silent)} tasks"] if silent else []),
    ]

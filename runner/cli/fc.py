"""Measure one FC mode with the flags of the 2016 mini-benchmark, or prove that all of them compute the same.

A stack of fully connected layers is trained by data, model or physics parallelism, with automatic or manual
backpropagation: docs/fc.md. Workers are virtual devices on JAX, logical devices on TensorFlow, processes on PyTorch."""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Mapping, Sequence
from dataclasses import fields
from pathlib import Path
from typing import TYPE_CHECKING, Any

from records.fc import MODES, PARTITIONS
from records.settings import BACKENDS
from runner.cli.options import add_measuring_options
from runner.errors import UsageError

if TYPE_CHECKING:
    from analysis.parallel import Figure
    from records.fc_proof import ProofAnswer
    from records.schema import Record
    from records.store import Run
    from runner.cli.stored import Findings
    from runner.matrix import Cell, Matrix

NAME = "fc"
FULL_TRACE = "full_trace.ctf"
HELP = "measure or prove a parallel mode of fully connected layers"
# The flags that are parameters or settings of the workload, and what they are called there.
TASK = {
    "mode": "mode",
    "num_workers": "workers",
    "level": "level",
    "weight_size": "weight_size",
    "batch_size": "batch_size",
    "dtype": "precision",
    "phy_blocks": "phy_blocks",
    "shared_ratio": "shared_ratio",
    "reduce": "reduce",
    "overlap": "overlap",
    "partition": "partition",
    "model_workers": "model_workers",
    "micro_batches": "micro_batches",
    "network": "network",
    "threads": "threads",
    "device": "device",
    "seed": "seed",
}


def configure(parser: argparse.ArgumentParser) -> None:
    """Add this command's flags. The original's names; those that are left out are at the workload's defaults."""
    task = parser.add_argument_group("which task")
    task.add_argument("--mode", metavar="MODE", help=f"one of {', '.join(MODES)}")
    task.add_argument(
        "--num-workers",
        type=int,
        nargs="+",
        metavar="N",
        help="workers the work is divided among; several are compared; default: 1",
    )
    task.add_argument("--level", type=int, metavar="N", help="square layers; one of one column follows; default: 10")
    task.add_argument("--weight-size", type=int, metavar="N", help="rows and columns of a layer; default: 1024")
    task.add_argument("--batch-size", type=int, metavar="N", help="of all workers together; default: 128")
    task.add_argument("--num-batches", type=int, default=100, metavar="N", help="batches timed; default: 100")
    task.add_argument("--dtype", metavar="NAME", help="float32, float64 or bfloat16; default: float32")
    task.add_argument("--phy-blocks", type=int, metavar="N", help="fc_phy: models each worker holds; default: 1")
    task.add_argument("--shared-ratio", type=float, metavar="R", help="fc_phy: share averaged; default: 1/1024")
    task.add_argument("--reduce", metavar="HOW", help="sum or mean of the workers' gradients; default: sum")
    task.add_argument("--overlap", metavar="ON|OFF", help="fc_data, fc_data_manual: sum while others are made")
    task.add_argument("--partition", metavar="WHO", help=f"puts the collectives in: {', '.join(PARTITIONS)}")
    task.add_argument("--model-workers", type=int, metavar="N", help="fc_hybrid: workers that divide a layer")
    task.add_argument("--micro-batches", type=int, metavar="N", help="fc_pipeline: parts of the batch; default: 4")
    task.add_argument("--network", metavar="RATE", help="local, or the rate of ci/netns's links; default: local")
    task.add_argument("--threads", type=int, metavar="N", help="CPU threads of all workers together; default: all")
    task.add_argument("--device", metavar="NAME", help="cpu or gpu; default: cpu")
    task.add_argument("--seed", type=int, metavar="N", help="of weights and batch; default: 0")
    task.add_argument("--backend", action="append", default=[], metavar="NAME", help="only this; may be repeated")
    task.add_argument("--repeats", type=int, default=1, metavar="N", help="processes; default: 1")
    _add_full_trace(parser)
    parser.add_argument(
        "--prove",
        action="store_true",
        help="compare gradients and weights of every mode (or of --mode) with plain NumPy instead, for 1, 2 and 4 "
        "workers in float64 and float32; exit code 1 where one is beyond its limit",
    )
    parser.add_argument(
        "--export-csv",
        type=Path,
        metavar="FILE",
        help="write a stored run of matrices/fc-sweep.yaml in the original's layout instead, of one --backend",
    )
    parser.add_argument("--run", metavar="RUN", help="of --export-csv; default: the newest")
    add_measuring_options(parser)
    parser.add_argument("--json", action="store_true", help="print one JSON document")


def _add_full_trace(parser: argparse.ArgumentParser) -> None:
    """Add the original's flag, which takes a number, or none."""
    parser.add_argument(
        "--full-trace",
        type=int,
        nargs="?",
        const=1,
        default=0,
        metavar="1",
        help=f"record a trace after what is measured, too, and write it to {FULL_TRACE} here (docs/traces.md)",
    )


def run(args: argparse.Namespace) -> int:
    """Measure the task, or prove."""
    for name in args.backend:
        if name not in BACKENDS:
            raise UsageError(f"--backend: must be one of {', '.join(BACKENDS)}, got {name!r}")
    if args.export_csv is not None:
        return _export(args)
    if args.prove:
        return _prove(args)
    if args.mode is None:
        raise UsageError(f"--mode: must be one of {', '.join(MODES)}, got none")
    return _measure(args)


# Measuring.


def _measure(args: argparse.Namespace) -> int:
    from records.store import Results, latest_attempts
    from runner.adaptive import Goal
    from runner.cli.run import exit_code, measure_session, own_arm, started
    from runner.cli.stored import write_report
    from runner.session import Request
    from runner.stopping import stopping

    text, cells = _cells(args)
    _refuse_too_large(cells)
    args.matrix = Path("fc")  # what the cells come from; there is no such file
    about = {"command": ["runner", *args.given], "matrix_path": "runner fc", "matrix_text": text}
    arms = {"": own_arm(args, cells)}
    asked = Request(cells, arms, started(args), args.order_seed, about, stopping(cells, to_decide=False))
    session = measure_session(args, Results(args.results), asked, Goal(None))
    store = session.runs[""]
    store.clear_leftovers()
    found = write_report(store, store.folder / "report.html")
    latest, figures = latest_attempts(found.records), _figures(found)
    if args.json:
        print(_measured_document(latest, figures))
    else:
        print("\n".join(measured_lines(latest, figures)))
        print(f"records: {store.folder / 'records'}")
    missing = args.full_trace and not _all_traces_left(args, store, latest)
    return exit_code(latest, max(0, len(session.steps) - len(latest))) or int(missing)


def _all_traces_left(args: argparse.Namespace, store: Run, latest: Sequence[Record]) -> bool:
    """Leave each cell's trace here, as the original did for its one; return whether there were all."""
    from runner.traces import left_plain

    left = left_plain(store, latest, Path(FULL_TRACE))
    if not args.json:
        print("".join(f"trace: {path}\n" for path in left), end="")
    return len(left) == len({record.cell_id for record in latest})


def _cells(args: argparse.Namespace) -> tuple[str, list[Cell]]:
    """Return the matrix that the flags stand for, as text, and its cells. Raises `InputError`."""
    from runner.fc import matrix_of
    from runner.matrix import expand, parse

    if args.num_batches < 1:
        raise UsageError(f"--num-batches: must be at least 1, got {args.num_batches}")
    if args.full_trace not in (0, 1):
        raise UsageError(f"--full-trace: must be 0 or 1, got {args.full_trace}")
    given = {key: getattr(args, flag) for flag, key in TASK.items() if getattr(args, flag) is not None}
    for workers in given.get("workers", [1]):
        _refuse_wrong({**given, "workers": workers, "repeats": args.repeats})
    entry = given | ({"trace": {}} if args.full_trace else {})
    text = json.dumps(matrix_of(args.backend or BACKENDS, entry, args.num_batches, args.repeats), indent=1)
    matrix: Matrix = parse(Path("runner fc"), text.encode())
    return text, expand(matrix)


def _refuse_wrong(given: Mapping[str, Any]) -> None:
    """Raise `UsageError` for a flag that its rule refuses, and for flags that do not go together."""
    from records.fc import WORKLOAD, Task
    from records.fc_rules import faults
    from runner import catalog
    from runner.grammar import DEFAULTS, near

    rules = {**DEFAULTS, **catalog.load().workloads[WORKLOAD].params}
    flags = {key: flag.replace("_", "-") for flag, key in TASK.items()}
    for key, value in given.items():
        if fault := rules[key].fault(value):
            words = [choice for choice in rules[key].choices if isinstance(choice, str)]
            raise UsageError(f"--{flags.get(key, key)}: {fault}{near(value, words) if isinstance(value, str) else ''}")
    known = {field.name for field in fields(Task)}
    if told := faults(Task(**{key: value for key, value in given.items() if key in known})):
        raise UsageError("\n".join(told))


def _refuse_too_large(cells: Sequence[Cell]) -> None:
    """Raise `UsageError` for what cannot fit this machine's memory, before anything is started."""
    from records.fc import task_of
    from records.fc_rules import memory_fault
    from runner.machine import free_memory_bytes

    for cell in cells:
        if cell.settings.device == "cpu" and (fault := memory_fault(task_of(cell.settings), free_memory_bytes())):
            raise UsageError(fault)


def _figures(found: Findings) -> dict[str, Figure]:
    """Return the figures of a run's cells of the FC modes, by cell_id."""
    from analysis.parallel import figures

    cells = [cell for row in found.rows for cell in row.cells.values()]
    return {figure.cell_id: figure for figure in figures(cells, found.beside.shares)}


def measured_lines(records: Sequence[Record], figures: Mapping[str, Figure]) -> list[str]:
    """Return the original's summary of each cell, and what else is known of it."""
    from runner.cli.fc_text import figure_lines
    from runner.executors.output import printable

    lines: list[str] = []
    for cell in dict.fromkeys(record.cell_id for record in records):
        own = [record for record in records if record.cell_id == cell]
        lines += [*_summary_lines(own), *(figure_lines(figures[cell]) if cell in figures else [])]
        lines += [*_trouble_lines(own), ""]
    return list(map(printable, lines))


def _summary_lines(records: Sequence[Record]) -> list[str]:
    from analysis.fc import summary
    from records.fc import task_of
    from runner.cli.format import size

    first, found = records[0], summary(records)
    if found is None:
        return []
    task = task_of(first.settings)
    steps = sum(len(r.times.epoch_times_s) * r.resolved.steps_per_epoch for r in records if r.resolved)
    name = f"{task.mode}+{task.workers}+{task.weight_size}+{task.batch_size}"
    sent = f"{size(found.bytes_per_step)} communicated a step" if found.bytes_per_step else "nothing communicated"
    return [
        f"{first.started_at}: Training {name} on {first.settings.backend} across {steps} steps, "
        f"{found.mean_s:.6f} +/- {found.sd_s:.6f} sec / batch, {found.samples_per_s:,.1f} samples/sec",
        f"  {sent}; {_layout(first)}",
    ]


def _layout(record: Record) -> str:
    """Return where the workers' weights lie, as they proved it."""
    if record.parallel is None:
        return "one device"
    places = record.parallel.places
    shapes = sorted({"x".join(map(str, place.weights[0])) for place in places})
    where = "process" if any(place.process for place in places) else "device"
    plural = {"process": "processes", "device": "devices"}[where] if len(places) > 1 else where
    return f"{len(places)} {plural} with first weights of {', '.join(shapes)}"


def _trouble_lines(records: Sequence[Record]) -> list[str]:
    from records.schema import Status

    named = [(f"{r.settings.params['mode']} on {r.settings.backend}", r) for r in records]
    bad = [f"{name}: {r.status}: {r.reason}" for name, r in named if r.status is not Status.OK and r.reason]
    return bad + [f"  {warning}" for _, r in named for warning in r.warnings if warning != r.reason]


def _measured_document(records: Sequence[Record], figures: Mapping[str, Figure]) -> str:
    from analysis.fc import summary
    from records.codec import to_json

    cells = []
    for cell in dict.fromkeys(record.cell_id for record in records):
        own = [record for record in records if record.cell_id == cell]
        cells.append(
            {
                "cell_id": cell,
                "settings": to_json(own[0].settings),
                "statuses": [str(record.status) for record in own],
                "summary": to_json(summary(own)),
                "figure": to_json(figures.get(cell)),
                "parallel": to_json(own[0].parallel),
            }
        )
    return json.dumps({"version": 1, "cells": cells}, indent=1, allow_nan=False)


# Exporting.


def _export(args: argparse.Namespace) -> int:
    from analysis.sweep import as_csv, backends_of
    from runner.cli.stored import chosen_run, findings_of

    store = chosen_run(args)
    found = _figures(findings_of(store)).values()
    there = backends_of(found)
    if not there:
        raise UsageError(
            f"--export-csv: {store.run_id} holds no measured cell of the sweep; measure one with: "
            "runner --matrix matrices/fc-sweep.yaml"
        )
    chosen = args.backend or there
    if len(chosen) != 1 or chosen[0] not in there:
        got = f", got {' '.join(args.backend)}" if args.backend else ""
        raise UsageError(f"--backend: must name one of {', '.join(there)} for --export-csv{got}")
    try:
        args.export_csv.write_text(as_csv(found, chosen[0]), encoding="ascii")
    except OSError as error:
        raise UsageError(f"--export-csv: {args.export_csv} cannot be written: {error.strerror}") from error
    print(f"{chosen[0]} of {store.run_id}: {args.export_csv}")
    return 0


# Proving.


def _prove(args: argparse.Namespace) -> int:
    from analysis.fc import proof_fault
    from runner.executors.probe import ProcessProbe
    from runner.fc import proof_tasks, prove
    from runner.interrupts import interruptible

    if args.mode is not None and args.mode not in MODES:
        raise UsageError(f"--mode: must be one of {', '.join(MODES)}, got {args.mode!r}")
    tasks = proof_tasks([args.mode] if args.mode else list(MODES))
    if not tasks:
        raise UsageError(f"--mode: {args.mode} is Keras's own path, which `runner parity fc` compares")
    probe = args.seams.probe or ProcessProbe(str(args.results.resolve()))
    with interruptible():
        answers, refused = prove(probe, args.backend or BACKENDS, tasks, lambda line: print(line, file=sys.stderr))
    holds = bool(answers) and not refused and not any(proof_fault(p) for a in answers for p in a.proofs)
    if args.json:
        from records.codec import to_json

        print(json.dumps({"version": 1, "holds": holds, "answers": to_json(answers), "refused": refused}, indent=1))
    else:
        print("\n".join(proof_lines(answers, refused)))
    return 0 if holds else 1


def proof_lines(answers: Sequence[ProofAnswer], refused: Mapping[str, str]) -> list[str]:
    """Return the proof as a table: the worst error of a mode over its numbers of workers, a column a backend."""
    from analysis.fc import LIMITS, proof_fault
    from runner.cli.format import columns
    from runner.executors.output import printable

    rows = [["mode", "precision", "limit", *(answer.backend for answer in answers)]]
    keys = dict.fromkeys((p.task.precision, p.task.mode) for answer in answers for p in answer.proofs)
    for precision, mode in keys:
        texts = [_worst(answer, mode, precision) for answer in answers]
        rows.append([mode, precision, f"{LIMITS[precision]:.0e}", *texts])
    lines = columns(rows, right=frozenset(range(2, len(rows[0])))) if answers else []
    for answer in answers:
        for proof in answer.proofs:
            if fault := proof_fault(proof):
                lines.append(f"* {_named(answer.backend, proof.task)}: {fault}")
    lines += [f"* {backend}: not proved: {why}" for backend, why in refused.items()]
    return [printable(line) for line in [*lines, "", *_claims(answers)]]


def _worst(answer: ProofAnswer, mode: str, precision: str) -> str:
    from analysis.fc import proof_fault

    own = [p for p in answer.proofs if (p.task.mode, p.task.precision) == (mode, precision)]
    found = [e for p in own for e in (p.gradient_error, p.weight_error, p.update_error, p.loss_error)]
    errors = [error for error in found if error is not None]
    mark = "" if not any(map(proof_fault, own)) else " *"
    return f"{max(errors):.0e}{mark}"


def _named(backend: str, task: Any) -> str:
    extra = f" blocks={task.phy_blocks} ratio={task.shared_ratio:g}" if task.mode == "fc_phy" else ""
    extra += f" model_workers={task.model_size}" if task.mode == "fc_hybrid" else ""
    extra += f" micro_batches={task.micro_batches}" if task.mode == "fc_pipeline" else ""
    extra += " overlap=off" if task.overlap == "off" else ""
    extra += f" partition={task.partition}" if task.partition != "program" else ""
    return f"{task.mode} on {backend}, {task.workers} workers, {task.precision}, {task.reduce}{extra}"


def _claims(answers: Sequence[ProofAnswer]) -> list[str]:
    proofs = [proof for answer in answers for proof in answer.proofs]
    silent = [p for p in proofs if p.task.mode == "fc_phy" and p.task.shared_ratio == 0]
    calls = sum(p.parallel.traffic.calls for p in silent)
    equal = sum(p.layout_fault is None for p in proofs)
    return [
        "worst max |difference| / max |reference| of gradients, weights, their updates and loss after 5 steps, against "
        "plain NumPy in float64",
        f"bytes and layout as the formulas say: {equal} of {len(proofs)} tasks",
        f"fc_phy with shared_ratio 0: {calls} collectives in {len(silent)} tasks",
    ]

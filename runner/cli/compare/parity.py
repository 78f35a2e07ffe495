"""Check that all backends do the same work: equal weights and batches, random layers off, compared without timing.

Each workload trains a small preset for a few steps on each backend, in float64 and in float32. The table shows, for
every two backends, how far apart (relative; 0 is equal) they are in float64: the gradient of step 1 and the update of
step 2, each its worst weight's; and in float32: the loss and the gradient's norm at step 1, the update of step 2, and
the loss of the worst step. A backend that does not train is compared by its outputs, in float32. With --devices N each
backend is compared with itself instead: on N devices and on one.
exit codes: 0 all agree, 1 some deviate or could not be compared, 2 bad input
"""

from __future__ import annotations

import argparse
import itertools
import sys
from collections.abc import Sequence
from typing import Any

from keras_matrix.analysis.proofs import device_verdict, is_proved, verdict_meaning
from keras_matrix.records.codec import to_json
from keras_matrix.records.fc import spec
from keras_matrix.records.identity import PARAMS
from keras_matrix.records.instruments.parity import ParityRecord
from keras_matrix.records.replicas import BackendProof, ReplicaProof
from keras_matrix.records.settings import DATA, DISTRIBUTIONS, MODEL, Scalar
from keras_matrix.records.text import printable
from keras_matrix.runner.checks.parity import ParityRequest, ParitySubject, compare_all, exit_code
from keras_matrix.runner.checks.proofs import prove_all
from keras_matrix.runner.cli.options import add_python_option, add_results_option
from keras_matrix.runner.cli.render.format import columns, document
from keras_matrix.runner.errors import UsageError
from keras_matrix.runner.executors.by_backend import in_environments
from keras_matrix.runner.matrix import catalog
from keras_matrix.runner.matrix.catalog import small_batch
from keras_matrix.runner.matrix.overrides import parse_assignment
from keras_matrix.runner.measure.request import check_range
from keras_matrix.runner.service.parity import PRECISIONS, compared_backends, params_of, precisions_of

DEVICES_HEAD = ["workload", "backend", "f64 losses", "f64 update", "f32 losses", "f32 update", ""]
FIGURES = [(precision, figure) for precision in ("float64", "float32") for figure in ("losses", "update")]


def configure(parser: argparse.ArgumentParser) -> None:
    """Add this command's flags."""
    workloads_help = "a workload, or your own module:build; default: all workloads of the catalog"
    parser.add_argument("workloads", nargs="*", metavar="WORKLOAD", help=workloads_help)
    parser.add_argument("--backend", action="append", default=[], metavar="NAME", help="only this one; may be repeated")
    parser.add_argument("--precision", default=",".join(PRECISIONS), metavar="NAMES", help="default: %(default)s")
    parser.add_argument("--steps", type=int, default=20, metavar="N", help="training steps (default: %(default)s)")
    parser.add_argument("--batch-size", type=int, metavar="N", help="samples in a batch (default: 8; xception 4)")
    parser.add_argument("--seed", type=int, default=0, metavar="N", help="seed of weights and batches (default: 0)")
    parser.add_argument(
        "--set", action="append", default=[], metavar="KEY=VALUE", dest="assignments", help="set a workload's parameter"
    )
    parser.add_argument("--timeout-s", type=float, default=600.0, metavar="S", help="for each process (default: 600)")
    parser.add_argument(
        "--keep-weights", action="store_true", help="keep the initial weights in results/parity/weights"
    )
    parser.add_argument("--devices", type=int, metavar="N", help="compare N devices of each backend with one device")
    parser.add_argument("--distribution", choices=DISTRIBUTIONS, help="with --devices: what is divided (default: data)")
    add_python_option(parser, "virtual environment of the backends, or its Python")
    parser.add_argument("--json", action="store_true", help="print one JSON document")
    add_results_option(parser)


def run(args: argparse.Namespace) -> int:
    """Compare the workloads and return the exit code."""
    request = _request(args)
    if args.devices is not None:
        return run_devices(request, args.devices, args.distribution or DATA, as_json=args.json)
    numbers = itertools.count(1)

    def say(record: ParityRecord) -> None:
        if not args.json:
            number_text = f"{next(numbers)}/{len(request.subjects)}"
            print(f"{number_text} {record.workload}: {verdict(record)}", file=sys.stderr, flush=True)

    records = compare_all(request, say)
    code = exit_code(records)
    if args.json:
        print(_document(records, code))
    else:
        print("\n".join(table(records)))
    return code


def _request(args: argparse.Namespace) -> ParityRequest:
    """Return the request that the flags make. Raises `UsageError`."""
    check_range("--steps", args.steps, 2)
    if args.devices is not None:
        check_range("--devices", args.devices, 2)
    elif args.distribution is not None:
        raise UsageError("--distribution: has no effect without --devices; add --devices 2")
    if args.batch_size is not None:
        check_range("--batch-size", args.batch_size, 1)
    workload_catalog = catalog.load()
    device_count = args.devices if args.devices is not None and args.distribution != MODEL else 1
    if args.batch_size is not None and args.batch_size % device_count:
        raise UsageError(f"--devices: must divide --batch-size ({args.batch_size}), got {device_count}")
    # Each key is a parameter: `params.feed` is one, as in other commands, and so is `feed`.
    assigned = {key.removeprefix(PARAMS): value for key, value in map(parse_assignment, args.assignments)}
    # Of the FC modes, Keras trains one, which several devices can divide.
    of_keras: dict[str, Scalar] = {"mode": "fc_keras"} if args.devices is not None else {}
    return ParityRequest(
        subjects=[
            ParitySubject(
                name,
                (of_keras if name == spec.WORKLOAD else {}) | params_of(workload_catalog, name, assigned),
                args.batch_size or small_batch(name),
                args.steps,
                args.seed,
            )
            for name in dict.fromkeys(args.workloads or workload_catalog.workloads)
        ],
        backends=compared_backends(
            args.backend,
            args.seams.executor or in_environments(dict(args.python)),
            least=2 if args.devices is None else 1,
        ),
        precisions=precisions_of(args.precision),
        results=args.results,
        timeout_s=args.timeout_s,
        keep_weights=args.keep_weights,
        executor=args.seams.executor,
        environments=dict(args.python),
    )


def verdict(record: ParityRecord) -> str:
    """Return a workload's verdict in a few words."""
    if record.agrees:
        return "agrees, with an exception" if any(pair.findings for pair in record.pairs) else "agrees"
    if not record.pairs:
        return "not compared"
    located = [pair.located for pair in record.pairs if pair.located]
    return f"deviates at {located[0]}" if located else "deviates" if not record.failures else "not all compared"


HEAD = ["workload", "backends", "f64 gradient", "f64 update", "f32 loss", "f32 norm", "f32 update", "f32 losses", ""]
SHOWN = [("float64", name) for name in ("gradient", "update")]
SHOWN += [("float32", name) for name in ("loss", "gradient_norm", "update", "losses")]
OUTPUTS_HEAD, OUTPUTS_SHOWN = "f32 outputs", ("float32", "outputs")


def table(records: Sequence[ParityRecord]) -> list[str]:
    """Return the table and, below it, all exceptions and failures with their reasons."""
    pairs = [pair for record in records for pair in record.pairs]
    is_predicted = any(observed.outputs is not None for pair in pairs for observed in pair.deviations.values())
    rows = [[*HEAD[:-1], *([OUTPUTS_HEAD] if is_predicted else []), HEAD[-1]]]
    shown = [*SHOWN, *([OUTPUTS_SHOWN] if is_predicted else [])]
    notes: list[str] = []
    for record in records:
        for number, pair in enumerate(record.pairs):
            figures = [_figure(pair.deviations.get(precision), figure) for precision, figure in shown]
            summary = "agrees" if pair.agrees and not pair.findings else "agrees *" if pair.agrees else "deviates *"
            rows.append(["" if number else record.workload, " - ".join(pair.backends), *figures, summary])
        notes += _notes(record)
    return [*columns(rows, right=frozenset(range(2, len(rows[0]) - 1))), *([""] if notes else []), *notes]


def _figure(deviation: Any, figure: str) -> str:
    value = getattr(deviation, figure) if deviation is not None else None
    return "-" if value is None else "0" if value == 0 else f"{value:.0e}"


def _notes(record: ParityRecord) -> list[str]:
    lines = []
    for pair in record.pairs:
        name = f"* {record.workload}, {' - '.join(pair.backends)}"
        for finding in pair.findings:
            none_text = "constants that differ" if finding.figure == "initial" else "not finite"
            value = none_text if finding.value is None else f"{finding.value:.1e}, limit {finding.limit:.0e}"
            place_text = f" at {finding.at}" if finding.at else ""
            reason_text = f": {finding.explanation}" if finding.explanation else ""
            lines.append(f"{name}: {finding.precision} {finding.figure} {value}{place_text}{reason_text}")
        if pair.located:
            lines.append(f"{name}: they deviate first at {pair.located}")
    for process, reason in record.failures.items():
        lines.append(f"* {record.workload}, {process}: not compared: {reason}")
    for process, reason in record.unsupported.items():
        lines.append(f"  {record.workload}, {process}: not offered: {reason}")
    return list(map(printable, lines))


def _document(records: Sequence[ParityRecord], code: int) -> str:
    comparisons = [{"agrees": record.agrees, "verdict": verdict(record), **to_json(record)} for record in records]
    return document({"exit_code": code, "workloads": comparisons})


def run_devices(request: ParityRequest, devices: int, distribution: str, *, as_json: bool) -> int:
    """Prove the workloads and return the exit code: 1 if one differs otherwise than by a stated meaning."""
    numbers = itertools.count(1)

    def say(proof: ReplicaProof) -> None:
        if not as_json:
            backends = [*proof.backends, *proof.failures, *proof.unsupported]
            verdicts_text = ", ".join(f"{name} {device_verdict(proof, name).partition(':')[0]}" for name in backends)
            print(
                f"{next(numbers)}/{len(request.subjects)} {proof.workload}: {verdicts_text}",
                file=sys.stderr,
                flush=True,
            )

    proofs = prove_all(request, devices, distribution, say)
    code = 0 if all(map(is_proved, proofs)) else 1
    if as_json:
        print(document({"exit_code": code, "devices": devices, "workloads": list(map(to_json, proofs))}))
    else:
        print("\n".join(devices_table(proofs, devices)))
    return code


def devices_table(proofs: Sequence[ReplicaProof], devices: int) -> list[str]:
    """Return the table of differences between several devices and one, and below it what explains them."""
    rows, notes = [DEVICES_HEAD], list[str]()
    for proof in proofs:
        for number, (backend, backend_proof) in enumerate(proof.backends.items()):
            figures = [_device_figure(backend_proof, *precision_and_figure) for precision_and_figure in FIGURES]
            rows.append(["" if number else proof.workload, backend, *figures, device_verdict(proof, backend)])
            notes += _device_notes(f"{proof.workload}, {backend}", backend_proof)
        for backend in (*proof.failures, *proof.unsupported):
            notes.append(f"  {proof.workload}, {backend}: {device_verdict(proof, backend)}")
    head_text = f"{devices} devices against one: relative differences, 0 is equal"
    return [
        head_text,
        "",
        *columns(rows, right=frozenset(range(2, 6))),
        *([""] if notes else []),
        *map(printable, notes),
    ]


def _device_notes(name: str, backend_proof: BackendProof) -> list[str]:
    lines = [
        f"* {name}: {line}"
        for line in (*backend_proof.findings, *(verdict_meaning(backend_proof) if backend_proof.findings else []))
    ]
    if backend_proof.left_out:
        lines.append(
            f"  {name}: {len(backend_proof.left_out)} of {backend_proof.weights} weights are left out, whose update "
            "rounding decides"
        )
    return lines


def _device_figure(backend_proof: BackendProof, precision: str, figure: str) -> str:
    observed = backend_proof.differences.get(precision)
    return "-" if observed is None else _text(getattr(observed, figure))


def _text(value: float | None) -> str:
    return "not finite" if value is None else "0" if value == 0 else f"{value:.0e}"

"""Compare a run's cells with the machine's peak: measured matrix products and memory, FLOPs counted from models.

The peaks are measured once per machine and set of versions and stored in the results folder; FLOPs likewise. Other work
on the machine makes peaks too low: measure them when it is quiet."""

from __future__ import annotations

import argparse
import sys
from collections.abc import Iterable, Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Any

from keras_matrix.analysis.flops import agreements, all_agree
from keras_matrix.analysis.roofline import PeakShare, Product, Roofline, Slope
from keras_matrix.records.codec import to_json
from keras_matrix.records.instruments.peaks import Peaks
from keras_matrix.records.instruments.work import FlopCheck
from keras_matrix.records.text import (
    NOTHING,
    bytes_text,
    count,
    number,
    percentage,
    percentage_interval,
    plural,
    printable,
)
from keras_matrix.runner.checks import roofline
from keras_matrix.runner.cli.options import add_results_option
from keras_matrix.runner.cli.render.format import columns, document
from keras_matrix.runner.errors import UsageError
from keras_matrix.runner.executors.process.probe import ProcessProbe
from keras_matrix.runner.measure.request import check_range
from keras_matrix.runner.progress.lines import TerminalDisplay
from keras_matrix.runner.service.roofline import (
    SUFFIXES,
    Compared,
    RooflineRequest,
    compared_run,
    roofline_of,
    targets_of,
    write_picture,
)

CHECKED = ("mnist_mlp", "cifar10_cnn", "lstm")


def configure(parser: argparse.ArgumentParser) -> None:
    """Add this command's flags."""
    add_results_option(parser)
    parser.add_argument("--run", metavar="RUN", help="which run; default: the newest, if any")
    parser.add_argument("--measure", action="store_true", help="measure the peaks even if they are stored")
    parser.add_argument("--rounds", type=int, default=3, metavar="N", help="processes for each figure; default: 3")
    picture_help = "the picture: .html or .svg; default: roofline.html in the run's folder"
    parser.add_argument("--out", type=Path, metavar="FILE", help=picture_help)
    parser.add_argument(
        "--check-flops",
        nargs="*",
        metavar="WORKLOAD",
        help="instead, count FLOPs with every method on every backend and compare them; "
        f"default: {' '.join(CHECKED)}; exit code 1 if a difference has no known reason",
    )
    parser.add_argument("--json", action="store_true", help="print one JSON document instead of tables")


def run(args: argparse.Namespace) -> int:
    """Measure missing peaks, print the tables and write the picture; or check the FLOPs."""
    check_range("--rounds", args.rounds, 1, 100)
    if args.out is not None and args.out.suffix not in SUFFIXES:
        raise UsageError(f"--out: must end in {' or '.join(SUFFIXES)}, got {str(args.out)!r}")
    probe = args.seams.probe or ProcessProbe(str(args.results.resolve()))
    display = TerminalDisplay(args.json)
    say = partial(_say, quiet=args.json)
    request = RooflineRequest(args.results, args.measure, args.rounds, probe, say, display.warn)
    if args.check_flops is not None:
        return _check(request, args.check_flops or CHECKED, as_json=args.json)
    compared = compared_run(request.results, args.run)
    roofline, peaks = roofline_of(request, compared)
    page = write_picture(args.out, compared, roofline, peaks)
    if args.json:
        print(document(_fields(compared, roofline, peaks)))
    else:
        print("\n".join(lines(roofline, peaks)))
        if page:
            print(f"\npicture: {page}")
    return 0


def _say(line: str, *, quiet: bool) -> None:
    if not quiet:
        print(f"roofline: {line}", file=sys.stderr)


def _fields(compared: Compared, roofline: Roofline, peaks: Peaks | None) -> dict[str, Any]:
    return {
        "run_id": compared.store.run_id if compared.store else None,
        "cells": to_json(roofline.shares),
        "roofs": to_json(roofline.roofs),
        "own_gemms": to_json(roofline.own),
        "memory": to_json(roofline.slopes),
        "notes": list(roofline.notes),
        "peaks": to_json(peaks),
    }


def _check(request: RooflineRequest, workloads: Sequence[str], *, as_json: bool) -> int:
    """Count FLOPs with every method and print where they differ."""
    checks, reason_by_subject = roofline.check(request.probe, targets_of(workloads), None, request.say)
    if as_json:
        checked = [{**to_json(check), "agreements": to_json(agreements(check))} for check in checks]
        print(document({"checks": checked, "refused": reason_by_subject}))
    else:
        print("\n".join(check_lines(checks, reason_by_subject)))
    return 0 if checks and all_agree(checks) else 1


def lines(roofline: Roofline, peaks: Peaks | None) -> list[str]:
    """Return the peaks, the cells and the notes, as lines."""
    report_lines: list[str] = []
    if peaks:
        process_text = plural(peaks.rounds, "process", "processes")
        report_lines += [
            f"peaks of {peaks.machine.cpu_model}, {peaks.machine.logical_cpus} CPUs, measured {peaks.measured_at}; "
            f"best and median over the calls of {process_text} each, interleaved in random order",
            "",
            *_own_lines(roofline.own),
            "",
            *_memory_lines(roofline.slopes),
        ]
    report_lines += ["", *_cell_lines(roofline.shares)] if roofline.shares else []
    return report_lines + [""] * bool(roofline.notes) + [f"note: {printable(note)}" for note in roofline.notes]


def check_lines(checks: Sequence[FlopCheck], reason_by_subject: Mapping[str, str]) -> list[str]:
    """Return the comparison of FLOP counts, as lines."""
    rows = [["workload", "backend", "batch", "comparison", "expected", "found", "ratio", "within", "verdict"]]
    for check in checks:
        for agreement in agreements(check):
            verdict = (
                "no such count"
                if agreement.agrees is None
                else "agrees"
                if agreement.agrees
                else agreement.why or "DIFFERS"
            )
            figures = [
                count(agreement.expected),
                count(agreement.found),
                NOTHING if agreement.ratio is None else f"{agreement.ratio:.3f}",
            ]
            names = [check.workload, check.backend, str(check.batch_size), agreement.what]
            rows.append([*names, *figures, percentage(agreement.tolerance), verdict])
    moved_texts = [
        f"{c.workload}: XLA counts {count(c.framework_train_bytes)}B accessed by the compiled training step"
        for c in checks
        if c.framework_train_bytes
    ]
    tool_texts = {f"{check.backend}: the tool is {check.tool}" for check in checks}
    return [
        *columns(rows, right=frozenset({2, 4, 5, 6, 7})),
        "",
        *sorted(tool_texts),
        *moved_texts,
        *(f"not counted: {printable(subject)}: {printable(why)}" for subject, why in sorted(reason_by_subject.items())),
    ]


def rate(value: float | None, unit: str = "FLOP/s") -> str:
    """Return a rate such as `398 GFLOP/s`."""
    return NOTHING if value is None else count(value) + unit


def _own_lines(products: Iterable[Product]) -> list[str]:
    rows = [["matrix product", "CPUs", "backend", "best", "median", "calls", "of the best"]]
    for own_product in products:
        rates = [rate(own_product.best_flop_per_s), rate(own_product.median_flop_per_s)]
        product_text = f"{own_product.place.device} {own_product.place.precision}"
        rows.append(
            [
                product_text,
                str(own_product.place.threads),
                own_product.backend,
                *rates,
                str(own_product.calls),
                percentage(own_product.share_of_best),
            ]
        )
    return columns(rows, right=frozenset({1, 3, 4, 5, 6}))


def _memory_lines(slopes: Iterable[Slope]) -> list[str]:
    rows = [["memory", "CPUs", "timed with", "triad, best", "median", "calls", "copy, best", "arrays"]]
    for slope in slopes:
        best, median, copy = (
            rate(value, "B/s") for value in (slope.best_byte_per_s, slope.median_byte_per_s, slope.copy_byte_per_s)
        )
        rows.append(
            [
                slope.device,
                str(slope.threads),
                slope.by,
                best,
                median,
                str(slope.calls),
                copy,
                bytes_text(slope.array_bytes),
            ]
        )
    return columns(rows, right=frozenset({1, 3, 4, 5, 6, 7}))


def _cell_lines(shares: Iterable[PeakShare]) -> list[str]:
    head = ["cell", "backend", "FLOPs/step", "reached", "peak", "share", "95 % interval", "of own product"]
    rows = [[*head, "FLOP/byte <=", "MFU", ""]]
    for share in shares:
        bounds = percentage_interval(share.low, share.high)
        rows.append(
            [
                printable(share.title),
                share.backend,
                count(share.flops_per_step),
                rate(share.achieved_flop_per_s),
                rate(share.peak_flop_per_s) + (f" ({share.peak_of})" if share.peak_of else ""),
                percentage(share.share_of_peak),
                bounds,
                percentage(share.share_of_own_gemm),
                number(share.intensity_flop_per_byte),
                percentage(share.mfu),
                share.note or "",
            ]
        )
    return columns(rows, right=frozenset(range(2, 10)))

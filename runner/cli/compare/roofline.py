"""Compare a run's cells with the machine's peak: measured matrix products and memory, FLOPs counted from models.

The peaks are measured once per machine and set of versions and stored in the results folder; FLOPs likewise. Other work
on the machine makes peaks too low: measure them when it is quiet."""

from __future__ import annotations

import argparse
import sys
from collections.abc import Sequence
from functools import partial
from pathlib import Path
from typing import Any

from keras_matrix.analysis.hardware.flops import agreements, all_agree
from keras_matrix.analysis.hardware.roofline import Roofline
from keras_matrix.records.codec import to_json
from keras_matrix.records.instruments.peaks import Peaks
from keras_matrix.runner.checks.work import check
from keras_matrix.runner.cli.options import add_results_option
from keras_matrix.runner.cli.render.format import document
from keras_matrix.runner.cli.render.roofline_text import check_lines, lines
from keras_matrix.runner.errors import UsageError
from keras_matrix.runner.executors.process.probe import ProcessProbe
from keras_matrix.runner.measure.request import check_range
from keras_matrix.runner.progress.display import TerminalDisplay
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
    picture = "the picture: .html or .svg; default: roofline.html in the run's folder"
    parser.add_argument("--out", type=Path, metavar="FILE", help=picture)
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
    found, peaks = roofline_of(request, compared)
    page = write_picture(args.out, compared, found, peaks)
    if args.json:
        print(document(_fields(compared, found, peaks)))
    else:
        print("\n".join(lines(found, peaks)))
        if page:
            print(f"\npicture: {page}")
    return 0


def _say(line: str, *, quiet: bool) -> None:
    if not quiet:
        print(f"roofline: {line}", file=sys.stderr)


def _fields(compared: Compared, found: Roofline, peaks: Peaks | None) -> dict[str, Any]:
    return {
        "run_id": compared.store.run_id if compared.store else None,
        "cells": to_json(found.shares),
        "roofs": to_json(found.roofs),
        "own_gemms": to_json(found.own),
        "memory": to_json(found.slopes),
        "notes": list(found.notes),
        "peaks": to_json(peaks),
    }


def _check(request: RooflineRequest, workloads: Sequence[str], *, as_json: bool) -> int:
    """Count FLOPs with every method and print where they differ."""
    checks, refused = check(request.probe, targets_of(workloads), None, request.say)
    if as_json:
        found = [{**to_json(one), "agreements": to_json(agreements(one))} for one in checks]
        print(document({"checks": found, "refused": refused}))
    else:
        print("\n".join(check_lines(checks, refused)))
    return 0 if checks and all_agree(checks) else 1

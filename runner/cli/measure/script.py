"""Measure your own training program, as it is, on each installed backend.

The program runs unchanged, once per process, with the backend, threads and seed set from outside, in a copy of its
project. Its first call of fit is measured, with its own data, callbacks and validation; --call chooses another. A loop
of your own needs one line: docs/howto/measure-your-program.md."""

from __future__ import annotations

import argparse
import sys
from functools import partial
from pathlib import Path

from keras_matrix.records.backends import BACKENDS
from keras_matrix.runner.cli.measure.run import conclude
from keras_matrix.runner.cli.options import add_measuring_options, run_request
from keras_matrix.runner.matrix.overrides import Overrides, parse_assignment
from keras_matrix.runner.measure.request import check_backends, check_range, one_program
from keras_matrix.runner.progress.lines import TerminalDisplay
from keras_matrix.runner.service.run import measured_matrix

REPEATS = 1
MOST_REPEATS = 1000


def configure(parser: argparse.ArgumentParser) -> None:
    """Add this command's flags."""
    parser.add_argument("program", type=Path, metavar="PROGRAM", help="such as train.py; its own arguments follow it")
    parser.add_argument("words", nargs=argparse.REMAINDER, metavar="ARGUMENTS", help="of the program")
    add_several = partial(parser.add_argument, action="append", default=[])
    add_several("--backend", metavar="NAME", help="only this backend; may be repeated")
    call_help = "fit, evaluate, predict or predict_on_batch; a call's number in the program; or its kind and FILE:LINE"
    parser.add_argument("--call", metavar="CALL", help=f"{call_help}; default: the first fit")
    parser.add_argument(
        "--repeats", type=int, default=REPEATS, metavar="N", help=f"processes per backend; default: {REPEATS}"
    )
    add_several("--set", metavar="KEY=VALUE", dest="assignments", help="a setting, such as epochs=5; may be repeated")
    add_measuring_options(parser)
    parser.add_argument("--json", action="store_true", help="print one JSON document instead of progress and table")


def run(args: argparse.Namespace) -> int:
    """Measure the program on each backend and print the table."""
    from keras_matrix.runner.executors.process.interpreter import Interpreter, installed_backends

    check_backends(args.backend)
    check_range("--repeats", args.repeats, 1, MOST_REPEATS)
    backends = args.backend or installed_backends(Interpreter(sys.executable)) or BACKENDS
    program = ({"args": args.words} if args.words else {}) | ({"call": args.call} if args.call else {})
    overrides = Overrides(assignments=dict(map(parse_assignment, args.assignments)))
    request = run_request(args, one_program(args.program, program, backends, overrides, args.repeats))
    display = TerminalDisplay(args.json)
    return conclude(measured_matrix(request, display), display, in_service=args.in_service)

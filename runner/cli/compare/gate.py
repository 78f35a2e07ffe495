"""Decide whether new is slower than base: the comparison of `runner compare`, with a verdict as exit code.

    runner gate --base-env PINNED/.venv --threshold 0.05

regressed (exit 4): the interval of new / base is beyond the threshold, and the comparison is a discovery among those
of the run; with --also, other figures that got worse also fail the gate, but never leave it undecided. no worse (exit
0): every interval ends within the threshold. undecided (exit 5): otherwise; the message says how many more repeats
would probably decide it; they are added until it is decided, within --budget, unless --repeats is given. Exit 1:
nothing was measured, a cell fails in more of its repeats in new than in base, or files of a run cannot be read.
"""

from __future__ import annotations

import argparse
from dataclasses import replace

from keras_matrix.runner.cli.compare import compare
from keras_matrix.runner.cli.options import add_matrix_options, add_measuring_options
from keras_matrix.runner.service import exit_codes
from keras_matrix.runner.service.compare import findings, rule_of


def configure(parser: argparse.ArgumentParser) -> None:
    """Add this command's flags."""
    compare.add_sides(parser)
    add_matrix_options(parser)
    add_measuring_options(parser, compare.NEW_RUN)
    compare.add_output(parser)
    parser.add_argument(
        "--also",
        metavar="NAMES",
        default="",
        help="also fail on these, separated by commas: first-epoch, scatter, unstable, recompiles, memory",
    )
    parser.set_defaults(repeats="auto")


def run(args: argparse.Namespace) -> int:
    """Compare, show, and return the verdict as an exit code."""
    compare.check_pages(args.markdown, args.out)
    sides = replace(compare.sides_of(args), counts=args.counts)
    comparison = findings(sides, rule_of(args.threshold, args.also), to_decide=True)
    compare.show(comparison, args.threshold, args.markdown, args.out, as_json=args.json)
    return exit_codes.VERDICTS["gate"][comparison.outcome] or int(comparison.incomplete)

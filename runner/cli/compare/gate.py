"""Decide whether new is slower than base: a comparison as `runner compare` makes it, with a verdict as exit code.

    runner gate --base-env PINNED/.venv --threshold 0.05

regressed (exit 4): the interval of new / base lies beyond the threshold, and the comparison is a discovery among the
run's; with --also, other figures that got worse fail it too, but never keep it undecided. no worse (exit 0): every
interval ends within the threshold. undecided (exit 5): neither; it says how many more repeats would probably decide it;
unless --repeats says otherwise, they are added until it is decided, within --budget. Nothing measured, or a cell that
fails in more of its repeats in new than in base, is exit 1: what did not run has not passed.
"""

from __future__ import annotations

import argparse

from keras_matrix.analysis.regression.gate import Outcome
from keras_matrix.runner.cli.compare import compare
from keras_matrix.runner.cli.options import add_matrix_options, add_measuring_options


def configure(parser: argparse.ArgumentParser) -> None:
    """Add this command's flags."""
    compare.add_sides(parser)
    add_matrix_options(parser)
    add_measuring_options(parser)
    compare.add_output(parser)
    parser.add_argument(
        "--also",
        metavar="NAMES",
        default="",
        help="fail on these too, beside slower steps: first-epoch, scatter, unstable, recompiles, with commas",
    )
    parser.set_defaults(repeats="auto")


def run(args: argparse.Namespace) -> int:
    """Compare, show, and return the verdict as an exit code."""
    compare.check_pages(args.markdown, args.out)
    found = compare.findings(compare.sides_of(args), compare.rule_of(args.threshold, args.also), to_decide=True)
    compare.show(found, args.threshold, args.markdown, args.out, as_json=args.json)
    codes = {Outcome.NO_WORSE: 0, Outcome.NOT_MEASURED: 1, Outcome.REGRESSED: 4, Outcome.UNDECIDED: 5}
    return codes[found.outcome]

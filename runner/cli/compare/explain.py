"""Explain why one cell is slower than another: the differences in their traces, with their shares of the change.

    runner explain jax:mlp torch:mlp --run RUN               two cells of one run
    runner explain RUN_A RUN_B --cell jax:mlp                a cell in two stored runs
    runner explain --cell jax:mlp --base-env OLD/.venv       a cell in two environments

What has no stored trace is measured and traced, both sides interleaved in one session; --stored measures nothing, and
--new-run measures again. docs/explain.md
"""

from __future__ import annotations

import argparse
from pathlib import Path

from keras_matrix.analysis.stats.blocks import MIN_BLOCKS
from keras_matrix.records.traces.request import MAX_STEPS
from keras_matrix.runner.cli.compare.compare import NEW_RUN, add_sides
from keras_matrix.runner.cli.compare.compare import sides_of as compared_sides
from keras_matrix.runner.cli.options import add_measuring_options
from keras_matrix.runner.cli.render import explain_text
from keras_matrix.runner.measure.request import check_range
from keras_matrix.runner.service import cells
from keras_matrix.runner.service.explain import STEPS, ExplainRequest, explanation, problem_of, ratio_of_sides, sides_of

MOST_REPEATS = 1000


def configure(parser: argparse.ArgumentParser) -> None:
    """Add this command's flags."""
    add_sides(parser)
    parser.add_argument("--cell", metavar="CELL", help=f"the cell of two runs or environments: {cells.HELP}")
    parser.add_argument("--run", metavar="RUN", help="the run of two cells; default: the newest that has their traces")
    parser.add_argument("--matrix", type=Path, metavar="FILE", help="matrix with the cells; default: matrix.yaml")
    parser.add_argument("--stored", action="store_true", help="only stored traces: measure nothing")
    parser.add_argument(
        "--repeats", type=int, default=MIN_BLOCKS, metavar="N", help=f"processes of each side; default: {MIN_BLOCKS}"
    )
    parser.add_argument("--steps", type=int, default=STEPS, metavar="N", help=f"traced steps; default: {STEPS}")
    parser.add_argument("--json", action="store_true", help="print one JSON document")
    add_measuring_options(parser, NEW_RUN)


def run(args: argparse.Namespace) -> int:
    """Find or measure both sides, and explain their difference. Returns the exit code."""
    check_range("--repeats", args.repeats, 1, MOST_REPEATS)
    check_range("--steps", args.steps, 2, MAX_STEPS)
    explain_request = ExplainRequest(compared_sides(args), args.cell, args.run, args.stored, args.repeats, args.steps)
    base, new = sides_of(explain_request)
    names = explain_text.names(base.records[0], new.records[0])
    if problem := problem_of(base, new):
        print(explain_text.without(names, problem, as_json=args.json))
        return 1
    ratio = ratio_of_sides(args.results, base, new)
    if base.is_task or new.is_task:
        print(explain_text.of_commands(names, base.records, new.records, ratio, as_json=args.json))
        return base.exit_code or new.exit_code
    explained = explanation(base, new, ratio)
    print(explain_text.as_json(names, explained) if args.json else "\n".join(explain_text.lines(names, explained)))
    return base.exit_code or new.exit_code

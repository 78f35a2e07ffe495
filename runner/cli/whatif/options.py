"""The flags of predictions from a trace, and the values that they become."""

from __future__ import annotations

import argparse
from pathlib import Path

from keras_matrix.analysis.stats.blocks import MIN_BLOCKS
from keras_matrix.analysis.whatif.graph import Graph
from keras_matrix.runner.cli.options import add_measuring_options, run_request
from keras_matrix.runner.errors import UsageError
from keras_matrix.runner.matrix.grammar import MATRIX
from keras_matrix.runner.matrix.overrides import Overrides
from keras_matrix.runner.measure.request import CellChoice, check_range
from keras_matrix.runner.progress.lines import TerminalDisplay
from keras_matrix.runner.service import whatif
from keras_matrix.runner.service.whatif import WhatIfWork
from keras_matrix.runner.whatif.cost_data import Applied
from keras_matrix.runner.whatif.source import OPERATIONS, SEGMENTS, TraceFiles

TRACE_HELP = (
    "a cell of a stored run that has a trace, or the files of a profiler, one per worker (*.json, *.json.gz, "
    "*.xplane.pb), a folder of them, or a stored graph (*.parquet)"
)


def add_verify_options(parser: argparse.ArgumentParser, subject: str) -> None:
    """Add the flags of a verification."""
    parser.add_argument("--verify", action="store_true", help=f"measure the baseline and {subject}, and judge them")
    repeats_help = f"with --verify: processes of each setting; default: {MIN_BLOCKS}, the fewest that give an interval"
    parser.add_argument("--repeats", type=int, default=MIN_BLOCKS, metavar="N", help=repeats_help)
    recalibrate_help = (
        "with --verify: if predictions are refuted, fit the link to two of the settings, and judge the others again"
    )
    parser.add_argument("--recalibrate", action="store_true", help=recalibrate_help)
    add_measuring_options(parser)


def work_of(args: argparse.Namespace) -> WhatIfWork:
    """Return how to measure by the flags of `add_verify_options`. Raises `UsageError`."""
    check_range("--repeats", args.repeats, 1, 1000)
    request = run_request(args, CellChoice(MATRIX, Overrides(), args.service))
    return WhatIfWork(request, TerminalDisplay(args.json), args.repeats, args.recalibrate)


def add_model_options(parser: argparse.ArgumentParser) -> None:
    """Add the flags that name what is known besides the trace: `loaded` and `cost_model` take them."""
    link_help = "times of collectives, to fit the link's alpha and beta; default: those stored with the trace"
    parser.add_argument("--calibration", type=Path, metavar="FILE", help=link_help)
    level_help = "nodes of JAX's and TensorFlow's graphs; default: segments only where operations predict steps badly"
    parser.add_argument("--level", choices=(OPERATIONS, SEGMENTS), help=level_help)
    model_help = "a cost model, for operations that no trace has: runner costmodel"
    parser.add_argument("--costmodel", type=Path, metavar="FILE", help=model_help)
    peaks_help = (
        "peaks of the trace's machine, if the cost model has not seen it; default: those of the cell's results folder"
    )
    parser.add_argument("--peaks", type=Path, metavar="FILE", help=peaks_help)


def cost_model(args: argparse.Namespace, trace: TraceFiles, graph: Graph) -> Applied | None:
    """Return the cost model for the device of a trace; None without one. Raises `UsageError`."""
    if args.costmodel is not None:
        return whatif.cost_model(args.costmodel, args.peaks, trace, graph, args.results)
    if args.peaks is not None:
        raise UsageError("--peaks: is for a --costmodel, which predicts a device by its peaks; name one too")
    return None

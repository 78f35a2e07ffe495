"""Replay a training step from its trace, and predict it under other settings.

TRACE is a cell of a stored run that has a trace, or the files of a profiler, of any program: one for each worker. The
replayed step comes with the error of predicting each traced step from the one before. --what-if changes the step: the
number of workers, the network, how gradients are summed, precision, and more. Several of one name are alternatives,
different ones are also combined in their order. --verify measures the traced cell and those settings, interleaved, and
judges the predictions. docs/whatif.md"""

from __future__ import annotations

import argparse
from dataclasses import dataclass
from pathlib import Path

from keras_matrix.analysis.views.replay_view import ReplayView
from keras_matrix.analysis.whatif.graph import Graph, GraphError
from keras_matrix.analysis.whatif.replay import Replay, replay
from keras_matrix.records.text import plural, printable
from keras_matrix.runner.cli.options import check_output
from keras_matrix.runner.cli.render.format import document
from keras_matrix.runner.cli.whatif import options
from keras_matrix.runner.cli.whatif.replay_text import (
    document_of,
    prediction_lines,
    replay_lines,
    trace_lines,
    verified_lines,
)
from keras_matrix.runner.errors import InfrastructureError, UsageError
from keras_matrix.runner.measure.request import check_range
from keras_matrix.runner.service import whatif
from keras_matrix.runner.service.whatif import choices_of, replayed, what_if_problem, write_timelines
from keras_matrix.runner.whatif import picture, source
from keras_matrix.runner.whatif.prediction import predictions

TOP, RESAMPLES, MOST_RESAMPLES = 12, 200, 100_000


def configure(parser: argparse.ArgumentParser) -> None:
    """Add this command's flags."""
    parser.add_argument("trace", nargs="+", metavar="TRACE", help=options.TRACE_HELP)
    parser.add_argument("--run", metavar="RUN", help="use the trace of this run")
    what_if_help = (
        "change the step: workers=4, bandwidth=500mbit, tensor_fusion=8, ...; may be repeated: docs/whatif.md"
    )
    parser.add_argument("--what-if", action="append", default=[], metavar="NAME[=VALUE]", help=what_if_help)
    options.add_model_options(parser)
    resamples_help = f"replays with steps drawn at random, for the percentiles; default: {RESAMPLES}"
    parser.add_argument("--resamples", type=int, default=RESAMPLES, metavar="N", help=resamples_help)
    parser.add_argument("--top", type=int, default=TOP, metavar="N", help=f"lines of each table; default: {TOP}")
    timelines_help = "write the replayed timeline next to the measured one here, for Perfetto; .gz packs it"
    parser.add_argument("--to", type=Path, metavar="FILE", help=timelines_help)
    parser.add_argument("--picture", type=Path, metavar="FILE", help="draw both timelines into this SVG file")
    graph_help = "store the trace graph here, a Parquet file per rank"
    parser.add_argument("--graph", type=Path, metavar="FOLDER", help=graph_help)
    parser.add_argument("--json", action="store_true", help="print one JSON document")
    options.add_verify_options(parser, "the settings of the what-ifs")


def run(args: argparse.Namespace) -> int:
    """Replay a trace, print the result, and verify it if that is wanted. Returns the exit code."""
    check_range("--resamples", args.resamples, 1, MOST_RESAMPLES)
    check_range("--top", args.top, 1)
    output = Output(args.to, args.picture, args.graph)
    output.check()
    choices = choices_of(args.what_if)
    work = options.work_of(args)
    trace = whatif.found_trace(args.trace, args.results, args.run, work.display)
    graph = whatif.loaded(trace, args.calibration, args.level)
    model = options.cost_model(args, trace, graph)
    base = whatif.unprofiled(trace, graph)
    view = ReplayView(graph, *replayed(graph, args.resamples), replay(base, resamples=args.resamples))
    try:
        predicted = predictions(base, choices, model.predict if model else None, args.resamples)
    except GraphError as error:
        raise UsageError(what_if_problem(error)) from error
    strategies = [prediction.strategy for prediction in predicted]
    plan = whatif.checked_plan(work, base, strategies) if args.verify else None
    output.write(graph, view.replay)
    if not args.json:
        basis = [f"cost model: {model.basis}"] if model else []
        lines = [*trace_lines(graph, view.coverage), *basis, "", *replay_lines(view, args.top)]
        lines += [*prediction_lines(view, predicted), *output.lines()]
        print("\n".join(map(printable, lines)))
    result = whatif.verified(work, base, view.baseline, strategies, plan) if plan else None
    if args.json:
        verification = {"verification": None if result is None else whatif.verification_document(graph, result)}
        print(document({**document_of(view, predicted), **verification}))
    elif result is not None:
        print("\n".join(map(printable, verified_lines(result))))
    return (result.session.exit_code if result else 0) or trace.exit_code


@dataclass(frozen=True, slots=True)
class Output:
    """The files that a replay writes: the timelines as a neutral trace and as a picture, and the graph."""

    timeline: Path | None = None
    picture: Path | None = None
    graph: Path | None = None

    def check(self) -> None:
        """Refuse files that could not be written. Raises `UsageError`."""
        for flag, path in (("--to", self.timeline), ("--picture", self.picture)):
            if path is not None:
                check_output(flag, path)
        if self.graph is not None and self.graph.exists() and not self.graph.is_dir():
            raise UsageError(f"--graph: must be a folder, got the file {self.graph}")

    def write(self, graph: Graph, replayed: Replay) -> None:
        """Write the files. Raises `InfrastructureError`."""
        try:
            if self.timeline is not None:
                write_timelines(self.timeline, graph, replayed)
            if self.picture is not None:
                ranks = plural(graph.header.world_size, "rank")
                title = f"A step of {ranks} of {graph.header.backend}: measured, and below it replayed"
                self.picture.write_text(picture.svg(graph, replayed.schedule, title), encoding="utf-8")
            if self.graph is not None:
                source.write(graph, self.graph)
        except OSError as error:
            raise InfrastructureError(f"{error.filename}: cannot be written: {error.strerror or error}") from error

    def lines(self) -> list[str]:
        """Return where the files are."""
        outputs = {"timelines": self.timeline, "picture": self.picture, "graph": self.graph}
        lines = [f"{name}: {path}" for name, path in outputs.items() if path is not None]
        if self.timeline is not None:
            lines[0] += "   https://ui.perfetto.dev opens it: the workers of the replay follow the measured ones"
        return ["", *lines] if lines else []

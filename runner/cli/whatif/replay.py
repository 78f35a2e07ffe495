"""Replay a training step from its trace, and predict it under other settings.

TRACE is a cell of a stored run that has a trace, or the files of a profiler, of any program: one for each worker. The
replayed step comes with the error of predicting each traced step from the one before. --what-if changes the step: the
number of workers, the network, how gradients are summed, precision, and more; several are combined in their order, and
shown alone too. docs/whatif.md"""

from __future__ import annotations

import argparse
from dataclasses import dataclass
from pathlib import Path

from keras_matrix.analysis.whatif import timeline
from keras_matrix.analysis.whatif.graph import Graph, GraphError
from keras_matrix.analysis.whatif.replay import HeldOut, Replay, held_out, replay
from keras_matrix.records.traces import neutral
from keras_matrix.records.traces.neutral import Head
from keras_matrix.runner.cli.options import add_results_option, check_output, check_range
from keras_matrix.runner.cli.render.format import document
from keras_matrix.runner.cli.whatif import picture, trace_source
from keras_matrix.runner.cli.whatif.replay_text import document_of, replay_lines, trace_lines
from keras_matrix.runner.errors import InfrastructureError, UsageError
from keras_matrix.runner.executors.supervise.output import printable
from keras_matrix.runner.whatif import stored_graph

TOP, RESAMPLES, MOST_RESAMPLES = 12, 200, 100_000


def configure(parser: argparse.ArgumentParser) -> None:
    """Add this command's flags."""
    parser.add_argument("trace", nargs="+", metavar="TRACE", help=trace_source.HELP)
    parser.add_argument("--run", metavar="RUN", help="use the trace of this run")
    resamples = f"replays with steps drawn at random, for the percentiles; default: {RESAMPLES}"
    parser.add_argument("--resamples", type=int, default=RESAMPLES, metavar="N", help=resamples)
    parser.add_argument("--top", type=int, default=TOP, metavar="N", help=f"lines of each table; default: {TOP}")
    add_output_options(parser)
    add_results_option(parser)


def add_output_options(parser: argparse.ArgumentParser) -> None:
    """Add the flags that name files to write."""
    timeline_help = "write the replayed timeline next to the measured one here, for Perfetto; .gz packs it"
    parser.add_argument("--to", type=Path, metavar="FILE", help=timeline_help)
    parser.add_argument("--picture", type=Path, metavar="FILE", help="draw both timelines into this SVG file")
    parser.add_argument(
        "--graph", type=Path, metavar="FOLDER", help="store the trace graph here, a Parquet file per rank"
    )
    parser.add_argument("--json", action="store_true", help="print one JSON document")


def run(args: argparse.Namespace) -> int:
    """Replay a trace and print the result. Returns the exit code."""
    check_range("--resamples", args.resamples, 1, MOST_RESAMPLES)
    check_range("--top", args.top, 1)
    output = Output(args.to, args.picture, args.graph)
    output.check()
    graph = trace_source.loaded(trace_source.found_trace(args.trace, args.results, args.run))
    try:
        replayed, errors = replay(graph, resamples=args.resamples), errors_of(graph)
    except GraphError as error:
        raise UsageError(f"TRACE: {error}") from error
    output.write(graph, replayed)
    if args.json:
        print(document(document_of(graph, replayed, errors)))
        return 0
    lines = [*trace_lines(graph), "", *replay_lines(replayed, errors, args.top), *output.lines()]
    print("\n".join(map(printable, lines)))
    return 0


def errors_of(graph: Graph) -> tuple[HeldOut, ...]:
    """Return the errors of held-out steps; none for a single traced step."""
    return held_out(graph) if len(graph.header.step_times_s) > 1 else ()


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
                text = picture.svg(graph, replayed.schedule, f"{graph.header.source}: measured and replayed step")
                self.picture.write_text(text, encoding="utf-8")
            if self.graph is not None:
                stored_graph.write(graph, self.graph)
        except OSError as error:
            raise InfrastructureError(f"{error.filename}: cannot be written: {error.strerror or error}") from error

    def lines(self) -> list[str]:
        """Return where the files are."""
        found = {"timelines": self.timeline, "picture": self.picture, "graph": self.graph}
        lines = [f"{name}: {path}" for name, path in found.items() if path is not None]
        if self.timeline is not None:
            lines[0] += "   https://ui.perfetto.dev opens it: the workers of the replay follow the measured ones"
        return ["", *lines] if lines else []


def write_timelines(path: Path, graph: Graph, replayed: Replay) -> None:
    """Write the measured ranks as workers 0, 1, ..., and the replayed ones as the next workers. Raises OSError."""
    ranks = graph.header.world_size
    spans = [
        *timeline.measured_spans(graph),
        *timeline.spans(graph, replayed.schedule, first_worker=ranks),
    ]
    head = Head(graph.header.backend, 2 * ranks, graph.header.device, len(graph.header.step_times_s))
    packed = path if path.suffix == ".gz" else path.with_name(f".{path.name}.gz")
    neutral.write(packed, head, spans)
    if packed != path:
        try:
            neutral.plain(packed, path)
        finally:
            packed.unlink()

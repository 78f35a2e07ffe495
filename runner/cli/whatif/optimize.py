"""Search for faster settings of a traced cell in replay, write them as a matrix file, and verify them.

TRACE is what `runner replay` takes. The search looks at the critical path first, and skips families that do not touch
it. Gains of fused blocks and of bfloat16 are probed once on this machine, one block at a time. --to writes the baseline
and the best setting as a matrix file: runner --matrix strategy.yaml. --verify measures the baseline and the best three,
interleaved. docs/whatif.md"""

from __future__ import annotations

import argparse
import shlex
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path

from keras_matrix.analysis.whatif.graph import Graph, GraphError
from keras_matrix.analysis.whatif.replay import Replay, explained, replay, step_time_s
from keras_matrix.analysis.whatif.search import families
from keras_matrix.analysis.whatif.search.families import Families, Found, Inputs
from keras_matrix.analysis.whatif.search.layer_choice import AMP, OP_FUSION
from keras_matrix.analysis.whatif.search.trajectory import Strategy
from keras_matrix.dashboards.charts.format import plural
from keras_matrix.records import files
from keras_matrix.records.codec import to_json
from keras_matrix.records.fc import spec
from keras_matrix.records.schema import Record
from keras_matrix.records.settings import Settings
from keras_matrix.records.text import printable
from keras_matrix.runner.cli.options import check_output
from keras_matrix.runner.cli.render.format import document
from keras_matrix.runner.cli.whatif import trace_source, verification
from keras_matrix.runner.cli.whatif.measuring import measure
from keras_matrix.runner.cli.whatif.optimize_text import (
    command_lines,
    found_lines,
    strategy_comment,
    strategy_heading,
)
from keras_matrix.runner.cli.whatif.replay_text import trace_lines
from keras_matrix.runner.cli.whatif.verification import Work
from keras_matrix.runner.cli.whatif.verification_text import verified_lines
from keras_matrix.runner.errors import InfrastructureError, UsageError
from keras_matrix.runner.executors.registry import size_bytes
from keras_matrix.runner.measure.request import DEFAULT_RESULTS
from keras_matrix.runner.whatif import measurement, probes, strategy_file
from keras_matrix.runner.whatif.measurement import BASE
from keras_matrix.runner.whatif.memory_use import memory_use
from keras_matrix.runner.whatif.strategy_file import Choice

BEST = 3


def configure(parser: argparse.ArgumentParser) -> None:
    """Add this command's flags."""
    parser.add_argument("trace", nargs="+", metavar="TRACE", help=trace_source.HELP)
    parser.add_argument("--run", metavar="RUN", help="use the trace of this run")
    search = (
        "families joined by commas: tensor_fusion, op_fusion (or xla), amp, memory, all; ^memory leaves one out; "
        "from_opfs2tsfs derives buckets from fused blocks; default: all"
    )
    parser.add_argument("--search", default=families.ALL, metavar="FAMILIES", help=search)
    budget = "search memory settings if the traced peak is above this, such as 8g"
    parser.add_argument("--memory-budget", metavar="BYTES", help=budget)
    probe = "measure the gain of each block of layers for op_fusion and amp; default: yes"
    parser.add_argument("--probe", action=argparse.BooleanOptionalAction, default=True, help=probe)
    trace_source.add_model_options(parser)
    parser.add_argument(
        "--to", type=Path, metavar="FILE", help="write the baseline and the best setting as a matrix file"
    )
    parser.add_argument("--json", action="store_true", help="print one JSON document")
    verification.add_verify_options(parser, f"the best {BEST} settings")


def run(args: argparse.Namespace) -> int:
    """Search, print the trajectory and the best strategies, write and verify them. Returns the exit code."""
    if args.to is not None:
        check_output("--to", args.to)
    budget = None if args.memory_budget is None else size_bytes("--memory-budget", args.memory_budget)
    wanted = _families(args.search)
    work = verification.work_of(args)
    trace = trace_source.found_trace(args.trace, args.results, args.run)
    traced = trace_source.loaded(trace, args.calibration, args.level)
    graph = trace_source.unprofiled(trace, traced)
    model = trace_source.cost_model(args, trace, graph)
    if args.to is not None:
        verification.base_settings(graph, "--to")
    if args.verify:
        verification.check_base(graph)
    gains = _probed(work, graph, wanted) if args.probe else Gains()
    if model and AMP in wanted.names and not gains.ratios.get(AMP):
        gains = gains.with_ratios(AMP, probes.model_ratios(graph, model.predict))
    search = _searched(graph, wanted, _inputs(gains, graph, trace.record, budget))
    possible = strategy_file.possible(search.found, measurement.settings_of(graph.header.settings))
    search = replace(search, found=possible, coverage=explained(traced, step_time_s(traced)))
    best = [one for one in search.found.strategies if one.settings is not None][:BEST]
    comparison = shlex.join([*_link_words(graph), *_replay_words(args, trace.record), *_verify_words(best)])
    plan = verification.checked_plan(work, graph, _by_time(best)) if args.verify else None
    if args.to is not None:
        _write(args.to, search, best, (shlex.join(work.request.command), comparison))
    if not args.json:
        basis = [f"cost model: {model.basis}"] if model else []
        lines = [
            *trace_lines(graph, search.coverage),
            *basis,
            "",
            *found_lines(search.baseline, search.found, gains.without),
        ]
        lines += command_lines(args.to, comparison if best else None, verifies=args.verify)
        print("\n".join(map(printable, lines)))
    result = verification.verified(work, graph, search.baseline, _by_time(best), plan) if plan else None
    if args.json:
        own = {"verification": None if result is None else verification.document_of(graph, result)}
        commands = {"strategy_file": str(args.to) if args.to else None, "comparison": comparison if best else None}
        print(document({**search.document(gains), **commands, **own}))
    elif result is not None:
        print("\n".join(map(printable, verified_lines(result))))
    return (result.session.exit_code if result else 0) or trace.exit_code


@dataclass(frozen=True, slots=True)
class Gains:
    """The probed ratios of blocks by family, and why families have none."""

    ratios: Mapping[str, Mapping[str, float]] = field(default_factory=dict)
    without: Mapping[str, str] = field(default_factory=dict)

    def with_ratios(self, family: str, ratios: Mapping[str, float]) -> Gains:
        """Return the gains with those of a family."""
        return Gains({**self.ratios, family: ratios}, self.without)


@dataclass(frozen=True, slots=True)
class Search:
    """A graph, its replay, what was found from there, and which share of the trace it explains."""

    graph: Graph
    baseline: Replay
    found: Found
    coverage: float

    def document(self, gains: Gains) -> dict[str, object]:
        """Return the search as plain values."""
        return {
            "source": self.graph.header.source,
            "coverage": self.coverage,
            "step_time_s": self.baseline.step_time_s,
            "probed": to_json(dict(gains.ratios)),
            "not_probed": dict(gains.without),
            "trajectories": to_json(list(self.found.trajectories)),
            "strategies": to_json(list(self.found.strategies)),
        }


def _families(text: str) -> Families:
    try:
        return families.parse(text)
    except GraphError as error:
        raise UsageError(str(error)) from error


def _probed(work: Work, graph: Graph, wanted: Families) -> Gains:
    """Measure the probes that the families need."""
    if not {OP_FUSION, AMP}.intersection(wanted.names):
        return Gains()
    base = measurement.settings_of(graph.header.settings)
    if base is None:
        return Gains({}, dict.fromkeys({OP_FUSION, AMP}.intersection(wanted.names), "the trace is not of a cell"))
    found = probes.probes_of(base, graph, wanted)
    if not found.probes:
        return Gains({}, found.without)
    work.display.say(f"probing {plural(len(found.probes), 'block')} of layers, on one worker")
    cells = measurement.cells_of(found.base, {one.name: one.settings for one in found.probes}, work.repeats)
    times = measure(work.request, work.display, cells, "runner optimize").found
    base_s = times[BASE].step_times_s
    ratios = probes.ratios(graph, found.probes, base_s, {name: one.step_times_s for name, one in times.items()})
    return Gains(ratios, found.without)


def _inputs(gains: Gains, graph: Graph, record: Record | None, budget: int | None) -> Inputs:
    return Inputs(
        gains.ratios.get(OP_FUSION, {}),
        gains.ratios.get(AMP, {}),
        None if budget is None else memory_use(record, graph),
        budget,
    )


def _searched(graph: Graph, wanted: Families, inputs: Inputs) -> Search:
    try:
        return Search(graph, replay(graph), families.search(graph, wanted, inputs), graph.header.coverage)
    except GraphError as error:
        raise UsageError(f"TRACE: {error}") from error


def _by_time(best: Sequence[Strategy]) -> list[Strategy]:
    return sorted(best, key=lambda one: one.step_time_s)


def _link_words(graph: Graph) -> list[str]:
    """Return the command that makes the links of the traced cell; none for one without."""
    settings = measurement.settings_of(graph.header.settings)
    if settings is None or settings.workload != spec.WORKLOAD or spec.problem_of(settings).network == spec.LOCAL:
        return []
    problem = spec.problem_of(settings)
    return ["ci/netns", str(problem.workers), "--rate", problem.network, "--"]


def _replay_words(args: argparse.Namespace, record: Record | None) -> list[str]:
    """Return the command that replays the same trace, with the same link and from the same folder."""
    words = ["runner", "replay", *args.trace, *(["--run", record.run_id] if record else [])]
    flags = {"--results": args.results, "--calibration": args.calibration, "--level": args.level}
    usual = (None, DEFAULT_RESULTS)
    return words + [word for flag, value in flags.items() if value not in usual for word in (flag, str(value))]


def _verify_words(best: Sequence[Strategy]) -> list[str]:
    """Return the flags that measure the best setting and the baseline."""
    return [word for one in best[:1] for text in one.what_ifs for word in ("--what-if", text)] + ["--verify"]


def _write(path: Path, search: Search, best: Sequence[Strategy], commands: tuple[str, str]) -> None:
    """Write the strategy file; `commands` wrote it, and compare its cells. Raises `InfrastructureError`."""
    base: Settings = verification.base_settings(search.graph, "--to")
    choices = [Choice(base, strategy_comment(search.baseline, None))]
    choices += [
        Choice(strategy_file.with_changes(base, one.settings or {}), strategy_comment(search.baseline, one))
        for one in best[:1]
    ]
    heading = [f"Written by: {commands[0]}", *strategy_heading(commands[1] if best else None)]
    try:
        files.replace(path, strategy_file.written(choices, heading).text)
    except OSError as error:
        raise InfrastructureError(f"--to: {path}: cannot be written: {error.strerror or error}") from error

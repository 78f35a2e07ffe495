"""Search for faster settings of a traced cell in replay, write them as a matrix file, and verify them.

TRACE is what `runner replay` takes. The search looks at the critical path first, and skips families that do not touch
it. Gains of fused blocks and of bfloat16 are probed once on this machine, one block at a time. --to writes the baseline
and the best setting as a matrix file: runner --matrix strategy.yaml. --verify measures the baseline and the best three,
interleaved. docs/whatif.md"""

from __future__ import annotations

import argparse
import shlex
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

from keras_matrix.analysis.whatif.replay import explained, step_time_s
from keras_matrix.analysis.whatif.search import families
from keras_matrix.analysis.whatif.search.layer_choice import AMP
from keras_matrix.analysis.whatif.search.trajectory import Strategy
from keras_matrix.records import files
from keras_matrix.records.schema import Record
from keras_matrix.records.settings import Settings
from keras_matrix.records.store import DEFAULT_RESULTS
from keras_matrix.records.text import printable
from keras_matrix.runner.cli.options import check_output
from keras_matrix.runner.cli.render.format import document
from keras_matrix.runner.cli.whatif import options
from keras_matrix.runner.cli.whatif.optimize_text import (
    command_lines,
    found_lines,
    strategy_comment,
    strategy_heading,
)
from keras_matrix.runner.cli.whatif.replay_text import trace_lines
from keras_matrix.runner.cli.whatif.verification_text import verified_lines
from keras_matrix.runner.errors import InfrastructureError
from keras_matrix.runner.executors.registry import size_bytes
from keras_matrix.runner.service import whatif
from keras_matrix.runner.service.optimize import (
    Gains,
    Search,
    by_time,
    families_of,
    inputs_of,
    link_words,
    probed,
    searched,
)
from keras_matrix.runner.whatif import measurement, probes, strategy_file
from keras_matrix.runner.whatif.strategy_file import Choice

BEST = 3


def configure(parser: argparse.ArgumentParser) -> None:
    """Add this command's flags."""
    parser.add_argument("trace", nargs="+", metavar="TRACE", help=options.TRACE_HELP)
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
    options.add_model_options(parser)
    parser.add_argument(
        "--to", type=Path, metavar="FILE", help="write the baseline and the best setting as a matrix file"
    )
    parser.add_argument("--json", action="store_true", help="print one JSON document")
    options.add_verify_options(parser, f"the best {BEST} settings")


def run(args: argparse.Namespace) -> int:
    """Search, print the trajectory and the best strategies, write and verify them. Returns the exit code."""
    if args.to is not None:
        check_output("--to", args.to)
    budget = None if args.memory_budget is None else size_bytes("--memory-budget", args.memory_budget)
    wanted = families_of(args.search)
    work = options.work_of(args)
    trace = whatif.found_trace(args.trace, args.results, args.run, work.display)
    traced = whatif.loaded(trace, args.calibration, args.level)
    graph = whatif.unprofiled(trace, traced)
    model = options.cost_model(args, trace, graph)
    if args.to is not None:
        whatif.base_settings(graph, "--to")
    if args.verify:
        whatif.check_base(graph)
    gains = probed(work, graph, wanted) if args.probe else Gains()
    if model and AMP in wanted.names and not gains.ratios.get(AMP):
        gains = gains.with_ratios(AMP, probes.model_ratios(graph, model.predict))
    search = searched(graph, wanted, inputs_of(gains, graph, trace.record, budget))
    possible = strategy_file.possible(search.found, measurement.settings_of(graph.header.settings))
    search = replace(search, found=possible, coverage=explained(traced, step_time_s(traced)))
    best = [one for one in search.found.strategies if one.settings is not None][:BEST]
    comparison = shlex.join([*link_words(graph), *_replay_words(args, trace.record), *_verify_words(best)])
    plan = whatif.checked_plan(work, graph, by_time(best)) if args.verify else None
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
    result = whatif.verified(work, graph, search.baseline, by_time(best), plan) if plan else None
    if args.json:
        own = {"verification": None if result is None else whatif.verification_document(graph, result)}
        commands = {"strategy_file": str(args.to) if args.to else None, "comparison": comparison if best else None}
        print(document({**search.document(gains), **commands, **own}))
    elif result is not None:
        print("\n".join(map(printable, verified_lines(result))))
    return (result.session.exit_code if result else 0) or trace.exit_code


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
    base: Settings = whatif.base_settings(search.graph, "--to")
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

"""Search for faster settings of a traced cell in replay, write them as a matrix file, and verify them.

TRACE is what `runner replay` takes. The search looks at the critical path first, and skips families that do not touch
it. Gains of fused blocks and of bfloat16 are probed once on this machine, one block at a time. --to writes the baseline
and the best setting as a matrix file: runner --matrix strategy.yaml. --verify measures the baseline and the best three,
interleaved. docs/optimize.md
"""

from __future__ import annotations

import argparse
import shlex
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path

from keras_matrix.analysis.whatif.replay import Replay, explained, step_time_s
from keras_matrix.analysis.whatif.search import ALL_FAMILIES, AMP, MEMORY, FamilyTrajectories
from keras_matrix.analysis.whatif.trajectory import EQUALLY_FAST, ReplayedTrial, Strategy, Trajectory
from keras_matrix.analysis.whatif.verify import BASELINE
from keras_matrix.records import files
from keras_matrix.records.schema import Record
from keras_matrix.records.settings import Settings
from keras_matrix.records.store import DEFAULT_RESULTS
from keras_matrix.records.text import percentage, plural, printable, ratio_text, seconds
from keras_matrix.runner.cli.options import check_output
from keras_matrix.runner.cli.render.format import columns, document
from keras_matrix.runner.cli.whatif import options
from keras_matrix.runner.cli.whatif.replay_text import interval, realised, trace_lines, verified_lines
from keras_matrix.runner.errors import InfrastructureError
from keras_matrix.runner.executors.registry import size_bytes
from keras_matrix.runner.service import whatif
from keras_matrix.runner.service.optimize import (
    Gains,
    StrategySearch,
    by_time,
    families_of,
    inputs_of,
    link_words,
    probed,
    searched,
)
from keras_matrix.runner.whatif import measurement, probes, strategy_file
from keras_matrix.runner.whatif.strategy_file import ChosenCell

BEST = 3
MOST_TRIALS, MOST_STRATEGIES = 12, 12
SCREENED = (
    "screened: one replay of the mean durations, to compare many settings; predicted: the mean of replays of each "
    "traced step, which differs where operations vary from step to step"
)


def configure(parser: argparse.ArgumentParser) -> None:
    """Add this command's flags."""
    parser.add_argument("trace", nargs="+", metavar="TRACE", help=options.TRACE_HELP)
    parser.add_argument("--run", metavar="RUN", help="use the trace of this run")
    search_help = (
        "families joined by commas: tensor_fusion, op_fusion (or xla), amp, memory, all; ^memory leaves one out; "
        "from_opfs2tsfs derives buckets from fused blocks; default: all"
    )
    parser.add_argument("--search", default=ALL_FAMILIES, metavar="FAMILIES", help=search_help)
    budget_help = "search memory settings if the traced peak is above this, such as 8g"
    parser.add_argument("--memory-budget", metavar="BYTES", help=budget_help)
    probe_help = "measure the gain of each block of layers for op_fusion and amp; default: yes"
    parser.add_argument("--probe", action=argparse.BooleanOptionalAction, default=True, help=probe_help)
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
    searched_families = families_of(args.search)
    work = options.work_of(args)
    trace = whatif.found_trace(args.trace, args.results, args.run, work.display)
    traced = whatif.loaded(trace, args.calibration, args.level)
    graph = whatif.unprofiled(trace, traced)
    model = options.cost_model(args, trace, graph)
    if args.to is not None:
        whatif.base_settings(graph, "--to")
    if args.verify:
        whatif.check_base(graph)
    gains = probed(work, graph, searched_families) if args.probe else Gains()
    if model and AMP in searched_families.names and not gains.ratios.get(AMP):
        gains = gains.with_ratios(AMP, probes.model_ratios(graph, model.predict))
    search = searched(graph, searched_families, inputs_of(gains, graph, trace.record, budget))
    possible = strategy_file.possible(search.found, measurement.settings_of(graph.header.settings))
    search = replace(search, found=possible, coverage=explained(traced, step_time_s(traced)))
    best = [strategy for strategy in search.found.strategies if strategy.settings is not None][:BEST]
    comparison_command = shlex.join([*link_words(graph), *_replay_words(args, trace.record), *_verify_words(best)])
    plan = whatif.checked_plan(work, graph, by_time(best)) if args.verify else None
    if args.to is not None:
        _write(args.to, search, best, (shlex.join(work.request.command), comparison_command))
    if not args.json:
        basis = [f"cost model: {model.basis}"] if model else []
        lines = [
            *trace_lines(graph, search.coverage),
            *basis,
            "",
            *found_lines(search.baseline, search.found, gains.without),
        ]
        lines += command_lines(args.to, comparison_command if best else None, verifies=args.verify)
        print("\n".join(map(printable, lines)))
    result = whatif.verified(work, graph, search.baseline, by_time(best), plan) if plan else None
    if args.json:
        verification = {"verification": None if result is None else whatif.verification_document(graph, result)}
        commands = {
            "strategy_file": str(args.to) if args.to else None,
            "comparison": comparison_command if best else None,
        }
        print(document({**search.document(gains), **commands, **verification}))
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
    return [word for strategy in best[:1] for text in strategy.what_ifs for word in ("--what-if", text)] + ["--verify"]


def _write(path: Path, search: StrategySearch, best: Sequence[Strategy], commands: tuple[str, str]) -> None:
    """Write the strategy file; `commands` wrote it, and compare its cells. Raises `InfrastructureError`."""
    base: Settings = whatif.base_settings(search.graph, "--to")
    choices = [ChosenCell(base, strategy_comment(search.baseline, None))]
    choices += [
        ChosenCell(
            strategy_file.with_changes(base, strategy.settings or {}), strategy_comment(search.baseline, strategy)
        )
        for strategy in best[:1]
    ]
    heading = [f"Written by: {commands[0]}", *strategy_heading(commands[1] if best else None)]
    try:
        files.replace(path, strategy_file.written(choices, heading).text)
    except OSError as error:
        raise InfrastructureError(f"--to: {path}: cannot be written: {error.strerror or error}") from error


def found_lines(baseline: Replay, trajectories: FamilyTrajectories, reason_by_family: Mapping[str, str]) -> list[str]:
    """Return the page of a search; `reason_by_family` says why families were not probed."""
    kinds_text = ", ".join(f"{share.name} {percentage(share.share)}" for share in baseline.by_kind)
    steps_interval = interval(baseline.low_s, baseline.high_s)
    lines = [
        f"replayed: {seconds(baseline.step_time_s)} a step, single steps {steps_interval} (p10 to p90)",
        f"critical path: {kinds_text}",
    ]
    lines += [f"not probed: {family}: {reason}" for family, reason in reason_by_family.items()]
    for trajectory in trajectories.trajectories:
        lines += ["", *_trajectory_lines(trajectory)]
    return [*lines, "", *_strategy_lines(baseline, trajectories)]


def strategy_comment(baseline: Replay, strategy: Strategy | None) -> tuple[str, ...]:
    """Return the comment of a cell in a strategy file; None is the baseline."""
    if strategy is None:
        return (f"baseline: predicted {_step(baseline.step_time_s, baseline.low_s, baseline.high_s)}",)
    gain = ratio_text(strategy.speed_up(baseline.step_time_s))
    numerics = ("changes numerics: compare the loss, too",) if strategy.changes_numerics else ()
    return (
        f"best: {' '.join(strategy.what_ifs)}",
        f"predicted {_step(strategy.step_time_s, strategy.low_s, strategy.high_s)}, {gain}",
        *numerics,
    )


def strategy_heading(comparison: str | None) -> list[str]:
    """Return the comment of a strategy file: what its figures are, and the command that compares its cells."""
    lines = ["Predictions, not measurements."]
    if comparison is None:
        return lines
    return [
        *lines,
        "runner --matrix measures both cells, each in a row of its own. To compare them, interleaved, with a verdict:",
        comparison,
    ]


def command_lines(file: Path | None, comparison: str | None, *, verifies: bool) -> list[str]:
    """Return which file was written, and the commands that measure what was found; no comparison without a setting."""
    lines = []
    if file is not None:
        content_text, measures_text = "the baseline only", "measures it"
        if comparison is not None:
            content_text, measures_text = "the baseline and the best setting", "measures both, each in a row of its own"
        lines.append(f"strategy: {file}: {content_text}; runner --matrix {file} {measures_text}")
    if comparison is not None and not verifies:
        lines.append(f"to measure the best setting against the baseline, with a verdict: {comparison}")
    return lines


def _step(step_s: float, low_s: float, high_s: float) -> str:
    return f"{seconds(step_s)} a step, single steps {interval(low_s, high_s)}"


def _trajectory_lines(trajectory: Trajectory) -> list[str]:
    """Return the trials of a family that were better than what it began from and all before them."""
    start = " ".join(trajectory.before) or BASELINE
    title = trajectory.family if not trajectory.before else f"{trajectory.family}, added to {start}"
    if trajectory.skipped:
        return [f"{title}: skipped: {trajectory.skipped}"]
    if not trajectory.better:
        best = min(trajectory.trials, key=lambda trial: trial.step_time_s)
        best_text = f"the best is {' '.join(best.what_ifs)}, {seconds(best.step_time_s)}"
        fitting_text = " that fit --memory-budget" if trajectory.family == MEMORY else ""
        number = plural(len(trajectory.trials), "setting") + fitting_text
        return [f"{title}: {number} replayed, none better than {_the(start)}; {best_text}"]
    better = trajectory.better
    shown_trials = better if len(better) <= MOST_TRIALS else [*better[: MOST_TRIALS // 2], *better[-MOST_TRIALS // 2 :]]
    start_s = trajectory.baseline_s if trajectory.screened_s is None else trajectory.screened_s
    rows = [["trial", "setting", "screened", "speed-up"], ["0", start, seconds(start_s), ""]]
    rows += [_trial_row(number, trial, start_s) for number, trial in shown_trials]
    tried_text = f"{title}: {plural(len(trajectory.trials), 'setting')} replayed; these were better than all before:"
    return [tried_text, *columns(rows, frozenset((0, 2, 3)))]


def _the(start: str) -> str:
    return f"the {start}" if start == BASELINE else start


def _trial_row(number: int, trial: ReplayedTrial, start_s: float) -> list[str]:
    gain = ratio_text(trial.speed_up(start_s))
    return [str(number), " ".join(trial.what_ifs), seconds(trial.step_time_s), gain]


def _strategy_lines(baseline: Replay, trajectories: FamilyTrajectories) -> list[str]:
    """Return the best settings and the baseline by their predicted times, and which one is the best to choose."""
    if not trajectories.strategies:
        return ["no setting is predicted to be faster"]
    too_large = any(trajectory.family == MEMORY and trajectory.strategies for trajectory in trajectories.trajectories)
    traced_text = "as traced; above --memory-budget" if too_large else "as traced"
    steps_interval = interval(baseline.low_s, baseline.high_s)
    rows = [(baseline.step_time_s, [BASELINE, seconds(baseline.step_time_s), steps_interval, "1.00x", traced_text])]
    ordered = sorted(trajectories.strategies, key=lambda strategy: strategy.step_time_s)
    chosen_strategy = best_of(trajectories)
    shown_strategies = [
        strategy for rank, strategy in enumerate(ordered) if rank < MOST_STRATEGIES or strategy is chosen_strategy
    ]
    for strategy in shown_strategies:
        gain = ratio_text(strategy.speed_up(baseline.step_time_s))
        cells = [
            " ".join(strategy.what_ifs),
            seconds(strategy.step_time_s),
            interval(strategy.low_s, strategy.high_s),
            gain,
            realised(strategy),
        ]
        rows.append((strategy.step_time_s, cells))
    head = ["best settings", "predicted", "p10 to p90", "speed-up", "settings"]
    lines = columns([head, *(cells for _, cells in sorted(rows, key=lambda row: row[0]))], frozenset((1, 3)))
    if unlisted_count := len(ordered) - len(shown_strategies):
        lines.append(f"and {unlisted_count} slower {'setting' if unlisted_count == 1 else 'settings'}")
    if any(trajectory.trials for trajectory in trajectories.trajectories):
        lines.append(SCREENED)
    return [*lines, _chosen_line(chosen_strategy, ordered)]


def best_of(trajectories: FamilyTrajectories) -> Strategy | None:
    """Return the best setting that a cell can have; None without one."""
    return next((strategy for strategy in trajectories.strategies if strategy.settings is not None), None)


def _chosen_line(chosen_strategy: Strategy | None, ordered: Sequence[Strategy]) -> str:
    if chosen_strategy is None:
        return "best: none of these settings can be measured"
    faster_strategies = [strategy for strategy in ordered if strategy.step_time_s < chosen_strategy.step_time_s]
    strategies_with_settings = [strategy for strategy in faster_strategies if strategy.settings is not None]
    reasons = []
    if strategies_with_settings:
        reasons.append(
            f"times within {percentage(EQUALLY_FAST)} of the fastest count as equal, and of these it "
            "has the fewest collectives"
        )
    if len(strategies_with_settings) < len(faster_strategies):
        reasons.append("no cell can have the settings that are predicted only")
    return f"best: {'; '.join([' '.join(chosen_strategy.what_ifs), *reasons])}"

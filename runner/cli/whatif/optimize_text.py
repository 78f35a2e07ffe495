"""A search for the terminal: the critical path, what was tried by each family, and the best strategies."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path

from keras_matrix.analysis.whatif.replay import Replay
from keras_matrix.analysis.whatif.search import memory
from keras_matrix.analysis.whatif.search.families import Found
from keras_matrix.analysis.whatif.search.trajectory import EQUALLY_FAST, Strategy, Trajectory, Trial
from keras_matrix.analysis.whatif.verify import BASELINE
from keras_matrix.records.text import percentage, plural, ratio_text, seconds
from keras_matrix.runner.cli.render.format import columns
from keras_matrix.runner.cli.whatif.replay_text import interval, realised

MOST_TRIALS, MOST_STRATEGIES = 12, 12
SCREENED = (
    "screened: one replay of the mean durations, to compare many settings; predicted: the mean of replays of each "
    "traced step, which differs where operations vary from step to step"
)


def found_lines(baseline: Replay, found: Found, without: Mapping[str, str]) -> list[str]:
    """Return the page of a search; `without` says why families were not probed."""
    kinds = ", ".join(f"{one.name} {percentage(one.share)}" for one in baseline.by_kind)
    single = interval(baseline.low_s, baseline.high_s)
    lines = [
        f"replayed: {seconds(baseline.step_time_s)} a step, single steps {single} (p10 to p90)",
        f"critical path: {kinds}",
    ]
    lines += [f"not probed: {family}: {reason}" for family, reason in without.items()]
    for one in found.trajectories:
        lines += ["", *_trajectory_lines(one)]
    return [*lines, "", *_strategy_lines(baseline, found)]


def strategy_comment(baseline: Replay, strategy: Strategy | None) -> tuple[str, ...]:
    """Return the comment of a cell in a strategy file; None is the baseline."""
    if strategy is None:
        return (f"baseline: predicted {_step(baseline.step_time_s, baseline.low_s, baseline.high_s)}",)
    gain = baseline.step_time_s / strategy.step_time_s
    numerics = ("changes numerics: compare the loss, too",) if strategy.changes_numerics else ()
    return (
        f"best: {' '.join(strategy.what_ifs)}",
        f"predicted {_step(strategy.step_time_s, strategy.low_s, strategy.high_s)}, {ratio_text(gain)}",
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
        what, measures = "the baseline only", "measures it"
        if comparison is not None:
            what, measures = "the baseline and the best setting", "measures both, each in a row of its own"
        lines.append(f"strategy: {file}: {what}; runner --matrix {file} {measures}")
    if comparison is not None and not verifies:
        lines.append(f"to measure the best setting against the baseline, with a verdict: {comparison}")
    return lines


def _step(step_s: float, low_s: float, high_s: float) -> str:
    return f"{seconds(step_s)} a step, single steps {interval(low_s, high_s)}"


def _trajectory_lines(one: Trajectory) -> list[str]:
    """Return the trials of a family that were better than what it began from and all before them."""
    start = " ".join(one.before) or BASELINE
    title = one.family if not one.before else f"{one.family}, added to {start}"
    if one.skipped:
        return [f"{title}: skipped: {one.skipped}"]
    if not one.better:
        best = min(one.trials, key=lambda trial: trial.step_time_s)
        found = f"the best is {' '.join(best.what_ifs)}, {seconds(best.step_time_s)}"
        fitting = " that fit --memory-budget" if one.family == memory.NAME else ""
        number = plural(len(one.trials), "setting") + fitting
        return [f"{title}: {number} replayed, none better than {_the(start)}; {found}"]
    better = one.better
    shown = better if len(better) <= MOST_TRIALS else [*better[: MOST_TRIALS // 2], *better[-MOST_TRIALS // 2 :]]
    start_s = one.baseline_s if one.screened_s is None else one.screened_s
    rows = [["trial", "setting", "screened", "speed-up"], ["0", start, seconds(start_s), ""]]
    rows += [_trial_row(number, trial, start_s) for number, trial in shown]
    tried = f"{title}: {plural(len(one.trials), 'setting')} replayed; these were better than all before:"
    return [tried, *columns(rows, frozenset((0, 2, 3)))]


def _the(start: str) -> str:
    return f"the {start}" if start == BASELINE else start


def _trial_row(number: int, trial: Trial, start_s: float) -> list[str]:
    gain = ratio_text(start_s / trial.step_time_s)
    return [str(number), " ".join(trial.what_ifs), seconds(trial.step_time_s), gain]


def _strategy_lines(baseline: Replay, found: Found) -> list[str]:
    """Return the best settings and the baseline by their predicted times, and which one is the best to choose."""
    if not found.strategies:
        return ["no setting is predicted to be faster"]
    too_large = any(one.family == memory.NAME and one.strategies for one in found.trajectories)
    traced = "as traced; above --memory-budget" if too_large else "as traced"
    single = interval(baseline.low_s, baseline.high_s)
    rows = [(baseline.step_time_s, [BASELINE, seconds(baseline.step_time_s), single, "1.00x", traced])]
    ordered = sorted(found.strategies, key=lambda one: one.step_time_s)
    chosen = best_of(found)
    shown = [one for at, one in enumerate(ordered) if at < MOST_STRATEGIES or one is chosen]
    for one in shown:
        gain = ratio_text(baseline.step_time_s / one.step_time_s)
        cells = [" ".join(one.what_ifs), seconds(one.step_time_s), interval(one.low_s, one.high_s), gain, realised(one)]
        rows.append((one.step_time_s, cells))
    head = ["best settings", "predicted", "p10 to p90", "speed-up", "settings"]
    lines = columns([head, *(cells for _, cells in sorted(rows, key=lambda row: row[0]))], frozenset((1, 3)))
    if more := len(ordered) - len(shown):
        lines.append(f"and {more} slower {'setting' if more == 1 else 'settings'}")
    if any(one.trials for one in found.trajectories):
        lines.append(SCREENED)
    return [*lines, _chosen_line(chosen, ordered)]


def best_of(found: Found) -> Strategy | None:
    """Return the best setting that a cell can have; None without one."""
    return next((one for one in found.strategies if one.settings is not None), None)


def _chosen_line(chosen: Strategy | None, ordered: Sequence[Strategy]) -> str:
    if chosen is None:
        return "best: none of these settings can be measured"
    faster = [one for one in ordered if one.step_time_s < chosen.step_time_s]
    equal = [one for one in faster if one.settings is not None]
    reasons = []
    if equal:
        reasons.append(
            f"times within {percentage(EQUALLY_FAST)} of the fastest count as equal, and of these it "
            "has the fewest collectives"
        )
    if len(equal) < len(faster):
        reasons.append("no cell can have the settings that are predicted only")
    return f"best: {'; '.join([' '.join(chosen.what_ifs), *reasons])}"

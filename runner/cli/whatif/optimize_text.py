"""A search for the terminal: the critical path, what was tried by each family, and the best strategies."""

from __future__ import annotations

from collections.abc import Mapping

from keras_matrix.analysis.whatif.replay import Replay
from keras_matrix.analysis.whatif.search.families import Found
from keras_matrix.analysis.whatif.search.trajectory import Strategy, Trajectory, Trial
from keras_matrix.dashboards.charts.format import plural
from keras_matrix.runner.cli.render.format import columns, seconds
from keras_matrix.runner.cli.whatif.replay_text import interval, realised

MOST_TRIALS = 12


def found_lines(baseline: Replay, found: Found, without: Mapping[str, str]) -> list[str]:
    """Return the page of a search; `without` says why families were not probed."""
    kinds = ", ".join(f"{one.name} {one.share:.1%}" for one in baseline.by_kind)
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
        f"predicted {_step(strategy.step_time_s, strategy.low_s, strategy.high_s)}, {gain:.2f}x",
        *numerics,
    )


def _step(step_s: float, low_s: float, high_s: float) -> str:
    return f"{seconds(step_s)} a step, single steps {interval(low_s, high_s)}"


def _trajectory_lines(one: Trajectory) -> list[str]:
    """Return the trials of a family that were better than the baseline and all before them."""
    if one.skipped:
        return [f"{one.family}: skipped: {one.skipped}"]
    numbered = list(enumerate(one.trials, 1))
    better = [(number, trial) for number, trial in numbered if trial.is_better and trial.step_time_s < one.baseline_s]
    if not better:
        best = min(one.trials, key=lambda trial: trial.step_time_s)
        found = f"the best is {' '.join(best.what_ifs)}, {seconds(best.step_time_s)}"
        return [f"{one.family}: {plural(len(numbered), 'setting')} replayed, none better than the baseline; {found}"]
    shown = better if len(better) <= MOST_TRIALS else [*better[: MOST_TRIALS // 2], *better[-MOST_TRIALS // 2 :]]
    rows = [[f"{one.family}, trial", "setting", "predicted", "speed-up"]]
    rows += [_trial_row(number, trial, one.baseline_s) for number, trial in shown]
    tried = f"{one.family}: {plural(len(numbered), 'setting')} replayed; these were better than all before:"
    return [tried, *columns(rows, frozenset((0, 2, 3)))]


def _trial_row(number: int, trial: Trial, baseline_s: float) -> list[str]:
    gain = f"{baseline_s / trial.step_time_s:.2f}x"
    return [str(number), " ".join(trial.what_ifs), seconds(trial.step_time_s), gain]


def _strategy_lines(baseline: Replay, found: Found) -> list[str]:
    if not found.strategies:
        return ["no setting is predicted to be faster"]
    rows = [["best settings", "predicted", "p10 to p90", "speed-up", "settings"]]
    for one in found.strategies:
        gain = f"{baseline.step_time_s / one.step_time_s:.2f}x"
        name = " ".join(one.what_ifs)
        rows.append([name, seconds(one.step_time_s), interval(one.low_s, one.high_s), gain, realised(one)])
    return columns(rows, frozenset((1, 3)))

"""What a search returns: every setting that it replayed, the best ones, or why it did not search."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace

from keras_matrix.analysis.whatif.graph import Graph, GraphError, Node
from keras_matrix.analysis.whatif.replay import Replay, replay, step_time_s
from keras_matrix.analysis.whatif.what_ifs import registry
from keras_matrix.analysis.whatif.what_ifs.what_if import Scalar

BEST = 3
MOST_STRATEGIES = 12  # of a family, besides the best: those that are replayed with every traced step
# A replayed difference below this is no reason to prefer a setting.
LEAST_GAIN = 0.001
# Nor is this one, if the other setting has fewer collectives.
EQUALLY_FAST = 0.01


@dataclass(frozen=True, slots=True)
class ReplayedTrial:
    """A replayed setting, as texts of what-ifs; `is_better`: it had the lowest time until then.

    `step_time_s` is screened: one replay of the mean durations. `Strategy.step_time_s` is the mean of replays of each
    traced step, which differs where operations vary from step to step.
    """

    what_ifs: tuple[str, ...]
    step_time_s: float
    is_better: bool

    def speed_up(self, start_s: float) -> float:
        """Return how many times as fast as the start of the search it is replayed to be."""
        return start_s / self.step_time_s


@dataclass(frozen=True, slots=True)
class Strategy:
    """A setting: the what-ifs that make it, the settings of a cell that has it, and its predicted step time.

    `settings` is None if no cell can have it, with the `reason`. `low_s` to `high_s` is the replayed spread of steps.
    """

    what_ifs: tuple[str, ...]
    settings: Mapping[str, Scalar] | None
    step_time_s: float
    low_s: float
    high_s: float
    reason: str = ""
    changes_numerics: bool = False

    def speed_up(self, baseline_s: float) -> float:
        """Return how many times as fast as a baseline its step is predicted to be."""
        return baseline_s / self.step_time_s


@dataclass(frozen=True, slots=True)
class Trajectory:
    """A search of one family: the replay it began from, its trials in their order, and the strategies, best first.

    It began from the what-ifs `before`, those of earlier families; `screened_s` is their step time as that of a trial.
    The strategies are the fastest trials, and those that were better than all before them. `skipped` says why nothing
    was tried; `strategies` is empty if nothing was faster.
    """

    family: str
    baseline_s: float
    trials: tuple[ReplayedTrial, ...] = ()
    strategies: tuple[Strategy, ...] = ()
    skipped: str = ""
    before: tuple[str, ...] = ()
    screened_s: float | None = None

    @property
    def better(self) -> list[tuple[int, ReplayedTrial]]:
        """The trials that were better than what the search began from and all before them, with their numbers."""
        limit_s = self.baseline_s if self.screened_s is None else self.screened_s
        return [
            (number, trial)
            for number, trial in enumerate(self.trials, 1)
            if trial.is_better and _is_faster(trial, limit_s)
        ]

    @property
    def best(self) -> Strategy | None:
        """The strategy to choose; None if none is faster than the baseline."""
        return self.strategies[0] if self.strategies else None


@dataclass(slots=True)
class TrialCollector:
    """Collects the trials of a search that starts from a graph and the what-ifs which have led to it."""

    graph: Graph
    before: tuple[str, ...] = ()
    found: list[ReplayedTrial] = field(default_factory=list)

    def add(self, what_if: str | Sequence[str], step_time_s: float) -> bool:
        """Add a trial; return whether it is the fastest until now."""
        lowest = min((trial.step_time_s for trial in self.found), default=float("inf"))
        texts = (what_if,) if isinstance(what_if, str) else tuple(what_if)
        self.found.append(ReplayedTrial(texts, step_time_s, step_time_s < lowest))
        return step_time_s < lowest

    def replayed(self, what_ifs: Sequence[str]) -> float:
        """Replay what-ifs together, add the trial and return its step time. Raises `GraphError`."""
        time_s = step_time_s(registry.apply(self.graph, [registry.read(text) for text in what_ifs]))
        self.add(what_ifs, time_s)
        return time_s

    def finished(
        self,
        family: str,
        baseline: Replay,
        order: Iterable[ReplayedTrial] | None = None,
        collectives: Mapping[tuple[str, ...], int] | None = None,
    ) -> Trajectory:
        """Return the trajectory; the best of `order`, by default of all trials, are replayed with every traced step.

        With `collectives`, their number for each trial, those of equally fast strategies are better that have fewer.
        """
        ranked = sorted(self.found, key=lambda trial: trial.step_time_s) if order is None else list(order)
        screened_s = step_time_s(self.graph)
        trajectory = Trajectory(
            family, baseline.step_time_s, tuple(self.found), before=self.before, screened_s=screened_s
        )
        best = [trial.what_ifs for trial in ranked if _is_faster(trial, screened_s)][:BEST]
        improved = [trial.what_ifs for _, trial in trajectory.better][-MOST_STRATEGIES:]
        strategies = [strategy_of(self.graph, texts, self.before) for texts in dict.fromkeys((*best, *improved))]
        faster_strategies = [strategy for strategy in strategies if _is_faster(strategy, baseline.step_time_s)]
        counts = {(*self.before, *texts): count for texts, count in (collectives or {}).items()}
        return replace(trajectory, strategies=tuple(_best_first(faster_strategies, counts)))


def _is_faster(candidate: ReplayedTrial | Strategy, than_s: float) -> bool:
    return candidate.step_time_s < than_s * (1 - LEAST_GAIN)


def _best_first(strategies: Sequence[Strategy], collectives: Mapping[tuple[str, ...], int]) -> list[Strategy]:
    """Return the fastest first; of those that are equally fast, the ones with fewer collectives, if that is known."""
    ordered = sorted(strategies, key=lambda strategy: strategy.step_time_s)
    if not ordered or not collectives:
        return ordered
    limit_s = ordered[0].step_time_s * (1 + EQUALLY_FAST)
    fast = [strategy for strategy in ordered if strategy.step_time_s <= limit_s]
    return [*sorted(fast, key=lambda strategy: collectives[strategy.what_ifs]), *ordered[len(fast) :]]


def strategy_of(graph: Graph, what_ifs: Sequence[str], before: Sequence[str] = ()) -> Strategy:
    """Return the strategy of what-ifs of a graph, which `before` have made from the traced one. Raises `GraphError`."""
    choices = [registry.read(text) for text in what_ifs]
    replayed = replay(registry.apply(graph, choices))
    realised = registry.realised(graph, choices)
    changes_numerics = any(registry.read(text).what_if.changes_numerics for text in (*before, *what_ifs))
    times = replayed.step_time_s, replayed.low_s, replayed.high_s
    return Strategy((*before, *what_ifs), realised.settings, *times, realised.reason, changes_numerics)


def critical_nodes(baseline: Replay) -> tuple[Node, ...]:
    """Return the nodes that determine the step time."""
    return tuple(part.node for part in baseline.critical_path)


def skipped(family: str, baseline: Replay, reason: str | GraphError) -> Trajectory:
    """Return the trajectory of a search that tried nothing."""
    return Trajectory(family, baseline.step_time_s, skipped=str(reason))

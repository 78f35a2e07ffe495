"""What a search returns: every setting that it replayed, the best ones, or why it did not search."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field

from keras_matrix.analysis.whatif.graph import Graph, GraphError, Node
from keras_matrix.analysis.whatif.replay import Replay, replay, step_time_s
from keras_matrix.analysis.whatif.what_ifs import registry
from keras_matrix.analysis.whatif.what_ifs.what_if import Scalar

BEST = 3
# A replayed difference below this is no reason to prefer a setting.
LEAST_GAIN = 0.001


@dataclass(frozen=True, slots=True)
class Trial:
    """A replayed setting, as texts of what-ifs; `is_better`: it had the lowest time until then."""

    what_ifs: tuple[str, ...]
    step_time_s: float
    is_better: bool


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


@dataclass(frozen=True, slots=True)
class Trajectory:
    """A search of one family: the replay it began from, its trials in their order, and the best strategies, best first.

    `skipped` says why nothing was tried; `strategies` is empty if nothing was faster.
    """

    family: str
    baseline_s: float
    trials: tuple[Trial, ...] = ()
    strategies: tuple[Strategy, ...] = ()
    skipped: str = ""

    @property
    def best(self) -> Strategy | None:
        """The strategy with the lowest predicted step time; None if none is faster than the baseline."""
        return self.strategies[0] if self.strategies else None


@dataclass(slots=True)
class Trials:
    """Collects the trials of a search that starts from a graph and the what-ifs which have led to it."""

    graph: Graph
    before: tuple[str, ...] = ()
    found: list[Trial] = field(default_factory=list)

    def add(self, what_if: str | Sequence[str], step_time_s: float) -> bool:
        """Add a trial; return whether it is the fastest until now."""
        lowest = min((one.step_time_s for one in self.found), default=float("inf"))
        texts = (what_if,) if isinstance(what_if, str) else tuple(what_if)
        self.found.append(Trial(texts, step_time_s, step_time_s < lowest))
        return step_time_s < lowest

    def replayed(self, what_ifs: Sequence[str]) -> float:
        """Replay what-ifs together, add the trial and return its step time. Raises `GraphError`."""
        time_s = step_time_s(registry.apply(self.graph, [registry.read(text) for text in what_ifs]))
        self.add(what_ifs, time_s)
        return time_s

    def finished(self, family: str, baseline: Replay, order: Iterable[Trial] | None = None) -> Trajectory:
        """Return the trajectory; the best of `order`, by default of all trials, are replayed with their spread."""
        ranked = sorted(self.found, key=lambda one: one.step_time_s) if order is None else list(order)
        limit_s = step_time_s(self.graph) * (1 - LEAST_GAIN)
        chosen: dict[tuple[str, ...], Trial] = {}
        for trial in ranked:
            if trial.step_time_s < limit_s and len(chosen) < BEST:
                chosen.setdefault(trial.what_ifs, trial)
        strategies = tuple(strategy_of(self.graph, texts, self.before) for texts in chosen)
        return Trajectory(family, baseline.step_time_s, tuple(self.found), strategies)


def strategy_of(graph: Graph, what_ifs: Sequence[str], before: Sequence[str] = ()) -> Strategy:
    """Return the strategy of what-ifs of a graph, which `before` have made from the traced one. Raises `GraphError`."""
    choices = [registry.read(text) for text in what_ifs]
    found = replay(registry.apply(graph, choices))
    realised = registry.realised(graph, choices)
    numerics = any(registry.read(text).what_if.changes_numerics for text in (*before, *what_ifs))
    times = found.step_time_s, found.low_s, found.high_s
    return Strategy((*before, *what_ifs), realised.settings, *times, realised.reason, numerics)


def critical_nodes(baseline: Replay) -> tuple[Node, ...]:
    """Return the nodes that determine the step time."""
    return tuple(part.node for part in baseline.critical_path)


def skipped(family: str, baseline: Replay, reason: str | GraphError) -> Trajectory:
    """Return the trajectory of a search that tried nothing."""
    return Trajectory(family, baseline.step_time_s, skipped=str(reason))

"""Implements `repeats: auto`: adds repeats until the intervals are narrow enough or the budget is spent.

`analysis.stats.sequential` decides when to stop and which comparison gets the next block; this module passes it the
comparisons, computed from records, and plans the repeats. All open comparisons get their next block together, because
they share the servers that a block starts; near the end of the budget the most promising ones have priority.

With the rule of a gate, a comparison is continued from look to look until the gate has decided it; with a question of
several arms until that is answered; otherwise until its interval has the requested width.

A comparison contains the cells that differ in backend or arm only: with two arms, new / base on each backend; with one,
each backend against the one with the lowest mean; a single cell is judged by its own step time. A comparison stops when
all of these do; a pair without a block, for example because one side always fails, does not delay it. After the last
look no repeat is added, regardless of how many blocks have failed.
"""

from __future__ import annotations

import itertools
import math
import statistics
import time
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace

from keras_matrix.analysis.comparison.primary_metric import cost
from keras_matrix.analysis.regression.gate import GateOutcome, Rule, judge
from keras_matrix.analysis.stats.sequential import (
    LOOKS,
    Looks,
    SequentialState,
    Why,
    allocate,
    decide,
    grouped,
    time_to_look_s,
)
from keras_matrix.records.schema import MEASURED, Record
from keras_matrix.records.store import latest_attempts
from keras_matrix.runner.matrix.reader import Cell
from keras_matrix.runner.plan.plan import PlannedRepeat, block, comparisons
from keras_matrix.runner.plan.session import NULL, Session

NEVER = -0.5
Key = tuple[str, str]
"""An arm and a cell_id."""
Hosts = Mapping[Key, Mapping[int, str]]
"""The `host_id` of the machine of each repeat, by (arm, cell_id)."""
Times = Mapping[Key, Mapping[int, float]]
"""Step times in seconds by (arm, cell_id) and repeat."""
Weights = Mapping[Key, float]
"""The weight of each log step time in a series: 1 and -1 for the ratio of two cells."""


@dataclass(frozen=True, slots=True)
class ArmsQuestion:
    """What the arms of a session are to decide about each cell.

    Each contrast maps arms to the weights of their log step times, which gives one number a block. `answered` returns
    the answer that the numbers of all contrasts give at a look, or None to continue.
    """

    contrasts: tuple[Mapping[str, float], ...]
    answered: Callable[[Sequence[Sequence[float]]], str | None]
    looks: Looks


@dataclass(frozen=True, slots=True)
class SessionGoal:
    """The time in seconds during which a session may add repeats, and the gate's rule or the question to decide."""

    budget_s: float | None = None
    rule: Rule | None = None
    question: ArmsQuestion | None = None

    @property
    def looks(self) -> Looks:
        """The numbers of blocks at which a comparison may stop."""
        deciding = self.rule or self.question
        return deciding.looks if deciding else LOOKS


class Adaptive:
    """Decides after each block what a session measures next."""

    def __init__(
        self, session: Session, cells: Sequence[Cell], goal: SessionGoal, clock: Callable[[], float] = time.perf_counter
    ) -> None:
        self._session = session
        self._all = comparisons(cells)
        self._groups = {group[0].cell_id: group for group in self._all if group[0].auto}
        self._budget_s = math.inf if goal.budget_s is None else goal.budget_s
        self._rule, self._question, self._looks = goal.rule, goal.question, goal.looks
        self._arms = list(session.runs)
        self._clock = clock
        self._begun_s = clock() - _wall_s(self._records())

    def more(self) -> list[PlannedRepeat]:
        """Return the next block; empty when every comparison has stopped or the budget is spent."""
        if not self._groups:
            return []
        records = self._records()
        times, done_keys = step_times(records), _done(records)
        repeats = {first_cell_id: self._next_repeat(group, done_keys) for first_cell_id, group in self._groups.items()}
        # The larger one counts: the time since this start, or the processes of all starts together.
        left_s = self._budget_s - max(self._clock() - self._begun_s, _wall_s(records))
        decided = self._decided(times)
        stakes = (1.0,) if self._rule is None else (1.0 + self._rule.threshold,)
        states = {
            first_cell_id: SequentialState(
                block_series.logs, _block_cost_s(self._groups[first_cell_id], records), stakes, block_series.machines
            )
            for first_cell_id, block_series in self._widest(records).items()
            if block_series.logs and repeats[first_cell_id] < self._looks.blocks[-1] and first_cell_id not in decided
        }
        chosen_ids: list[str] = []
        while first_cell_id := self._next({n: s for n, s in states.items() if n not in chosen_ids}, left_s):
            chosen_ids.append(first_cell_id)
            left_s -= time_to_look_s(states[first_cell_id], self._looks)
        return self._repeats({first_cell_id: repeats[first_cell_id] for first_cell_id in chosen_ids}, done_keys)

    def why(self) -> dict[str, str]:
        """Return why no more repeats were added, by the cell_id of the first cell of each comparison."""
        records = self._records()
        times, done_keys = step_times(records), _done(records)
        reasons = dict(self._decided(times))
        for first_cell_id, block_series in self._widest(records).items():
            decision = decide(
                block_series.logs, self._target(first_cell_id), self._looks, machines=block_series.machines
            )
            at_last_look = self._next_repeat(self._groups[first_cell_id], done_keys) >= self._looks.blocks[-1]
            ending = Why.NOTHING if not block_series.logs else Why.LAST if at_last_look else Why.BUDGET
            reasons.setdefault(first_cell_id, str(decision.why if decision.stop else ending))
        return reasons

    def _widest(self, records: Sequence[tuple[str, Record]]) -> dict[str, BlockSeries]:
        """Return the series with the largest scatter of each comparison, within each machine: see `widest`."""
        times, host_by_repeat = step_times(records), hosts(records)
        weights_by_group = {first_cell_id: self._weights(group, times) for first_cell_id, group in self._groups.items()}
        return {
            first_cell_id: _widest_series(_placed(weights, times, host_by_repeat))
            for first_cell_id, weights in weights_by_group.items()
        }

    def _series(self, times: Times) -> dict[str, list[tuple[float, ...]]]:
        return {
            first_cell_id: _weighted(self._weights(group, times), times)
            for first_cell_id, group in self._groups.items()
        }

    def _weights(self, group: Sequence[Cell], times: Times) -> list[Weights]:
        """Return the weights of each series of a comparison."""
        if self._question is None:
            return _pairs(group, times, self._arms)
        contrasts = self._question.contrasts
        return [weights_of(contrast, self._arms, cell.cell_id) for cell in group for contrast in contrasts]

    def _target(self, first_cell_id: str) -> float:
        """Return the width at which a comparison stops; a decision has no such width, not even 0."""
        return NEVER if self._rule or self._question else self._groups[first_cell_id][0].precision_target or 0.0

    def _decided(self, times: Times) -> dict[str, str]:
        """Return the outcomes of the comparisons that were decided at the latest look of each of their series.

        Where processes failed, the series of a comparison reach a look at different blocks.
        """
        logs = self._series(times)
        if self._question is not None:
            return dict(self._answers(self._question, logs))
        if self._rule is None:
            return {}
        looked = {first_cell_id: [self._looked(logs) for logs in all_logs] for first_cell_id, all_logs in logs.items()}
        logs_by_name = {
            f"{first_cell_id} {i}": logs
            for first_cell_id, several_logs in looked.items()
            for i, logs in enumerate(several_logs)
        }
        verdicts = judge(logs_by_name, self._rule)
        decided = {}
        for first_cell_id, looked_logs in looked.items():
            outcomes = [verdicts[f"{first_cell_id} {i}"].outcome for i in range(len(looked_logs))]
            if looked_logs and all(looked_logs) and GateOutcome.UNDECIDED not in outcomes:
                decided[first_cell_id] = " and ".join(sorted(set(map(str, outcomes))))
        return decided

    def _answers(
        self, question: ArmsQuestion, logs: Mapping[str, Sequence[tuple[float, ...]]]
    ) -> Iterator[tuple[str, str]]:
        for first_cell_id, all_logs in logs.items():
            is_complete = len(all_logs) == len(question.contrasts) * len(self._groups[first_cell_id])
            if is_complete and len(all_logs[0]) in self._looks.blocks and (answer := question.answered(all_logs)):
                yield first_cell_id, answer

    def _looked(self, logs: tuple[float, ...]) -> tuple[float, ...]:
        """Return what was there at the latest look."""
        return logs[: max((block_count for block_count in self._looks.blocks if block_count <= len(logs)), default=0)]

    def _next(self, states: Mapping[str, SequentialState], left_s: float) -> str | None:
        """Return the next comparison to continue; their targets may differ."""
        states_by_target: dict[float, dict[str, SequentialState]] = {}
        for first_cell_id, state in states.items():
            states_by_target.setdefault(self._target(first_cell_id), {})[first_cell_id] = state
        offers = (allocate(some, left_s, target, self._looks) for target, some in states_by_target.items())
        return next(filter(None, offers), None)

    def _repeats(
        self, repeat_by_group: Mapping[str, int], done_keys: Collection[tuple[str, str, int]]
    ) -> list[PlannedRepeat]:
        """Return the remaining repeats of a block with the given repeat of each comparison.

        They have the same order as in a plan with that many repeats, where it is drawn for all comparisons together.
        """
        cells = {cell.cell_id: cell for group in self._all for cell in group}
        repeats = []
        for repeat in sorted(set(repeat_by_group.values())):
            counts = [repeat + 1 if repeat_by_group.get(group[0].cell_id) == repeat else 0 for group in self._all]
            grouped_cells = [
                [replace(cell, repeats=n) for cell in group] for group, n in zip(self._all, counts, strict=True)
            ]
            repeats += block(grouped_cells, repeat, self._session.seed, self._arms)
        return [
            replace(planned, cell=cells[planned.cell.cell_id]) for planned in repeats if planned.key not in done_keys
        ]

    def _next_repeat(self, group: Sequence[Cell], done_keys: Collection[tuple[str, str, int]]) -> int:
        keys = [(arm, cell.cell_id) for arm in self._arms for cell in group]
        return next(n for n in itertools.count() if any((*key, n) not in done_keys for key in keys))

    def _records(self) -> list[tuple[str, Record]]:
        return [(arm, record) for arm in self._arms for record in self._session.records(arm)]


def step_times(records: Sequence[tuple[str, Record]]) -> Times:
    """Return the costs (step times or equivalent) that were measured, from the latest attempt of each repeat."""
    times: dict[tuple[str, str], dict[int, float]] = {}
    for arm in dict.fromkeys(arm for arm, _ in records):
        for record in latest_attempts(record for record_arm, record in records if record_arm == arm):
            if record.status in MEASURED and (figure := cost(record)):
                times.setdefault((arm, record.cell_id), {})[record.repeat] = figure
    return times


def hosts(records: Sequence[tuple[str, Record]]) -> Hosts:
    """Return where the latest attempt of each repeat was measured."""
    host_by_key: dict[tuple[str, str], dict[int, str]] = {}
    for arm in dict.fromkeys(arm for arm, _ in records):
        for record in latest_attempts(record for record_arm, record in records if record_arm == arm):
            host_by_key.setdefault((arm, record.cell_id), {})[record.repeat] = record.place
    return host_by_key


@dataclass(frozen=True, slots=True)
class BlockSeries:
    """The numbers of a series by block, such as the log ratios of a pair, and the machine of each block."""

    logs: tuple[float, ...] = ()
    machines: tuple[str, ...] = ()

    def within(self) -> tuple[float, ...]:
        """Return each log ratio without the mean of its machine; of one machine as they are."""
        logs_by_machine = grouped(self.logs, self.machines)
        if len(logs_by_machine) < 2:
            return self.logs
        means = {machine: statistics.fmean(logs) for machine, logs in logs_by_machine.items()}
        return tuple(log - means[machine] for log, machine in zip(self.logs, self.machines, strict=True))


def series(group: Sequence[Cell], times: Times, arms: Sequence[str]) -> list[tuple[float, ...]]:
    """Return the log ratios by block of every pair that has a block; of two `arms` the base is the first."""
    return _weighted(_pairs(group, times, arms), times)


def numbers(weights: Weights, times: Times) -> tuple[float, ...]:
    """Return the weighted sum of log step times, one number a block."""
    return tuple(_logs(times, weights).values())


def weights_of(contrast: Mapping[str, float], arms: Iterable[str], cell_id: str) -> Weights:
    """Return the weights of a contrast, 0 for other arms: so it has the blocks only that all arms have.

    Then all contrasts of a question have as many numbers, and reach their looks together, although processes fail.
    """
    return {(arm, cell_id): contrast.get(arm, 0.0) for arm in arms}


def _weighted(weights: Sequence[Weights], times: Times) -> list[tuple[float, ...]]:
    all_logs = [numbers(contrast_weights, times) for contrast_weights in weights]
    return [logs for logs in all_logs if logs]


def _placed(weights: Sequence[Weights], times: Times, host_by_key: Hosts) -> list[BlockSeries]:
    """Return the series, of the blocks that are at one machine."""
    placed_series = []
    for contrast_weights in weights:
        places = [host_by_key.get(key, {}) for key in contrast_weights]
        logs = {n: log for n, log in _logs(times, contrast_weights).items() if len({place[n] for place in places}) == 1}
        placed_series.append(BlockSeries(tuple(logs.values()), tuple(places[0][n] for n in logs)))
    return [block_series for block_series in placed_series if block_series.logs]


def _pairs(group: Sequence[Cell], times: Times, arms: Sequence[str]) -> list[Weights]:
    """Return the pairs of a comparison; of two `arms` the base is the first. One measured cell is its own series."""
    arms = [arm for arm in arms if arm != NULL]
    cell_ids = {cell.cell_id for cell in group}
    own_times = {key: values for key, values in times.items() if key[1] in cell_ids and key[0] in arms}
    if len(arms) == 2:
        return [{(arms[1], cell.cell_id): 1, (arms[0], cell.cell_id): -1} for cell in group]
    lowest = min(own_times, key=lambda key: statistics.fmean(map(math.log, own_times[key].values())), default=None)
    return [{key: 1, lowest: -1} for key in own_times if lowest not in (key, None)] or [{key: 1} for key in own_times]


def _logs(times: Times, weights: Weights) -> dict[int, float]:
    """Return the weighted sum of the log step times of each block that has all of them."""
    first_key, *others = weights
    blocks = [n for n in times.get(first_key, {}) if all(n in times.get(key, {}) for key in others)]
    return {n: sum(weight * math.log(times[key][n]) for key, weight in weights.items()) for n in blocks}


def _widest_series(all_series: Sequence[BlockSeries]) -> BlockSeries:
    within_series = [block_series.within() for block_series in all_series]
    return all_series[within_series.index(widest(within_series))] if all_series else BlockSeries()


def widest(logs_of_series: Sequence[tuple[float, ...]]) -> tuple[float, ...]:
    """Return the series with the largest scatter: when it is precise enough, all are."""
    return max(logs_of_series, key=statistics.pstdev, default=())


def _done(records: Sequence[tuple[str, Record]]) -> set[tuple[str, str, int]]:
    return {(arm, record.cell_id, record.repeat) for arm, record in records}


def _wall_s(records: Sequence[tuple[str, Record]]) -> float:
    return sum(record.harness.wall_time_s or 0.0 for _, record in records)


def _block_cost_s(group: Sequence[Cell], records: Sequence[tuple[str, Record]]) -> float:
    cell_ids = {cell.cell_id for cell in group}
    wall_times_s = [record.harness.wall_time_s or 0.0 for _, record in records if record.cell_id in cell_ids]
    blocks = {record.repeat for _, record in records if record.cell_id in cell_ids}
    return sum(wall_times_s) / max(1, len(blocks))

"""The answer of a race as it is shown: winners, their gain, the ranking, who left and why, what to try next. Pure.

Terminal, Markdown, page and JSON document render it. A winner's gain is from blocks that no race has seen.
"""

from __future__ import annotations

import statistics
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

from keras_matrix.analysis.comparison.ratios import bracketed, change_text
from keras_matrix.analysis.racing import Drop, MainEffect, Race, main_effects
from keras_matrix.analysis.stats.blocks import Estimate
from keras_matrix.analysis.tuning import (
    Aim,
    Candidates,
    CandidateStart,
    Races,
    TuneOutcome,
    gain,
    pair_ratio,
    races,
    starts,
)
from keras_matrix.records.schema import Record
from keras_matrix.records.settings import Scalar, Settings
from keras_matrix.records.text import duration, percentage, plural, ratio_text

EQUAL, OTHERS = "fastest with equal numbers", "fastest of all, with other numbers"
AGAINST_DEFAULT = "time against the default"
COST_NAMES = {Aim.SAMPLE: "time of a sample", Aim.LATENCY: "time of a step", Aim.JOB: "time of the job"}


@dataclass(frozen=True, slots=True)
class CandidateUse:
    """How to use a candidate: the command that measures it, and its matrix entry; empty if it can have none."""

    command: str
    entry: str


@dataclass(frozen=True, slots=True)
class RaceOutcome:
    """What a race left: its records, its candidates, and what is stored of its end.

    `confirmed_from` is the first repeat of the confirmation. `balanced` has the value of each varying setting of the
    candidates of the full product, `impossible` the points that no cell can have. `use_of` says how to use one.
    """

    records: Sequence[Record]
    candidates: Candidates
    run_id: str
    confirmed_from: int | None
    elapsed_s: float
    budget_s: float
    balanced: Mapping[str, Mapping[str, str]]
    impossible: Mapping[str, str]
    untried: Sequence[str]
    use_of: Callable[[Settings], CandidateUse]


@dataclass(frozen=True, slots=True)
class RaceAnswer:
    """The answer of one race. Undecided, `name` is only the leader, and any of `tied` may be the best.

    `tied` are those left, without the leader. `gain` is winner / default over fresh blocks; `no_gain` says why it is
    missing. `leader_excess` is how much slower than the best the leader may be; None if nothing is known yet.
    """

    title: str
    cell_id: str
    name: str
    decided: bool
    tied: tuple[str, ...]
    leader_excess: float | None
    other_numbers: tuple[str, ...]
    gain: Estimate | None
    no_gain: str
    use: CandidateUse
    remarks: tuple[str, ...] = ()

    @property
    def gain_text(self) -> str:
        """The gain with its interval, or why there is none."""
        if self.gain is None:
            return self.no_gain
        interval = "" if self.gain.bounds else ", no interval"
        return f"{change_text(self.gain)}{interval}, in {plural(self.gain.count, 'fresh block')}"

    @property
    def comment(self) -> list[str]:
        """The answer as lines of a comment."""
        head = f"{self.title}{'' if self.decided else ', undecided'}: {self.name}"
        lines = [head, f"{AGAINST_DEFAULT}: {self.gain_text}"]
        return lines + [f"numbers differ: {', '.join(self.other_numbers)}"] * bool(self.other_numbers)


@dataclass(frozen=True, slots=True)
class CandidateRow:
    """A candidate: its median cost in seconds over its blocks, its ratio to the leader of all, and how it ended.

    `ratios` are those of its blocks, by their number from 1. `left_after` is the block after which it left; None for
    one that was measured to the end.
    """

    cell_id: str
    name: str
    backend: str
    cost_s: float | None
    ratio: Estimate | None
    ratios: Mapping[int, float]
    left_after: int | None
    state: str
    is_default: bool
    other_numbers: tuple[str, ...]
    start: CandidateStart | None


@dataclass(frozen=True, slots=True)
class TuneView:
    """The answers, the equal one first; the ranking, and who failed; effects of settings, and what was not tried."""

    workload: str
    cost_name: str
    default: str
    run_id: str
    answers: tuple[RaceAnswer, ...]
    rows: tuple[CandidateRow, ...]
    failed: Mapping[str, str]
    effects: tuple[MainEffect, ...]
    impossible: Mapping[str, str]
    untried: tuple[str, ...]
    blocks: int
    within: float
    delta: float
    is_job: bool
    spent: str
    advice: tuple[str, ...]

    @property
    def effect_rows(self) -> list[list[str]]:
        """The effects: a value, the one instead of it, the ratio of times, the range of single pairs, their number."""
        return [
            [
                effect.value,
                effect.reference,
                bracketed(effect.ratio),
                f"{ratio_text(effect.least)} to {ratio_text(effect.most)}",
                str(effect.pairs),
            ]
            for effect in self.effects
        ]

    @property
    def failed_texts(self) -> list[str]:
        """Who left without being measured to the end, each with its reason."""
        return [f"{name}: {reason}" for name, reason in self.failed.items()]

    @property
    def impossible_texts(self) -> list[str]:
        """The combinations that no cell can have, each with its reason."""
        return [f"{name}: {reason}" for name, reason in self.impossible.items()]

    @property
    def outcome(self) -> TuneOutcome:
        """Whether every race has its answer."""
        if not self.answers:
            return TuneOutcome.FAILED
        return TuneOutcome.DECIDED if all(answer.decided for answer in self.answers) else TuneOutcome.UNDECIDED

    @property
    def head(self) -> str:
        """The verdict in a line."""
        return f"{self.workload}: {self.outcome} after {plural(self.blocks, 'block')} of {self.spent}"

    @property
    def promise(self) -> str:
        """What a decided answer promises."""
        share, within = percentage(1 - self.delta), percentage(self.within)
        return f"a decided answer is within {within} of the best with probability {share}, in {self.cost_name}"


def tune_view(outcome: RaceOutcome) -> TuneView:
    """Return what is shown of a race."""
    candidates = outcome.candidates
    state = races(outcome.records, candidates, before=outcome.confirmed_from)
    answers = tuple(_answers(outcome, state))
    settings = {cell_id: values for cell_id, values in outcome.balanced.items() if cell_id not in state.failed}
    return TuneView(
        candidates.settings[candidates.default].workload,
        COST_NAMES[candidates.objective.aim],
        candidates.default,
        outcome.run_id,
        answers,
        tuple(_rows(outcome, state)),
        {
            candidates.names[cell_id]: f"block {failure.block}: {failure.reason}"
            for cell_id, failure in state.failed.items()
        },
        main_effects(settings, state.blocks),
        outcome.impossible,
        tuple(outcome.untried),
        len(state.blocks),
        candidates.rule.within,
        candidates.rule.delta,
        candidates.objective.aim is Aim.JOB,
        f"{plural(len(candidates.settings), 'candidate')} in {duration(outcome.elapsed_s)}",
        tuple(_advice(outcome, answers)),
    )


def _answers(outcome: RaceOutcome, state: Races) -> list[RaceAnswer]:
    """Return the answer of the race with equal numbers, and that of all if another candidate leads it."""
    answers = [_answer(outcome, state.equal, EQUAL)] if state.equal else []
    overall = state.overall
    if overall is not None and outcome.candidates.other_numbers(overall.leader):
        answers.append(_answer(outcome, overall, OTHERS))
    return answers


def _answer(outcome: RaceOutcome, race: Race, title: str) -> RaceAnswer:
    candidates, leader = outcome.candidates, race.leader
    estimate = None
    no_gain = "it is the default" if leader == candidates.default else "the default was not measured beside it"
    if leader != candidates.default and outcome.confirmed_from is not None:
        estimate = gain(outcome.records, candidates, leader, outcome.confirmed_from)
    names = candidates.names
    averages = [names[cell_id] for cell_id in race.better_on_average]
    return RaceAnswer(
        title,
        leader,
        names[leader],
        race.decided,
        tuple(names[cell_id] for cell_id in race.tied if cell_id != leader),
        race.leader_excess,
        candidates.other_numbers(leader),
        estimate,
        no_gain,
        outcome.use_of(candidates.settings[leader]),
        (f"its typical process is the fastest, but on average {', '.join(averages)} is",) if averages else (),
    )


def _rows(outcome: RaceOutcome, state: Races) -> list[CandidateRow]:
    race = state.overall or state.equal
    if race is None:
        return []
    candidates, drops = outcome.candidates, _drops(state)
    first_steps = starts(outcome.records, candidates) if candidates.objective.aim is Aim.JOB else {}
    rows = []
    for cell_id, name in candidates.names.items():
        costs = {number: block[cell_id] for number, block in enumerate(state.blocks, 1) if cell_id in block}
        if not costs:
            continue
        ratios = {
            number: cost / state.blocks[number - 1][race.leader]
            for number, cost in costs.items()
            if race.leader in state.blocks[number - 1]
        }
        drop = drops.get(cell_id)
        rows.append(
            CandidateRow(
                cell_id,
                name,
                candidates.settings[cell_id].backend,
                statistics.median(costs.values()),
                None if cell_id == race.leader else pair_ratio(state.blocks, cell_id, race.leader, candidates.rule),
                ratios,
                drop.block if drop else None,
                _state(cell_id, state, drop),
                cell_id == candidates.default,
                candidates.other_numbers(cell_id),
                first_steps.get(cell_id),
            )
        )
    return sorted(rows, key=lambda row: (row.ratio.centre if row.ratio else 1.0, row.name))


def _drops(state: Races) -> dict[str, Drop]:
    """Return the drops of the candidates that no race has any more, the later one of two."""
    both = [race for race in (state.equal, state.overall) if race is not None]
    left = {cell_id for race in both for cell_id in race.tied}
    drops = sorted((drop for race in both for drop in race.dropped), key=lambda drop: drop.block)
    return {drop.candidate: drop for drop in drops if drop.candidate not in left}


def _state(cell_id: str, state: Races, drop: Drop | None) -> str:
    if drop is not None:
        return f"dropped after block {drop.block}"
    left_in = [race for race in (state.equal, state.overall) if race is not None and cell_id in race.tied]
    leads = [race for race in left_in if race.leader == cell_id]
    if leads:
        return "fastest" if all(race.decided for race in leads) else "leads"
    return "tied" if all(race.decided for race in left_in) else "left"


def _advice(outcome: RaceOutcome, answers: Sequence[RaceAnswer]) -> list[str]:
    """Return what to try with more time."""
    lines = []
    if any(not answer.decided for answer in answers):
        lines.append(f"allow more time: --budget {_longer(outcome.budget_s)}, or a wider --within")
    if outcome.untried:
        lines.append(f"try the {plural(len(outcome.untried), 'candidate')} left out by --most")
    for answer in answers:
        lines += [f"try {key} beyond {value}, the last value tried" for key, value in _at_edge(outcome, answer.cell_id)]
    return list(dict.fromkeys(lines))


def _longer(budget_s: float) -> str:
    return f"{round(2 * budget_s / 60)}m" if budget_s >= 60 else f"{round(2 * budget_s)}s"


def _at_edge(outcome: RaceOutcome, cell_id: str) -> list[tuple[str, Scalar]]:
    """Return the settings of which a winner has the largest of several numbers."""
    edges: list[tuple[str, Scalar]] = []
    for key in outcome.balanced.get(cell_id, ()):
        numbers = [
            value
            for other in outcome.balanced
            if isinstance(value := getattr(outcome.candidates.settings[other], key, None), int)
            and not isinstance(value, bool)
        ]
        own = getattr(outcome.candidates.settings[cell_id], key, None)
        if len(set(numbers)) > 1 and own == max(numbers):
            edges.append((key, own))
    return edges

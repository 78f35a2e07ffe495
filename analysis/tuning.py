"""Which of several candidates is the fastest, from the records of a run: their costs, their leagues, and who has left.

A candidate is a cell. Its cost in a block is the time of a sample, that of a step, or that of a whole job; all
candidates of a block are measured interleaved. `analysis.racing` decides from these costs who stays.

Settings such as `jit` change how a step is computed, not what: candidates that differ in nothing else are of one
league, whose numbers are equal. There are two races over the same processes: one within the league of the default, and
one over all candidates, if there are others. What is faster with other numbers is never declared the same.

Guarantee: pure; a function of the records alone, so that a continued run, a report and a test give one answer. A
candidate with a block in which it was not measured leaves the race, whatever its other processes show: those that were
quick, or used little memory, would be a biased sample. Limit: that numbers are equal rests on the settings and on the
counted facts of `analysis.comparison.same_work`, not on a comparison of weights.
"""

from __future__ import annotations

import statistics
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from enum import StrEnum

from keras_matrix.analysis.comparison.same_work import STEPS, differing
from keras_matrix.analysis.racing import Race, RaceRule, race
from keras_matrix.analysis.stats.blocks import Estimate, of_logs, paired_logs
from keras_matrix.records.codec import canonical
from keras_matrix.records.identity import assignment, named
from keras_matrix.records.schema import MEASURED, Record
from keras_matrix.records.settings import Scalar, Settings
from keras_matrix.records.store import latest_attempts
from keras_matrix.records.text import bytes_text

# How a step is computed and measured. All other settings, and all parameters, change the work or its numbers.
HOW = frozenset(
    {"backend", "jit", "eager", "steps_per_execution", "feed", "threads", "cpus", "compile_cache", "clocks", "autotune"}
    | {"freed_memory", "set_by_matrix", "page_cache", "input_timers", "devices", "remat", "implementation", "env"}
    | {"call", "outputs", "torch_compile", "xla_flags"}
)
# Facts of a process in which candidates of one league differ because their settings do.
VARIED = frozenset({STEPS, "steps per execution", "CPUs", "threads of an operation", "compile modes"})


class TuneOutcome(StrEnum):
    """How the races ended, all of them together."""

    DECIDED = "decided"
    UNDECIDED = "undecided"
    FAILED = "all candidates failed"


class Aim(StrEnum):
    """What is to be least."""

    SAMPLE = "sample"
    LATENCY = "latency"
    JOB = "job"


@dataclass(frozen=True, slots=True)
class Objective:
    """What is to be least, and how much memory a process may use at most.

    `job_samples` are the samples of a whole job, whose start counts: importing, building, tracing and compiling.
    """

    aim: Aim = Aim.SAMPLE
    job_samples: int = 0
    most_memory_bytes: int | None = None

    def cost(self, record: Record) -> float | None:
        """Return the cost of a process in seconds; None if it was not measured."""
        step_s = record.times.step_time_s
        if not step_s or self.aim is Aim.LATENCY:
            return step_s or None
        sample_s = step_s / step_samples(record)
        if self.aim is Aim.SAMPLE:
            return sample_s
        start_s = start_time_s(record)
        return None if start_s is None else start_s + self.job_samples * sample_s

    def too_large(self, record: Record) -> str | None:
        """Return why a process used too much memory; None if it did not, or if that is not known."""
        is_cpu = record.settings.device == "cpu"
        peak = record.memory.peak_host_memory_bytes if is_cpu else record.memory.peak_device_memory_bytes
        if self.most_memory_bytes is None or peak is None or peak <= self.most_memory_bytes:
            return None
        return f"too much memory: a peak of {bytes_text(peak)}, at most {bytes_text(self.most_memory_bytes)}"


def step_samples(record: Record) -> int:
    """Return the samples of a step; 1 for a program, whose batch no setting changes."""
    if record.settings.script:
        return 1
    return (record.resolved.batch_size if record.resolved else None) or record.settings.batch_size


def start_time_s(record: Record) -> float | None:
    """Return what a process takes up to the end of its first step: import, build, trace, compile; None if unknown."""
    times = record.times
    if times.first_step_time_s is None:
        return None
    return times.first_step_time_s + (times.import_time_s or 0.0) + (times.build_time_s or 0.0)


@dataclass(frozen=True, slots=True)
class Candidates:
    """The candidates of a race, by cell_id, and what they are raced for.

    `default` is the one that the winners are compared with. `names` has the text of each, of the settings in which they
    differ. `rule` has the probability of an error of all answers together; each race sets its number of candidates.
    """

    settings: Mapping[str, Settings]
    names: Mapping[str, str]
    default: str
    objective: Objective
    rule: RaceRule

    def other_numbers(self, cell_id: str) -> tuple[str, ...]:
        """Return the settings by which the numbers of a candidate differ from those of the default."""
        values, usual = _numbers(self.settings[cell_id]), _numbers(self.settings[self.default])
        keys = [key for key in {**usual, **values} if canonical(values.get(key)) != canonical(usual.get(key))]
        return tuple(assignment(key, values.get(key)) for key in keys)

    @property
    def race_rule(self) -> RaceRule:
        """The rule of each race: if there are two, each has half of the probability of an error."""
        return replace(self.rule, delta=self.rule.delta / (2 if self.has_others else 1))

    @property
    def has_others(self) -> bool:
        """Whether some candidates have other numbers than the default, so that there is a second race over all."""
        return len(self.equal) < len(self.settings)

    @property
    def equal(self) -> list[str]:
        """The candidates whose numbers are those of the default."""
        return [cell_id for cell_id in self.settings if not self.other_numbers(cell_id)]

    def leagues(self, cell_ids: Iterable[str]) -> list[list[str]]:
        """Return candidates by league; the default is the first of its own."""
        leagues: dict[str, list[str]] = {}
        for cell_id in sorted(cell_ids, key=lambda cell_id: cell_id != self.default):
            leagues.setdefault(canonical(_numbers(self.settings[cell_id])), []).append(cell_id)
        return list(leagues.values())


def _numbers(settings: Settings) -> dict[str, Scalar]:
    return {key: value for key, value in named(settings).items() if key not in HOW}


@dataclass(frozen=True, slots=True)
class Failure:
    """Why a candidate left without being measured to the end, and in which block, from 1."""

    block: int
    reason: str


@dataclass(frozen=True, slots=True)
class Races:
    """The races after some blocks: `equal` within the league of the default, `overall` over all candidates.

    `blocks` has the costs of the measured candidates by block. `overall` is None if all numbers are equal. A race of
    which no candidate is left is None, too.
    """

    blocks: tuple[Mapping[str, float], ...]
    failed: Mapping[str, Failure]
    equal: Race | None
    overall: Race | None

    @property
    def undecided(self) -> list[Race]:
        """The races that have no answer yet."""
        return [one for one in (self.equal, self.overall) if one is not None and not one.decided]

    @property
    def to_measure(self) -> frozenset[str]:
        """The candidates of the next block: those that are left in a race without an answer."""
        return frozenset(cell_id for one in self.undecided for cell_id in one.tied)


def races(records: Iterable[Record], candidates: Candidates, before: int | None = None) -> Races:
    """Return the races after the blocks of these repeats, of those below `before` alone."""
    attempts = [
        record
        for record in latest_attempts(records)
        if record.cell_id in candidates.settings and (before is None or record.repeat < before)
    ]
    failed = _failed(attempts, candidates)
    costs: dict[int, dict[str, float]] = {record.repeat: {} for record in attempts}
    for record in attempts:
        if record.cell_id not in failed and (cost := candidates.objective.cost(record)):
            costs[record.repeat][record.cell_id] = cost
    blocks = tuple(costs[repeat] for repeat in sorted(costs))
    rule = candidates.race_rule
    return Races(
        blocks,
        failed,
        race_of(blocks, candidates.equal, rule),
        race_of(blocks, list(candidates.settings), rule) if candidates.has_others else None,
    )


def race_of(blocks: Sequence[Mapping[str, float]], cell_ids: Collection[str], rule: RaceRule) -> Race | None:
    """Return the race among these candidates; None if there is no cost of one."""
    own = [{cell_id: cost for cell_id, cost in block.items() if cell_id in cell_ids} for block in blocks]
    return race(own, replace(rule, candidates=len(cell_ids)))


def _failed(attempts: Iterable[Record], candidates: Candidates) -> dict[str, Failure]:
    """Return the candidates that were not measured in a block, use too much memory, or did other work."""
    failed: dict[str, Failure] = {}
    by_candidate: dict[str, list[Record]] = {}
    for record in sorted(attempts, key=lambda record: record.repeat):
        by_candidate.setdefault(record.cell_id, []).append(record)
        if record.cell_id not in failed and (reason := _problem(record, candidates.objective)):
            failed[record.cell_id] = Failure(record.repeat + 1, reason)
    for members in candidates.leagues(cell_id for cell_id in by_candidate if cell_id not in failed):
        for cell_id, reason in _other_work(members, by_candidate, candidates.names).items():
            failed[cell_id] = Failure(1, reason)
    return failed


def _problem(record: Record, objective: Objective) -> str | None:
    if record.status not in MEASURED:
        return f"{record.status}: {record.reason}" if record.reason else str(record.status)
    if objective.cost(record) is None:
        return "not timed" if not record.times.step_time_s else "the time of its first step is not known"
    return objective.too_large(record)


def _other_work(
    cell_ids: Sequence[str], records: Mapping[str, Sequence[Record]], names: Mapping[str, str]
) -> dict[str, str]:
    """Return why candidates of one league did other work than the first of them that is proven to do its own."""
    reference, problems = dict[str, Sequence[Record]](), dict[str, str]()
    for cell_id in cell_ids:
        own = {names[cell_id]: records[cell_id]}
        if reason := differing(reference | own, varied=VARIED):
            problems[cell_id] = f"other work: {reason}"
        reference = reference or ({} if reason else own)
    return problems


@dataclass(frozen=True, slots=True)
class CandidateStart:
    """What a process takes up to the end of its first step, and from which step on it is ahead of the default.

    `break_even_step` counts steps of the default's batch: 0 for a candidate that is ahead at once, None for one that
    never is.
    """

    start_s: float
    break_even_step: int | None


def starts(records: Iterable[Record], candidates: Candidates) -> dict[str, CandidateStart]:
    """Return the start of each measured candidate, the median over its processes."""
    by_candidate: dict[str, list[Record]] = {}
    for record in latest_attempts(records):
        is_timed = start_time_s(record) is not None and record.times.step_time_s
        if record.cell_id in candidates.settings and record.status in MEASURED and is_timed:
            by_candidate.setdefault(record.cell_id, []).append(record)
    figures = {
        cell_id: (
            statistics.median(start_time_s(record) or 0.0 for record in own),
            statistics.median((record.times.step_time_s or 0.0) / step_samples(record) for record in own),
        )
        for cell_id, own in by_candidate.items()
    }
    if candidates.default not in figures:
        return {cell_id: CandidateStart(start_s, None) for cell_id, (start_s, _) in figures.items()}
    usual_start_s, usual_sample_s = figures[candidates.default]
    samples = step_samples(by_candidate[candidates.default][0])
    return {
        cell_id: CandidateStart(start_s, _break_even(start_s - usual_start_s, (usual_sample_s - sample_s) * samples))
        for cell_id, (start_s, sample_s) in figures.items()
    }


def _break_even(later_s: float, gained_s: float) -> int | None:
    """Return after how many steps a candidate is ahead that starts `later_s` later and gains `gained_s` a step."""
    if later_s <= 0 <= gained_s:
        return 0
    return int(later_s / gained_s) + 1 if gained_s > 0 else None


def gain(records: Iterable[Record], candidates: Candidates, winner: str, first_repeat: int) -> Estimate | None:
    """Return winner / default over the blocks from `first_repeat` on, which no race has seen; None without one.

    It is the estimate of any comparison: Student's interval over the log ratios of paired blocks.
    """
    costs: dict[str, dict[int, float]] = {winner: {}, candidates.default: {}}
    for record in latest_attempts(records):
        is_fresh = record.repeat >= first_repeat and record.status in MEASURED
        if is_fresh and record.cell_id in costs and (cost := candidates.objective.cost(record)):
            costs[record.cell_id][record.repeat] = cost
    return of_logs(list(paired_logs(costs[winner], costs[candidates.default]).values()))


def pair_ratio(blocks: Sequence[Mapping[str, float]], cell_id: str, other: str, rule: RaceRule) -> Estimate | None:
    """Return the cost of a candidate divided by that of another, over the blocks of both, as a race of the two has it.

    Each end of the interval holds with 1 - `delta` for this pair, however many blocks were looked at.
    """
    pair = race_of([block for block in blocks if cell_id in block and other in block], (cell_id, other), rule)
    if pair is None:
        return None
    ratio = pair.dropped[0].ratio if pair.dropped else pair.standings[0].ratio
    is_inverse = pair.leader == cell_id
    if ratio is None or not is_inverse:
        return ratio
    low, high = (None if end is None else 1 / end for end in (ratio.high, ratio.low))
    return replace(ratio, centre=1 / ratio.centre, low=low, high=high)

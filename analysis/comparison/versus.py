"""Base against new: one comparison a cell, and the verdict on all of them.

Cells of one session were measured alternately and are paired by block; the interval is over blocks. Cells of two
sessions also differ by boot, driver and hour: their interval needs the spread between sessions from the stored history,
and without it there is no interval. Cells that did not do the same work on the same machine are not compared, with the
reason; a cell that fails more often in new than in base counts as not measured, whatever its other processes show.

If some processes of a cell crash, the others are a biased sample: those that were quick, or used little memory. Their
ratio is shown, but it does not pass a gate.

Guarantee: infrastructure failures are not the cell's and are not counted. Limits: the cause of a failure is not known,
nor whether one more failure is due to chance; a gate does not pass what did not run.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace

from keras_matrix.analysis.comparison.counts import CountChange
from keras_matrix.analysis.comparison.primary_metric import without_ratio
from keras_matrix.analysis.comparison.same_work import mixed, other_keras, work_caveats
from keras_matrix.analysis.comparison.table import CellSummary, all_data, incomparable, log_ratios, summaries
from keras_matrix.analysis.history.sessions import SessionRatio
from keras_matrix.analysis.regression.gate import GateOutcome, Rule, Verdict, judge, outcome_of, overall
from keras_matrix.analysis.regression.regression_kinds import Facets, RecordPair, facets
from keras_matrix.analysis.stats.blocks import CONFIDENCE, MIN_BLOCKS, MOST_BLOCKS, Estimate, adjusted_p_values
from keras_matrix.analysis.stats.suite import SuiteRatio, per_group
from keras_matrix.records.schema import MEASURED, Record, Status
from keras_matrix.records.text import plural

Across = Callable[[Sequence[Record], Sequence[Record]], SessionRatio | None]
"""From the ok records of a cell in two sessions to the ratio new / base, None if there is no ratio."""

ACROSS_UNKNOWN = "undecided: no interval across these sessions"
VOID_LEVEL = 0.01
"""A session is void if null arms exclude 1 as often as chance alone would make them in fewer than this share."""


@dataclass(frozen=True, slots=True)
class CellComparison:
    """One cell in base and new. `ratio` is new / base of the mean step time; `reason` says why it is missing.

    `logs` are the log ratios by block; empty if base and new are of two sessions. `facets` are the other differences;
    None if the two cannot be compared. `all_data` includes blocks that were disturbed and measured again; None without
    such blocks. `failures` state in how many repeats a measured side failed, and why. `early` says that a regression
    was called with fewer blocks than its signs need (`analysis.regression.gate`).
    """

    cell_id: str
    base: CellSummary | None
    new: CellSummary | None
    logs: tuple[float, ...]
    ratio: Estimate | None
    outcome: GateOutcome
    adjusted_p: float | None
    more_blocks: int | None
    reason: str | None
    facets: Facets | None = None
    caveats: tuple[str, ...] = ()
    all_data: Estimate | None = None
    failures: tuple[str, ...] = ()
    early: bool = False

    @property
    def said(self) -> str:
        """Return the verdict as text: why it is missing, or what would decide it."""
        if self.early:
            return f"{self.outcome}, called early"
        if self.reason is not None or self.outcome is not GateOutcome.UNDECIDED:
            return self.reason or str(self.outcome)
        if self.more_blocks:
            return f"undecided: about {self.more_blocks} more repeat{'s'[: self.more_blocks > 1]} would decide it"
        if self.logs:
            return f"undecided: too near the threshold for {MOST_BLOCKS:,} repeats to decide; set another --threshold"
        return str(self.outcome)

    @property
    def either(self) -> CellSummary:
        """The cell on one side or the other."""
        cell = self.new or self.base
        assert cell is not None
        return cell


@dataclass(frozen=True, slots=True)
class NullArms:
    """Comparisons of base with a second arm of base: `count` intervals, of which `excluding` do not contain 1."""

    count: int
    excluding: int

    @property
    def expected(self) -> float:
        """How many are expected to exclude 1 by chance."""
        return self.count * (1 - CONFIDENCE)

    @property
    def probability(self) -> float:
        """The probability that chance alone excludes 1 at least as often."""
        shares = (
            math.comb(self.count, k) * (1 - CONFIDENCE) ** k * CONFIDENCE ** (self.count - k)
            for k in range(self.excluding, self.count + 1)
        )
        return min(1.0, math.fsum(shares))

    @property
    def void(self) -> bool:
        """Whether the session is void: it finds changes where there are none."""
        return self.probability < VOID_LEVEL

    @property
    def said(self) -> str:
        """The result as text."""
        text = f"{self.excluding} of {plural(self.count, 'interval')} of base against base exclude 1"
        chance = f"{self.expected:.2g} are expected by chance"
        if not self.void:
            return f"{text}; {chance}"
        return f"{text}, but {chance}: the session is void, measure again on a quieter machine"


@dataclass(frozen=True, slots=True)
class Versus:
    """All comparisons, the geometric means by backend and over all (`suite`), and the overall verdict.

    `runs` are the ids of base and new, `notes` remarks on them, if they are stored runs; `incomplete` says that files
    of them cannot be read, so that figures rest on fewer processes. `counts` are those of cells that were counted, too.
    """

    comparisons: tuple[CellComparison, ...]
    by_backend: dict[str, SuiteRatio]
    suite: SuiteRatio | None
    outcome: GateOutcome
    paired: bool
    changed: tuple[str, ...]
    runs: tuple[str, str] | None = None
    notes: tuple[str, ...] = ()
    incomplete: bool = False
    null: NullArms | None = None
    counts: Mapping[str, tuple[CountChange, ...]] = field(default_factory=dict)


def with_null(compared: Versus, base_against_base: Versus) -> Versus:
    """Return a comparison with its null arms; a void session has no verdict."""
    estimates = [comparison.ratio for comparison in base_against_base.comparisons if comparison.ratio]
    bounded = [estimate for estimate in estimates if estimate.bounds]
    null = NullArms(len(bounded), sum(estimate.excludes(1.0) for estimate in bounded))
    return replace(compared, null=null, outcome=GateOutcome.UNDECIDED if null.void else compared.outcome)


def versus(base: Iterable[Record], new: Iterable[Record], rule: Rule, ratio_across: Across | None = None) -> Versus:
    """Compare two sets of records. With `ratio_across` they are of two sessions; without, of one, paired by block."""
    before, after = summaries(base), summaries(new)
    cells = {cell_id: (before.get(cell_id), after.get(cell_id)) for cell_id in (before | after)}
    sessions_apart = ratio_across is not None
    reasons = {cell_id: _reason(*ends, sessions_apart) for cell_id, ends in cells.items()}
    able_cells = {cell_id: (before[cell_id], after[cell_id]) for cell_id, reason in reasons.items() if not reason}
    logs = (
        {}
        if ratio_across
        else {cell_id: tuple(log_ratios(ends[1], ends[0]).values()) for cell_id, ends in able_cells.items()}
    )
    verdicts = verdicts_across(ratio_across, able_cells, rule) if ratio_across else judge(logs, rule)
    unmeasured = Verdict(GateOutcome.NOT_MEASURED, None, None)
    comparisons = [
        _comparison(cell_id, ends, logs.get(cell_id, ()), verdicts.get(cell_id, unmeasured), reasons[cell_id])
        for cell_id, ends in cells.items()
    ]
    comparisons = [replace(comparison, all_data=_all_data(comparison, rule)) for comparison in comparisons]
    comparisons = [
        _with_failures(comparison, sessions_apart)
        for comparison in _with_facets(comparisons, rule, paired=not sessions_apart)
    ]
    ratio_by_backend, suite = per_group(_grouped(comparisons), rule.looks)
    return Versus(
        tuple(sorted(comparisons, key=lambda comparison: (comparison.either.settings.workload, comparison.cell_id))),
        {backend: entries for backend, entries in ratio_by_backend.items() if entries},
        suite,
        _outcome(comparisons, rule),
        not sessions_apart,
        changed((comparison.base, comparison.new) for comparison in comparisons if comparison.base and comparison.new),
    )


def _with_facets(comparisons: Sequence[CellComparison], rule: Rule, *, paired: bool) -> list[CellComparison]:
    pairs = {
        comparison.cell_id: RecordPair(
            {record.repeat: record for record in comparison.base.measured},
            {record.repeat: record for record in comparison.new.measured},
            Verdict(comparison.outcome, comparison.ratio, comparison.adjusted_p),
            paired,
        )
        for comparison in comparisons
        if comparison.base and comparison.new and not _reason(comparison.base, comparison.new, not paired)
    }
    facets_by_cell = facets(pairs, rule)
    return [replace(comparison, facets=facets_by_cell.get(comparison.cell_id)) for comparison in comparisons]


def _with_failures(comparison: CellComparison, sessions_apart: bool) -> CellComparison:
    """Return the comparison with its partial failures; if new fails more often, only a regression remains a verdict."""
    if not (comparison.base and comparison.new and comparison.base.measured and comparison.new.measured):
        return comparison
    sides = {"base": comparison.base.records, "new": comparison.new.records}
    common = (
        None
        if sessions_apart
        else {r.repeat for r in comparison.base.records} & {r.repeat for r in comparison.new.records}
    )
    failures = partial_failures(sides, common)
    with_failures = replace(comparison, failures=tuple(f"{failure}: {failure.reason}" for failure in failures))
    worse = increased_failure(failures, "new")
    if worse is None or comparison.outcome in (GateOutcome.REGRESSED, GateOutcome.NOT_MEASURED):
        return with_failures
    return replace(with_failures, outcome=GateOutcome.NOT_MEASURED, more_blocks=None, reason=f"not measured in {worse}")


def _outcome(comparisons: Sequence[CellComparison], rule: Rule) -> GateOutcome:
    """Return the overall verdict: that on the step times, unless a kind that the rule also fails on was found."""
    if any(kind in rule.also for comparison in comparisons if comparison.facets for kind in comparison.facets.kinds):
        return GateOutcome.REGRESSED
    return overall({comparison.outcome for comparison in comparisons})


def changed(pairs: Iterable[tuple[CellSummary, CellSummary]]) -> tuple[str, ...]:
    """Return the differences in software or machine between base and new, as `keras 3.14.0 -> 3.15.1`."""
    # A side without measured records has no versions.
    measured_pairs = [(base, new) for base, new in pairs if base.measured and new.measured]
    base_facts, new_facts = _facts(base for base, _ in measured_pairs), _facts(new for _, new in measured_pairs)
    return tuple(
        f"{name} {'/'.join(base_facts.get(name, ['none']))} -> {'/'.join(new_facts.get(name, ['none']))}"
        for name in sorted({*base_facts, *new_facts})
        if base_facts.get(name) != new_facts.get(name)
    )


def _facts(cells: Iterable[CellSummary]) -> dict[str, list[str]]:
    values_by_fact: dict[str, set[str]] = {}
    for record in (record for cell in cells for record in cell.measured):
        for name, version in record.versions.items():
            values_by_fact.setdefault(name, set()).add(version)
        values_by_fact.setdefault("kernel", set()).add(str(record.machine.kernel))
        values_by_fact.setdefault("host", set()).add(record.machine.host_id)
    return {name: sorted(values) for name, values in values_by_fact.items()}


def _reason(base: CellSummary | None, new: CellSummary | None, sessions_apart: bool) -> str | None:
    """Return why a cell cannot be compared, or None; `sessions_apart`: the sides are of two sessions."""
    if base is None or new is None:
        return f"only in {'new' if base is None else 'base'}"
    for name, cell in (("base", base), ("new", new)):
        if not cell.measured:
            failures_text = "; ".join(f"{status}: {reason}" for status, reason in cell.failures)
            return f"not measured in {name}: {failures_text or 'no repeat has ended'}"
        if mixture := mixed(cell.measured):
            return f"{mixture} within {name}"
        if without_ratio(cell.measured):
            return f"not comparable: {cell.figure.name} is not above zero in {name}, so it has no ratio"
    if reason := incomparable({"base": base, "new": new}, apart=sessions_apart):
        return f"not comparable: {reason}"
    return None


def verdicts_across(
    ratio_across: Across, cells: Mapping[str, tuple[CellSummary, CellSummary]], rule: Rule
) -> dict[str, Verdict]:
    """Return the verdicts on cells of two sessions by Student's p-values, as there are no blocks with signs to count.

    Only processes that ended ok count, as in the history that the spread between sessions is from.
    """
    session_ratios = {cell_id: ratio_across(_ok(base), _ok(new)) for cell_id, (base, new) in cells.items()}
    p_beyond = {
        cell_id: session_ratio.p_above(1 + rule.threshold)
        for cell_id, session_ratio in session_ratios.items()
        if session_ratio
    }
    known_p = {cell_id: value for cell_id, value in p_beyond.items() if value is not None}
    adjusted = dict(zip(known_p, adjusted_p_values(list(known_p.values())), strict=True))
    verdicts = {}
    for cell_id, session_ratio in session_ratios.items():
        ratio, p_value = session_ratio.estimate if session_ratio else None, adjusted.get(cell_id)
        outcome = outcome_of(ratio, p_value, rule.threshold, rule.level) or GateOutcome.UNDECIDED
        verdicts[cell_id] = Verdict(outcome, ratio, p_value)
    return verdicts


def _ok(cell: CellSummary) -> list[Record]:
    return [record for record in cell.records if record.status is Status.OK]


def _comparison(
    cell_id: str,
    ends: tuple[CellSummary | None, CellSummary | None],
    logs: tuple[float, ...],
    verdict: Verdict,
    reason: str | None,
) -> CellComparison:
    if reason is None and verdict.outcome is GateOutcome.NOT_MEASURED:
        untimed = (name for name, end in zip(("base", "new"), ends, strict=True) if end and end.step_time is None)
        blocks_text = f"{len(logs)} block{'s'[: len(logs) != 1]}"
        reason = f"no interval from {blocks_text} in common: needs {MIN_BLOCKS}; use --repeats 5"
        reason = next((f"no measured epoch in {name}: nothing was timed" for name in untimed), reason)
    elif reason is None and not logs and (verdict.estimate is None or verdict.estimate.low is None):
        reason = ACROSS_UNKNOWN
    base, new = ends
    return CellComparison(
        cell_id=cell_id,
        base=base,
        new=new,
        logs=logs,
        ratio=verdict.estimate,
        outcome=verdict.outcome,
        adjusted_p=verdict.adjusted_p,
        more_blocks=verdict.more_blocks,
        reason=reason,
        caveats=_caveats(*ends, across_sessions=not logs) if reason is None else _other_code(*ends),
        early=verdict.early,
    )


def _all_data(comparison: CellComparison, rule: Rule) -> Estimate | None:
    return (
        all_data(comparison.new, comparison.base, rule.looks)
        if comparison.logs and comparison.base and comparison.new
        else None
    )


def _caveats(base: CellSummary | None, new: CellSummary | None, *, across_sessions: bool) -> tuple[str, ...]:
    """Return the caveats of the comparison, then those of each side; `across_sessions`: they are of two sessions."""
    if base is None or new is None:
        return ()
    sides = {"base": base, "new": new}
    common = work_caveats({name: cell.measured for name, cell in sides.items()})
    own_caveats = [
        f"{name}: {caveat}"
        for name, cell in sides.items()
        for caveat in (*_unstable(cell, across_sessions), *cell.caveats)
    ]
    return (*common, *own_caveats)


def _other_code(base: CellSummary | None, new: CellSummary | None) -> tuple[str, ...]:
    """Return the caveat of two cells without an interval, of which a ratio may be shown all the same."""
    if base is None or new is None:
        return ()
    caveat = other_keras({"base": base.measured, "new": new.measured})
    return () if caveat is None else (caveat,)


def _unstable(cell: CellSummary, across_sessions: bool) -> tuple[str, ...]:
    unstable = [record for record in cell.measured if record.status is Status.UNSTABLE]
    if not unstable:
        return ()
    counts_note = "; they are in the time, but not in the ratio of two sessions" if across_sessions else ""
    return (f"unstable in {len(unstable)} of {len(cell.measured)} processes{counts_note}: {unstable[0].reason}",)


def _grouped(comparisons: Sequence[CellComparison]) -> Mapping[str, Mapping[str, Mapping[int, float]]]:
    """Return backend -> cell -> block -> log ratio, for the geometric means; empty if new fails more often."""
    logs_by_backend: dict[str, dict[str, dict[int, float]]] = {}
    for comparison in comparisons:
        if comparison.logs and comparison.base and comparison.new:
            has_failed = comparison.failures and comparison.outcome is GateOutcome.NOT_MEASURED
            logs = {} if has_failed else log_ratios(comparison.new, comparison.base)
            logs_by_backend.setdefault(comparison.either.settings.backend, {})[comparison.cell_id] = logs
    return logs_by_backend


@dataclass(frozen=True, slots=True)
class PartialFailure:
    """Failures of one side with one status: in `count` of its `of` repeats, with the reason of the first."""

    side: str
    status: Status
    count: int
    of: int
    reason: str | None

    def __str__(self) -> str:
        """Return the failure as text, without the reason."""
        return f"{self.side}: {self.status} in {self.count} of {self.of} repeats"


def partial_failures(
    sides: Mapping[str, Sequence[Record]], repeats: Collection[int] | None = None
) -> list[PartialFailure]:
    """Return the failures of these sides by status; `repeats` are those that count, None for all.

    The records are the valid attempts, one a repeat.
    """
    failures = []
    for side, records in sides.items():
        tried_records = [
            r for r in records if r.status is not Status.INFRA and (repeats is None or r.repeat in repeats)
        ]
        reasons = {record.status: record.reason for record in reversed(tried_records)}
        counts = Counter(record.status for record in tried_records if record.status not in MEASURED)
        failures += [
            PartialFailure(side, status, n, len(tried_records), reasons[status]) for status, n in sorted(counts.items())
        ]
    return failures


def increased_failure(failures: Sequence[PartialFailure], new: str) -> PartialFailure | None:
    """Return the first failure of the side `new` with a larger share of its repeats than on the other side; or None."""
    share_by_status = {failure.status: failure.count / failure.of for failure in failures if failure.side != new}
    return next(
        (
            failure
            for failure in failures
            if failure.side == new and failure.count / failure.of > share_by_status.get(failure.status, 0.0)
        ),
        None,
    )

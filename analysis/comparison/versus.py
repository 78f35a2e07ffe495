"""Base against new: one comparison a cell, and the verdict on all of them.

Cells of one session were measured in turn and are paired by block; then the interval is over blocks. Cells of two
sessions differ by boot, driver and hour too: their interval needs the spread between sessions that stored history
knows, and without it there is none. What did not do the same work, on the same machine, is not compared, and says why;
what fails more often in new than in base was not measured, however its other processes did.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace

from keras_matrix.analysis.comparison.failures import increased_failure, partial_failures
from keras_matrix.analysis.comparison.primary_metric import without_ratio
from keras_matrix.analysis.comparison.same_work import mixed, work_caveats
from keras_matrix.analysis.comparison.table import CellSummary, all_data, by_repeat, incomparable, summarise
from keras_matrix.analysis.history.sessions import SessionRatio
from keras_matrix.analysis.regression.gate import Outcome, Rule, Verdict, judge, overall
from keras_matrix.analysis.regression.regression_kinds import Facets, RecordPair, facets
from keras_matrix.analysis.stats.blocks import MIN_BLOCKS, MOST_BLOCKS, Estimate, adjusted_p_values, paired_logs
from keras_matrix.analysis.stats.suite import SuiteRatio, per_group
from keras_matrix.records.schema import Record, Status

Across = Callable[[Sequence[Record], Sequence[Record]], SessionRatio | None]
"""From the records of a cell in two sessions, those that ended ok, to the ratio new / base, if it has one."""

ACROSS_UNKNOWN = "undecided: no interval across these sessions"


@dataclass(frozen=True, slots=True)
class Comparison:
    """One cell in base and new. `ratio` is new / base of the mean step time; `reason` says why there is none.

    `logs` are the log ratios by block; empty where base and new are of two sessions. `facets` is what else differs;
    None where the two cannot be compared. `all_data` counts the blocks that were disturbed and measured again too; None
    where there were none. `failures` say in how many repeats a side that has figures ended without one, and why.
    """

    cell_id: str
    base: CellSummary | None
    new: CellSummary | None
    logs: tuple[float, ...]
    ratio: Estimate | None
    outcome: Outcome
    adjusted_p: float | None
    more_blocks: int | None
    reason: str | None
    facets: Facets | None = None
    caveats: tuple[str, ...] = ()
    all_data: Estimate | None = None
    failures: tuple[str, ...] = ()

    @property
    def said(self) -> str:
        """Return the verdict in words: why there is none, or what would decide it."""
        if self.reason is not None or self.outcome is not Outcome.UNDECIDED:
            return self.reason or str(self.outcome)
        if self.more_blocks:
            return f"undecided: about {self.more_blocks} more repeat{'s'[: self.more_blocks > 1]} would decide it"
        if self.logs:
            return f"undecided: so near the threshold that {MOST_BLOCKS:,} repeats do not tell; set another --threshold"
        return str(self.outcome)

    @property
    def either(self) -> CellSummary:
        """The cell on one side or the other."""
        found = self.new or self.base
        assert found is not None
        return found


@dataclass(frozen=True, slots=True)
class Versus:
    """All comparisons, the geometric means by backend and of the whole, and the verdict on all.

    `runs` are the ids of base and new, `notes` what else must be known of them, where they are stored runs.
    """

    comparisons: tuple[Comparison, ...]
    by_backend: dict[str, SuiteRatio]
    suite: SuiteRatio | None
    outcome: Outcome
    paired: bool
    changed: tuple[str, ...]
    runs: tuple[str, str] | None = None
    notes: tuple[str, ...] = ()


def versus(base: Iterable[Record], new: Iterable[Record], rule: Rule, across: Across | None = None) -> Versus:
    """Compare two sets of records. With `across` they are of two sessions; without, of one, paired by block."""
    sides = {"base": _by_cell(base), "new": _by_cell(new)}
    cells = list(dict.fromkeys([*sides["base"], *sides["new"]]))
    apart = across is not None
    reasons = {cell: _reason(sides["base"].get(cell), sides["new"].get(cell), apart) for cell in cells}
    able = {cell: (sides["base"][cell], sides["new"][cell]) for cell in cells if not reasons[cell]}
    logs: dict[str, tuple[float, ...]] = {} if across else {cell: _logs(*ends) for cell, ends in able.items()}
    judged = _across(across, able, rule) if across else judge(logs, rule).verdicts
    comparisons = []
    for cell in cells:
        ends = sides["base"].get(cell), sides["new"].get(cell)
        verdict = judged.get(cell, Verdict(Outcome.NOT_MEASURED, None, None))
        one = _comparison(cell, ends, logs.get(cell, ()), verdict, reasons[cell])
        comparisons.append(replace(one, all_data=_all_data(one, rule)))
    comparisons = [_with_failures(one, apart) for one in _with_facets(comparisons, rule, paired=not apart)]
    by_backend, suite = per_group(_grouped(comparisons), rule.looks)
    return Versus(
        tuple(sorted(comparisons, key=lambda one: (one.either.settings.workload, one.cell_id))),
        {backend: found for backend, found in by_backend.items() if found},
        suite,
        _outcome(comparisons, rule),
        not apart,
        changed((one.base, one.new) for one in comparisons if one.base and one.new),
    )


def _with_facets(comparisons: Sequence[Comparison], rule: Rule, *, paired: bool) -> list[Comparison]:
    pairs = {
        one.cell_id: RecordPair(
            {record.repeat: record for record in one.base.measured},
            {record.repeat: record for record in one.new.measured},
            Verdict(one.outcome, one.ratio, one.adjusted_p),
            paired,
        )
        for one in comparisons
        if one.base and one.new and not _reason(one.base, one.new, not paired)
    }
    found = facets(pairs, rule)
    return [replace(one, facets=found.get(one.cell_id)) for one in comparisons]


def _with_failures(one: Comparison, apart: bool) -> Comparison:
    """Return the comparison with what failed in part; where new fails more often, only a regression still holds."""
    if not (one.base and one.new and one.base.measured and one.new.measured):
        return one
    sides = {"base": one.base.records, "new": one.new.records}
    common = None if apart else {r.repeat for r in one.base.records} & {r.repeat for r in one.new.records}
    found = partial_failures(sides, common)
    told = replace(one, failures=tuple(f"{way}: {way.reason}" for way in found))
    worse = increased_failure(found, "new")
    if worse is None or one.outcome in (Outcome.REGRESSED, Outcome.NOT_MEASURED):
        return told
    return replace(told, outcome=Outcome.NOT_MEASURED, more_blocks=None, reason=f"not measured in {worse}")


def _outcome(comparisons: Sequence[Comparison], rule: Rule) -> Outcome:
    """Return the verdict on all: that on the step times, unless a kind that the rule also fails on was found."""
    if any(kind in rule.also for one in comparisons if one.facets for kind in one.facets.kinds):
        return Outcome.REGRESSED
    return overall({one.outcome for one in comparisons})


def changed(pairs: Iterable[tuple[CellSummary, CellSummary]]) -> tuple[str, ...]:
    """Return what differs in software or machine between base and new, as `keras 3.14.0 -> 3.15.1`."""
    # A side without a figure says nothing of what it was made of.
    measured = [(base, new) for base, new in pairs if base.measured and new.measured]
    was, now = _facts(base for base, _ in measured), _facts(new for _, new in measured)
    return tuple(
        f"{name} {'/'.join(was.get(name, ['none']))} -> {'/'.join(now.get(name, ['none']))}"
        for name in sorted({*was, *now})
        if was.get(name) != now.get(name)
    )


def _facts(cells: Iterable[CellSummary]) -> dict[str, list[str]]:
    found: dict[str, set[str]] = {}
    for record in (record for cell in cells for record in cell.measured):
        for name, version in record.versions.items():
            found.setdefault(name, set()).add(version)
        found.setdefault("kernel", set()).add(str(record.machine.kernel))
        found.setdefault("host", set()).add(record.machine.host_id)
    return {name: sorted(values) for name, values in found.items()}


def _by_cell(records: Iterable[Record]) -> dict[str, CellSummary]:
    found: dict[str, list[Record]] = {}
    for record in records:
        found.setdefault(record.cell_id, []).append(record)
    return {cell: summarise(some) for cell, some in found.items()}


def _reason(base: CellSummary | None, new: CellSummary | None, apart: bool) -> str | None:
    """Return why a cell cannot be compared, or None; `apart` where the sides are of two sessions."""
    if base is None or new is None:
        return f"only in {'new' if base is None else 'base'}"
    for name, cell in (("base", base), ("new", new)):
        if not cell.measured:
            told = "; ".join(f"{status}: {reason}" for status, reason in cell.failures)
            return f"not measured in {name}: {told or 'no repeat has ended'}"
        if found := mixed(cell.measured):
            return f"{found} within {name}"
        if without_ratio(cell.measured):
            return f"not comparable: {cell.figure.name} is not above zero in {name}, and no ratio can be drawn of that"
    if reason := incomparable({"base": base, "new": new}, apart=apart):
        return f"not comparable: {reason}"
    return None


def _logs(base: CellSummary, new: CellSummary) -> tuple[float, ...]:
    return tuple(paired_logs(by_repeat(new), by_repeat(base)).values())


def _across(across: Across, cells: Mapping[str, tuple[CellSummary, CellSummary]], rule: Rule) -> dict[str, Verdict]:
    """Judge cells of two sessions by Student's p-values: there are no blocks whose signs could be counted.

    Only processes that ended ok count, as in the history from which the spread between sessions is known.
    """
    found = {cell: across(_ok(base), _ok(new)) for cell, (base, new) in cells.items()}
    beyond = {cell: one.p_above(1 + rule.threshold) for cell, one in found.items() if one}
    p = {cell: value for cell, value in beyond.items() if value is not None}
    adjusted = dict(zip(p, adjusted_p_values(list(p.values())), strict=True))
    return {cell: _verdict_across(one, adjusted.get(cell), rule) for cell, one in found.items()}


def _ok(cell: CellSummary) -> list[Record]:
    return [record for record in cell.records if record.status is Status.OK]


def _verdict_across(found: SessionRatio | None, adjusted_p: float | None, rule: Rule) -> Verdict:
    ratio = found.estimate if found else None
    if ratio is None or ratio.low is None or ratio.high is None or adjusted_p is None:
        return Verdict(Outcome.UNDECIDED, ratio, None)
    if ratio.high <= 1 + rule.threshold:
        return Verdict(Outcome.NO_WORSE, ratio, adjusted_p)
    regressed = ratio.low > 1 + rule.threshold and adjusted_p <= rule.level
    return Verdict(Outcome.REGRESSED if regressed else Outcome.UNDECIDED, ratio, adjusted_p)


def _comparison(
    cell_id: str,
    ends: tuple[CellSummary | None, CellSummary | None],
    logs: tuple[float, ...],
    verdict: Verdict,
    reason: str | None,
) -> Comparison:
    if reason is None and verdict.outcome is Outcome.NOT_MEASURED:
        reason = _too_few(ends, len(logs))
    elif reason is None and not logs and (verdict.estimate is None or verdict.estimate.low is None):
        reason = ACROSS_UNKNOWN
    base, new = ends
    return Comparison(
        cell_id=cell_id,
        base=base,
        new=new,
        logs=logs,
        ratio=verdict.estimate,
        outcome=verdict.outcome,
        adjusted_p=verdict.adjusted_p,
        more_blocks=verdict.more_blocks,
        reason=reason,
        caveats=_caveats(*ends) if reason is None else (),
    )


def _all_data(one: Comparison, rule: Rule) -> Estimate | None:
    return all_data(one.new, one.base, rule.looks) if one.logs and one.base and one.new else None


def _caveats(base: CellSummary | None, new: CellSummary | None) -> tuple[str, ...]:
    """Return what is doubtful about the two sides beside each other, then about each."""
    if base is None or new is None:
        return ()
    sides = {"base": base, "new": new}
    found = work_caveats({name: cell.measured for name, cell in sides.items()})
    own = [f"{name}: {caveat}" for name, cell in sides.items() for caveat in (*_unstable(cell), *cell.caveats)]
    return (*found, *own)


def _unstable(cell: CellSummary) -> tuple[str, ...]:
    found = [record for record in cell.measured if record.status is Status.UNSTABLE]
    return (f"unstable in {len(found)} of {len(cell.measured)} processes: {found[0].reason}",) if found else ()


def _too_few(ends: tuple[CellSummary | None, CellSummary | None], blocks: int) -> str:
    """Return why the blocks that two cells have in common give no interval, and what would."""
    for name, cell in zip(("base", "new"), ends, strict=True):
        if cell is not None and cell.step_time is None:
            return f"no kept epoch in {name}: nothing was timed"
    return f"no interval from {blocks} block{'s'[: blocks != 1]} in common: it takes {MIN_BLOCKS}, as --repeats 5 gives"


def _grouped(comparisons: Sequence[Comparison]) -> Mapping[str, Mapping[str, Mapping[int, float]]]:
    """Return backend -> cell -> block -> log ratio, for the geometric means; none where new fails more often."""
    found: dict[str, dict[str, dict[int, float]]] = {}
    for one in comparisons:
        if one.logs and one.base and one.new:
            failed = one.failures and one.outcome is Outcome.NOT_MEASURED
            logs = {} if failed else paired_logs(by_repeat(one.new), by_repeat(one.base))
            found.setdefault(one.either.settings.backend, {})[one.cell_id] = dict(logs)
    return found


def percent(ratio: float) -> str:
    """Return a ratio of times as a change: `+5.2 %`, `-3.1 %`."""
    return f"{math.expm1(math.log(ratio)):+.1%}".replace("%", " %")

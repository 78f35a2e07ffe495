"""Self-test of the comparison: its results on two equal labels, and on a label with an injected slowdown.

Blocks of a cell measured under two labels are divided into disjoint comparisons of a few blocks each. For equal labels,
an interval that excludes 1 is a false alarm; with an injected slowdown, a comparison whose interval is above 1 has
detected it. Rates have Clopper and Pearson's exact interval (Biometrika 26 (1934)).

Limit: neighbouring comparisons may not be independent; they share no process, but the same hour.
"""

from __future__ import annotations

import math
import statistics
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from keras_matrix.analysis.comparison.table import log_ratios, summaries
from keras_matrix.analysis.comparison.versus import versus
from keras_matrix.analysis.regression.gate import GateOutcome, Rule, judge
from keras_matrix.analysis.regression.regression_kinds import RegressionKind
from keras_matrix.analysis.stats.blocks import CONFIDENCE, MIN_BLOCKS, of_logs
from keras_matrix.records.schema import Record

Labelled = tuple[Sequence[Record], Sequence[Record]]
"""The records of the two labels of one session."""


@dataclass(frozen=True, slots=True)
class Rate:
    """A count out of a total, with the exact 95 % interval of the share; None for a total of 0."""

    count: int
    of: int

    @property
    def share(self) -> float | None:
        """The share itself."""
        return self.count / self.of if self.of else None

    def interval(self, confidence: float = CONFIDENCE) -> tuple[float, float] | None:
        """Return Clopper and Pearson's interval."""
        from keras_matrix.analysis.stats.special import betaincinv

        if not self.of:
            return None
        tail = (1 - confidence) / 2
        low = 0.0 if self.count == 0 else float(betaincinv(self.count, self.of - self.count + 1, tail))
        high = 1.0 if self.count == self.of else float(betaincinv(self.count + 1, self.of - self.count, 1 - tail))
        return low, high

    def p_value(self, expected: float) -> float | None:
        """Return the two-sided exact binomial p-value against an expected share (twice the smaller tail)."""
        from keras_matrix.analysis.stats.special import bdtr, bdtrc

        if not self.of:
            return None
        p_below = float(bdtr(self.count, self.of, expected))
        p_above = 1.0 if self.count == 0 else float(bdtrc(self.count - 1, self.of, expected))
        return min(1.0, 2 * min(p_below, p_above))


@dataclass(frozen=True, slots=True)
class SelftestResult:
    """The results of the comparisons of one backend, or of all.

    `outside`: intervals that exclude 1. `slower`: intervals above 1. `half_width`: the median one, relative. `ratio`:
    the geometric mean of all.
    """

    name: str
    sessions: int
    outside: Rate
    slower: Rate
    half_width: float | None
    ratio: float | None


def cut(session: Labelled, block_count: int = MIN_BLOCKS) -> dict[str, list[list[float]]]:
    """Return, by backend, the log ratios of comparisons of `block_count` blocks each, in the blocks' order.

    The remaining blocks at the end of a cell are not used.
    """
    blocks_by_backend: dict[str, list[list[float]]] = {}
    for backend, logs in _logs(session):
        for start in range(0, len(logs) - block_count + 1, block_count):
            blocks_by_backend.setdefault(backend, []).append(logs[start : start + block_count])
    return blocks_by_backend


def findings(sessions: Sequence[Labelled], block_count: int = MIN_BLOCKS) -> list[SelftestResult]:
    """Return the results of all sessions by backend, and over all backends last."""
    comparisons_by_backend: dict[str, list[list[float]]] = {}
    for session in sessions:
        for backend, comparisons in cut(session, block_count).items():
            comparisons_by_backend.setdefault(backend, []).extend(comparisons)
    all_comparisons = [comparison for comparisons in comparisons_by_backend.values() for comparison in comparisons]
    comparisons_by_name = {**dict(sorted(comparisons_by_backend.items())), "all": all_comparisons}
    return [
        _finding(name, len(sessions), comparisons) for name, comparisons in comparisons_by_name.items() if comparisons
    ]


def pooled(sessions: Iterable[Labelled]) -> list[str]:
    """Return the differences in machines and versions between sessions that are summarised together, a line each."""
    facts: dict[str, set[str]] = {}
    for record in (record for session in sessions for side in session for record in side):
        facts.setdefault("machines", set()).add(record.machine.host_id)
        for name in ("keras", record.settings.backend):
            if name in record.versions:
                facts.setdefault(f"{name} versions", set()).add(record.versions[name])
    return [
        f"{name} differ among these sessions ({len(distinct) if name == 'machines' else ', '.join(sorted(distinct))}): "
        "the rates are over all of them"
        for name, distinct in facts.items()
        if len(distinct) > 1
    ]


def gate_alarms(sessions: Iterable[Labelled], rule: Rule) -> Rate:
    """Return the rate of sessions in which a gate over all cells and blocks reports a regression."""
    outcomes = []
    for session in sessions:
        logs = {f"{number} {backend}": session_logs for number, (backend, session_logs) in enumerate(_logs(session))}
        verdicts = judge(logs, rule).values()
        outcomes.append(any(verdict.outcome is GateOutcome.REGRESSED for verdict in verdicts))
    return Rate(sum(outcomes), len(outcomes))


def named(sessions: Sequence[Labelled], rule: Rule) -> dict[str, dict[RegressionKind, Rate]]:
    """Return, by backend, the rate of comparisons that report each regression kind; a cell of a session is one."""
    kinds_by_backend: dict[str, list[tuple[RegressionKind, ...]]] = {}
    for base, new in sessions:
        for comparison in versus(base, new, rule).comparisons:
            if comparison.facets:
                kinds_by_backend.setdefault(comparison.either.settings.backend, []).append(comparison.facets.kinds)
    return {
        backend: {kind: Rate(sum(kind in kinds for kinds in kind_sets), len(kind_sets)) for kind in RegressionKind}
        for backend, kind_sets in sorted(kinds_by_backend.items())
    }


def _finding(name: str, sessions: int, comparisons: Sequence[Sequence[float]]) -> SelftestResult:
    estimates = [estimate for logs in comparisons if (estimate := of_logs(logs)) is not None]
    widths = [estimate.half_width for estimate in estimates if estimate.half_width is not None]
    logs = [log for comparison in comparisons for log in comparison]
    return SelftestResult(
        name=name,
        sessions=sessions,
        outside=Rate(sum(estimate.excludes(1.0) for estimate in estimates), len(estimates)),
        slower=Rate(sum((estimate.low or 0.0) > 1 for estimate in estimates), len(estimates)),
        half_width=statistics.median(widths) if widths else None,
        ratio=math.exp(statistics.fmean(logs)) if logs else None,
    )


def _logs(session: Labelled) -> Iterable[tuple[str, list[float]]]:
    base, new = map(summaries, session)
    for cell in base:
        if cell in new:
            logs = log_ratios(new[cell], base[cell])
            yield base[cell].settings.backend, [logs[block] for block in sorted(logs)]

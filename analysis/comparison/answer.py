"""The answer of a run in one sentence: which backend is fastest in how many rows, and the ratio over all rows.

It counts the verdicts of the table and takes the geometric means of `analysis.stats.suite`; it computes no
figure of its own. Guarantee: pure; terminal, report, JSON and Python show this value, so that they cannot differ.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, replace

from keras_matrix.analysis.comparison.primary_metric import STEP_TIME
from keras_matrix.analysis.comparison.ratios import bracketed
from keras_matrix.analysis.comparison.table import Row, in_order
from keras_matrix.analysis.stats.blocks import Estimate
from keras_matrix.analysis.stats.suite import Suite
from keras_matrix.records.text import seconds

MOST_NAMED = 3  # workloads in a title


@dataclass(frozen=True, slots=True)
class MeanRatio:
    """The geometric mean, over `rows` rows of a league, of the time on the leading backend over that on `against`."""

    league: str
    backend: str
    against: str
    ratio: Estimate
    rows: int


@dataclass(frozen=True, slots=True)
class Answer:
    """What a run shows: `text` is the sentence, the other fields are what it states.

    `fastest` counts by backend the rows that name it. The other rows are `undecided` (compared, but none is named),
    `not_comparable`, or have `nothing_to_compare`. `lowest` counts by backend the undecided rows in which it has the
    lowest figure, which is no verdict. `means` are empty for fewer than two rows.
    """

    text: str
    rows: int
    fastest: dict[str, int]
    undecided: int
    not_comparable: int
    nothing_to_compare: int
    lowest: dict[str, int]
    means: tuple[MeanRatio, ...]


def answer(rows: Sequence[Row], suites: Sequence[Suite]) -> Answer:
    """Return the answer of a table with these means; of one without rows it says that nothing was measured."""
    undecided = [row for row in rows if row.fastest is None and row.lowest is not None]
    not_comparable = sum(row.verdict.startswith("not comparable") for row in rows)
    fastest = _counted([row.fastest for row in rows if row.fastest])
    counts = Answer(
        text="",
        rows=len(rows),
        fastest=fastest,
        undecided=len(undecided),
        not_comparable=not_comparable,
        nothing_to_compare=len(rows) - sum(fastest.values()) - len(undecided) - not_comparable,
        lowest=_counted([row.lowest for row in undecided if row.lowest]),
        means=_means(suites),
    )
    return replace(counts, text=_text(rows, counts))


def subject(rows: Sequence[Row]) -> str:
    """Return what a table compares, such as `cifar10_cnn and lstm on tensorflow, jax and torch`; empty without rows."""
    workloads = list(dict.fromkeys(cell.settings.workload for row in rows for cell in row.cells.values()))
    if not workloads:
        return ""
    named = _listed(workloads) if len(workloads) <= MOST_NAMED else f"{len(workloads)} workloads"
    return f"{named} on {_listed(in_order(name for row in rows for name in row.cells))}"


def _means(suites: Sequence[Suite]) -> tuple[MeanRatio, ...]:
    return tuple(
        MeanRatio(league.league, league.against, backend, _inverse(ratio.estimate), len(ratio.workloads))
        for league in suites
        for backend, ratio in league.ratios.items()
        if len(ratio.workloads) > 1
    )


def _inverse(estimate: Estimate) -> Estimate:
    low, high = (None if end is None else 1 / end for end in (estimate.high, estimate.low))
    return Estimate(1 / estimate.centre, low, high, estimate.count, estimate.method)


def _counted(names: Sequence[str]) -> dict[str, int]:
    """Return how often each name occurs, the most frequent first, then in the order of backends."""
    counts = Counter(names)
    return dict(sorted(((name, counts[name]) for name in in_order(counts)), key=lambda item: -item[1]))


def _text(rows: Sequence[Row], counts: Answer) -> str:
    if not any(cell.measured for row in rows for cell in row.cells.values()):
        return "no cell was measured" if rows else "nothing was measured yet"
    if len(rows) == 1:
        return _of_one_row(rows[0])
    first = _fastest_text(rows, counts) if counts.fastest else _lowest_text(counts)
    missing = {
        "undecided": counts.undecided if counts.fastest else 0,
        "not comparable": counts.not_comparable,
    }
    parts = [first, *(f"{count} {_is(count)} {name}" for name, count in missing.items() if count)]
    if counts.nothing_to_compare and counts.nothing_to_compare < len(rows):
        has = "has" if counts.nothing_to_compare == 1 else "have"
        parts.append(f"{counts.nothing_to_compare} {has} nothing to compare")
    return "; ".join(part for part in [*parts, *_mean_texts(counts)] if part)


def _fastest_text(rows: Sequence[Row], counts: Answer) -> str:
    timed = any(cell.figure == STEP_TIME for row in rows if row.fastest for cell in row.cells.values())
    (name, count), *others = counts.fastest.items()
    first = f"{name} is {'fastest' if timed else 'best'} in {count} of {counts.rows} rows"
    return ", ".join([first, *(f"{other} in {count}" for other, count in others)])


def _lowest_text(counts: Answer) -> str:
    """Return what is known of a table in which no row names a fastest."""
    if not counts.undecided:
        return f"nothing to compare in {counts.rows} rows" if counts.nothing_to_compare == counts.rows else ""
    (name, count), *others = counts.lowest.items()
    leading = ", ".join(
        [f"{name} has the lowest figure in {count}", *(f"{other} in {number}" for other, number in others)]
    )
    return f"no backend is shown to be fastest in {counts.undecided} of {counts.rows} rows ({leading})"


def _of_one_row(row: Row) -> str:
    """Return the verdict of the only row, with the time of a step if there is nothing to compare, and with the lowest
    backend if its ratios have no interval."""
    measured = {name: cell.step_time.centre for name, cell in row.cells.items() if cell.step_time}
    if row.lowest is not None and any(ratio.estimate.low is None for ratio in row.ratios):
        return f"{row.verdict}; {row.lowest} has the lowest figure"
    if len(measured) == 1 and all(cell.figure == STEP_TIME for cell in row.cells.values()):
        [(name, step_time_s)] = measured.items()
        return f"{name} takes {seconds(step_time_s)} a step; {row.verdict}"
    return row.verdict


def _mean_texts(counts: Answer) -> list[str]:
    """Return the means, a part for each league: `over all rows jax takes 0.78x [0.75 0.81] of tensorflow's time`."""
    leagues: dict[str, list[MeanRatio]] = {}
    for mean in counts.means:
        leagues.setdefault(mean.league, []).append(mean)
    return [_league_text(means, counts.rows, named=len(leagues) > 1) for means in leagues.values()]


def _league_text(means: Sequence[MeanRatio], rows: int, *, named: bool) -> str:
    texts, over = [], 0
    for mean in means:
        interval = "" if mean.ratio.bounds else " (no interval)"
        amount = f"{bracketed(mean.ratio)}{interval} of {mean.against}'s"
        which = f"over {'all' if mean.rows == rows else mean.rows} rows{f' of league {mean.league}' if named else ''}"
        texts.append(amount if mean.rows == over else f"{which} {mean.backend} takes {amount} time")
        over = mean.rows
    return ", ".join(texts)


def _is(count: int) -> str:
    return "is" if count == 1 else "are"


def _listed(words: Sequence[str]) -> str:
    *first, last = words
    return f"{', '.join(first)} and {last}" if first else last

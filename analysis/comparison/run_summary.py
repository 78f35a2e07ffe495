"""A run as a whole: its answer in one sentence, geometric means, what is undecided, a night's projection.

The answer, which backend is fastest in how many rows and by which ratio, counts the verdicts of the table and takes
the means of `analysis.stats.suite`; terminal, report, JSON and Python show this value, so that they cannot differ.

The projection assumes that each comparison continues with the scatter and the cost of its blocks so far, and adds
blocks, to the cheapest comparisons first, until a difference of `NOTABLE` would show with 80 % power or no look is
left. It does not know of hours that are noisier than the measured one.

What would decide the rows that are not separable: a command that measures only them again, with more repeats.

Guarantee: pure. The number of repeats assumes the scatter of the blocks so far; it does not know of noisier hours.
"""

from __future__ import annotations

import glob
import shlex
import statistics
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, replace

from keras_matrix.analysis.comparison.machines import noun
from keras_matrix.analysis.comparison.primary_metric import STEP_TIME
from keras_matrix.analysis.comparison.ratios import bracketed, takes
from keras_matrix.analysis.comparison.table import Row, in_order
from keras_matrix.analysis.comparison.titles import varying_by_workload, work_labels
from keras_matrix.analysis.stats.blocks import Estimate, blocks_needed, minimum_detectable_effect
from keras_matrix.analysis.stats.sequential import LOOKS
from keras_matrix.analysis.stats.suite import Suite, SuiteRatio
from keras_matrix.records.schema import Status
from keras_matrix.records.settings import Scalar
from keras_matrix.records.task import DEFINITION
from keras_matrix.records.text import percentage, seconds

NOTABLE = 0.05  # the relative difference for which a run reports whether it would have shown
NIGHT_S = 7200.0
NO_AXES = ("set_by_matrix", DEFINITION)  # of a cell's identity, but no key of a matrix
MOST_NAMED = 3  # workloads in a title


@dataclass(frozen=True, slots=True)
class Fraction:
    """A number of comparisons of a run, out of all: each cell of a row against the one with the lowest time."""

    able: int
    of: int


def summary_lines(rows: Sequence[Row], suites: Sequence[Suite]) -> list[str]:
    """Return the summary of a run with these means as lines; empty if nothing is compared."""
    text = []
    for suite in suites:
        (first_backend, ratio), *others = suite.ratios.items()
        means = [takes(first_backend, bracketed(ratio.estimate), reference=suite.against) + _note(ratio)]
        means += [f"{name} {bracketed(ratio.estimate)}{_note(ratio)}" for name, ratio in others]
        text.append(f"geometric mean, league {suite.league}: {', '.join(means)}")
        text[-1] += f"; left out: {suite.left_out}" if suite.left_out else ""
    rows = [row for row in rows if not row.values]  # separate sessions would need more sessions, not blocks
    detectable_counts, compared_count = detectable(rows, NOTABLE), sum(len(row.ratios) for row in rows)
    if not compared_count:
        return text
    text.append(
        f"a difference of {percentage(NOTABLE)} would have shown in {detectable_counts.able} of {detectable_counts.of} "
        "comparisons"
    )
    if compared_count < detectable_counts.of:
        text[-1] += f" ({detectable_counts.of - compared_count} not compared)"
    if (night := projected(rows, NIGHT_S)) is not None and night.able > detectable_counts.able:
        text[-1] += f"; in {night.able} after --repeats auto --budget {NIGHT_S:.0f}, if their scatter remains the same"
    return text


def detectable(rows: Sequence[Row], effect: float) -> Fraction:
    """Return how many of the comparisons would have shown a relative difference of `effect`."""
    differences = [ratio.smallest_difference for row in rows for ratio in row.ratios]
    return Fraction(sum(difference is not None and difference <= effect for difference in differences), _expected(rows))


def projected(rows: Sequence[Row], budget_s: float) -> Fraction | None:
    """Return how many comparisons would probably show `NOTABLE` within a budget; None if too little is known.

    Blocks are those of `repeats: auto`: up to its last look, and at its looks only.
    """
    compared_rows = [row for row in rows if row.ratios]
    if any(ratio.scatter is None for row in compared_rows for ratio in row.ratios) or not compared_rows:
        return None
    imports_s: dict[str, list[float]] = {}
    for backend, cell in (named_cell for row in compared_rows for named_cell in row.cells.items()):
        imports_s.setdefault(backend, []).extend(record.times.import_time_s or 0.0 for record in cell.measured)
    # The start of a block's servers: one a backend for all rows, as if started one by one.
    servers_s = sum(statistics.fmean(times_s) for times_s in imports_s.values() if times_s)
    spent_s, most_blocks, able_count = 0.0, 0, 0
    for cost_s, block_count, count in sorted(_wanted(row) for row in compared_rows):
        longest = max(most_blocks, block_count)
        if spent_s + cost_s + longest * servers_s <= budget_s:
            spent_s, most_blocks, able_count = spent_s + cost_s, longest, able_count + count
    return Fraction(able_count, _expected(rows))


def _expected(rows: Sequence[Row]) -> int:
    """Return how many comparisons a run of these rows should have: failed cells and cells of other work included.

    Cells that a backend does not support are excluded.
    """
    able_cells = [
        [cell for cell in row.cells.values() if any(r.status is not Status.UNSUPPORTED for r in cell.records)]
        for row in rows
    ]
    return sum(max(0, len(cells) - 1) for cells in able_cells)


def _wanted(row: Row) -> tuple[float, int, int]:
    """Return seconds and blocks needed to decide a row's comparisons at its looks, and how many those decide."""
    needed_counts = [blocks_needed(ratio.scatter or 0.0, NOTABLE) for ratio in row.ratios]
    looks = [
        next(
            (block_count for block_count in LOOKS.blocks if needed_blocks is not None and needed_blocks <= block_count),
            None,
        )
        for needed_blocks in needed_counts
    ]
    known_looks = [look for look in looks if look is not None]
    block_count = max(known_looks, default=0)
    cells = [cell.measured for cell in row.cells.values() if cell.measured]
    block_s = sum(statistics.fmean(record.harness.wall_time_s or 0.0 for record in records) for records in cells)
    return block_count * block_s, block_count, len(known_looks)


def _note(ratio: SuiteRatio) -> str:
    """Return what a mean is from, if not the common blocks of one machine."""
    if ratio.separate:
        return " (separate sessions)" if ratio.estimate.bounds else " (separate sessions: no interval)"
    return f" ({len(ratio.machines)} {noun(ratio.machines)}: no interval)" if ratio.machines else ""


@dataclass(frozen=True, slots=True)
class Undecided:
    """How to decide a row: `filters` select its cells in the matrix; `repeats` is about the number that shows `effect`,
    a relative difference."""

    filters: tuple[str, ...]
    repeats: int
    effect: float

    def text(self, command: str | None) -> str:
        """Return what would decide; `command` measures the run's cells again, None if there is no such command."""
        needed_text = f"about {self.repeats} repeats show a difference of {percentage(self.effect)}"
        if command is None:
            return f"to decide: {needed_text}"
        words = shlex.split(command)
        filters = [f"--filter {shlex.quote(filter_text)}" for filter_text in self.filters if filter_text not in words]
        return f"to decide: {' '.join([command, *filters, '--repeats auto'])} ({needed_text})"


def undecided(rows: Sequence[Row]) -> dict[str, Undecided]:
    """Return how to decide each row that is not separable although it has intervals, by its key."""
    filters = _filters([row for row in rows if row.cells])
    return {
        row.key: Undecided(filters[row.key], *more_repeats)
        for row in rows
        if row.fastest is None and (more_repeats := _more_repeats(row)) is not None
    }


def _more_repeats(row: Row) -> tuple[int, float] | None:
    """Return the repeats after which the open ratios show a notable difference, or the most repeats and what they show.

    None if more repeats are not what the row lacks, or if it has all of them. Without an open ratio, the row is no
    discovery among the others: then all ratios count.
    """
    if any(ratio.separate or ratio.machines_disagree or ratio.estimate.low is None for ratio in row.ratios):
        return None
    ratios = [ratio for ratio in row.ratios if (ratio.estimate.low or 0) <= 1] or list(row.ratios)
    most = LOOKS.blocks[-1]
    if not ratios or min(ratio.estimate.count for ratio in ratios) >= most:
        return None
    scatter = max(ratio.scatter or 0.0 for ratio in ratios)
    needed_blocks = blocks_needed(scatter, NOTABLE)
    if needed_blocks is not None and needed_blocks <= most:
        return next(block_count for block_count in LOOKS.blocks if block_count >= needed_blocks), NOTABLE
    effect = minimum_detectable_effect(scatter, most)
    return None if effect is None else (most, effect)


def _filters(rows: Sequence[Row]) -> dict[str, tuple[str, ...]]:
    """Return, for each row's key, the filters that select its work: the workload, and each value that differs
    between the works of that workload."""
    works = {row.key: next(iter(row.cells.values())).settings for row in rows}
    labels = {key: work_labels(settings) for key, settings in works.items()}
    varying = varying_by_workload((work.workload, labels[key]) for key, work in works.items())
    filters = {}
    for key, values in labels.items():
        workload = works[key].workload
        axes = varying[workload] - set(NO_AXES)
        filter_texts = (f"{name}={_pattern(value)}" for name, value in values.items() if name in axes)
        filters[key] = (f"workload={workload}", *filter_texts)
    return filters


def _pattern(value: Scalar) -> str:
    """Return the pattern of `--filter` that matches a value as it is written in a matrix."""
    return glob.escape(str(value).lower() if isinstance(value, bool) else str(value))


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
    workloads_text = _listed(workloads) if len(workloads) <= MOST_NAMED else f"{len(workloads)} workloads"
    return f"{workloads_text} on {_listed(in_order(name for row in rows for name in row.cells))}"


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
    first_text = _fastest_text(rows, counts) if counts.fastest else _lowest_text(counts)
    open_counts = {
        "undecided": counts.undecided if counts.fastest else 0,
        "not comparable": counts.not_comparable,
    }
    texts = [first_text, *(f"{count} {_is(count)} {name}" for name, count in open_counts.items() if count)]
    if counts.nothing_to_compare and counts.nothing_to_compare < len(rows):
        has_word = "has" if counts.nothing_to_compare == 1 else "have"
        texts.append(f"{counts.nothing_to_compare} {has_word} nothing to compare")
    return "; ".join(text for text in [*texts, *_mean_texts(counts)] if text)


def _fastest_text(rows: Sequence[Row], counts: Answer) -> str:
    is_timed = any(cell.figure == STEP_TIME for row in rows if row.fastest for cell in row.cells.values())
    (name, count), *others = counts.fastest.items()
    first_text = f"{name} is {'fastest' if is_timed else 'best'} in {count} of {counts.rows} rows"
    return ", ".join([first_text, *(f"{other} in {count}" for other, count in others)])


def _lowest_text(counts: Answer) -> str:
    """Return what is known of a table in which no row names a fastest."""
    if not counts.undecided:
        return f"nothing to compare in {counts.rows} rows" if counts.nothing_to_compare == counts.rows else ""
    (name, count), *others = counts.lowest.items()
    leading_text = ", ".join(
        [f"{name} has the lowest figure in {count}", *(f"{other} in {number}" for other, number in others)]
    )
    return f"no backend is shown to be fastest in {counts.undecided} of {counts.rows} rows ({leading_text})"


def _of_one_row(row: Row) -> str:
    """Return the verdict of the only row, with the time of a step if there is nothing to compare, and with the lowest
    backend if its ratios have no interval."""
    measured_times = {name: cell.step_time.centre for name, cell in row.cells.items() if cell.step_time}
    if row.lowest is not None and any(ratio.estimate.low is None for ratio in row.ratios):
        return f"{row.verdict}; {row.lowest} has the lowest figure"
    if len(measured_times) == 1 and all(cell.figure == STEP_TIME for cell in row.cells.values()):
        [(name, step_time_s)] = measured_times.items()
        return f"{name} takes {seconds(step_time_s)} a step; {row.verdict}"
    return row.verdict


def _mean_texts(counts: Answer) -> list[str]:
    """Return the means, a part for each league: `over all rows jax takes 0.78x [0.75 0.81] of tensorflow's time`."""
    leagues: dict[str, list[MeanRatio]] = {}
    for mean in counts.means:
        leagues.setdefault(mean.league, []).append(mean)
    return [_league_text(means, counts.rows, named=len(leagues) > 1) for means in leagues.values()]


def _league_text(means: Sequence[MeanRatio], row_count: int, *, named: bool) -> str:
    texts, last_rows = [], 0
    for mean in means:
        interval_note = "" if mean.ratio.bounds else " (no interval)"
        amount_text = f"{bracketed(mean.ratio)}{interval_note} of {mean.against}'s"
        rows_text = (
            f"over {'all' if mean.rows == row_count else mean.rows} rows{f' of league {mean.league}' if named else ''}"
        )
        texts.append(amount_text if mean.rows == last_rows else f"{rows_text} {mean.backend} takes {amount_text} time")
        last_rows = mean.rows
    return ", ".join(texts)


def _is(count: int) -> str:
    return "is" if count == 1 else "are"


def _listed(words: Sequence[str]) -> str:
    *first_words, last_word = words
    return f"{', '.join(first_words)} and {last_word}" if first_words else last_word

"""Properties of the table of a run: of any records, in any order, on exchanged backends."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from itertools import pairwise
from random import Random

import pytest
from hypothesis import assume, given, settings
from hypothesis import strategies as st

from keras_matrix.analysis.comparison.table import table
from keras_matrix.analysis.comparison.versus import versus
from keras_matrix.analysis.findings import FindingKind, run_findings
from keras_matrix.analysis.regression.gate import Rule
from keras_matrix.analysis.views.result_table import CellView, ResultTable, result_table
from keras_matrix.records.backends import TRAINING_BACKENDS
from keras_matrix.records.identity import cell_id
from keras_matrix.records.schema import Record, Status
from keras_matrix.records.settings import Settings
from tests.conftest import make_record, make_settings

TIMES_S = st.one_of(st.floats(1e-5, 10), st.none())  # None: the process failed
FIGURES = ("value", "low", "high", "compared", "is_lowest", "is_fastest", "statistics", "endings", "processes")


# By work and backend, the time of a step of each repeat, and whether an earlier attempt failed.
RUNS = st.lists(
    st.lists(st.lists(st.tuples(TIMES_S, st.booleans()), min_size=1, max_size=6), min_size=2, max_size=3),
    min_size=1,
    max_size=3,
)
ORDERS = st.permutations(TRAINING_BACKENDS)
SAME = {name: name for name in TRAINING_BACKENDS}
Run = list[list[list[tuple[float | None, bool]]]]


def records_of(run: Run) -> list[Record]:
    return [
        record
        for batch_size, work in zip((32, 64, 128), run, strict=False)
        for backend, repeats in zip(TRAINING_BACKENDS, work, strict=False)
        for repeat, (time_s, again) in enumerate(repeats)
        for record in attempts(make_settings(backend=backend, batch_size=batch_size), repeat, time_s, again=again)
    ]


def attempts(own: Settings, repeat: int, time_s: float | None, *, again: bool) -> list[Record]:
    failed = [make_record(None, repeat, Status.INFRA, settings=own)] if again else []
    status = Status.OK if time_s else Status.CRASH
    return [*failed, make_record(time_s, repeat, status, settings=own, attempt=len(failed))]


def on(backends: Mapping[str, str], records: Sequence[Record]) -> list[Record]:
    """Return the records as if they were measured on other backends."""
    named = [replace(one.settings, backend=backends[one.settings.backend]) for one in records]
    return [replace(one, settings=own, cell_id=cell_id(own)) for one, own in zip(records, named, strict=True)]


def distinct(values: Sequence[float]) -> bool:
    """Return whether no two values are equal: of these the first backend would be the lowest."""
    return all(high > low * (1 + 1e-9) for low, high in pairwise(sorted(values)))


def figures(view: CellView) -> dict[str, object]:
    return {name: getattr(view, name) for name in FIGURES}


@settings(max_examples=30, deadline=None)
@given(RUNS, st.randoms(use_true_random=False))
def test_table_does_not_depend_on_the_order_of_records(run: Run, random: Random) -> None:
    """Mutation: the latest attempt is the last one of the list."""
    records = records_of(run)
    shuffled = random.sample(records, len(records))
    made, again = result_table(table(records)), result_table(table(shuffled))
    assert again.rows == made.rows
    assert (again.answer, again.summary, again.suites) == (made.answer, made.summary, made.suites)
    assert [figures(view) for view in again.cells] == [figures(view) for view in made.cells]


@settings(max_examples=30, deadline=None)
@given(RUNS, ORDERS)
def test_exchanged_backends_exchange_the_columns_of_the_table(run: Run, order: list[str]) -> None:
    """Mutation: the first backend of a row is taken as the lowest."""
    records, exchanged = records_of(run), dict(zip(TRAINING_BACKENDS, order, strict=True))
    made, again = result_table(table(records)), result_table(table(on(exchanged, records)))
    assume(all(distinct([view.value for view in work.cells if view.value]) for work in made.works))
    for work, other in zip(made.works, again.works, strict=True):
        assert other.row.title == work.row.title
        for name in ("lowest", "fastest"):
            backend = getattr(work.row, name)
            assert getattr(other.row, name) == (backend and exchanged[backend])
        for view in work.cells:
            moved = other.on(exchanged[view.backend])
            assert moved is not None
            assert figures(moved) == figures(view)
            assert (moved.ratio is None) == (view.ratio is None)
            if moved.ratio and view.ratio:
                assert (moved.ratio.centre, moved.ratio.count) == (pytest.approx(view.ratio.centre), view.ratio.count)
                assert moved.ratio.low == pytest.approx(view.ratio.low)
    assert by_backend(again, SAME) == pytest.approx(by_backend(made, exchanged))


@settings(max_examples=60, deadline=None)
@given(RUNS, ORDERS)
def test_exchanged_backends_exchange_the_means_over_works(run: Run, order: list[str]) -> None:
    """Also of incomplete works. Mutations: the first backend decides which leads; the first work is always taken."""
    records, exchanged = records_of(run), dict(zip(TRAINING_BACKENDS, order, strict=True))
    made, again = (result_table(table(of)) for of in (records, on(exchanged, records)))
    assume(all(distinct([view.value for view in work.cells if view.value]) for work in made.works))
    assert len(again.suites) == len(made.suites)
    for suite, other in zip(made.suites, again.suites, strict=True):
        centres = {name: ratio.estimate.centre for name, ratio in suite.ratios.items()}
        assume(distinct([1.0, *centres.values()]))
        assert other.against == exchanged[suite.against]
        expected = {exchanged[name]: pytest.approx(centre) for name, centre in centres.items()}
        assert {name: ratio.estimate.centre for name, ratio in other.ratios.items()} == expected


def by_backend(made: ResultTable, named: Mapping[str, str]) -> dict[tuple[str, ...], float | None]:
    """Return the estimates of the findings about works by kind, metric, work and backend, under these names."""
    return {
        (
            one.kind,
            one.metric,
            one.work,
            *(named[name] if name else "" for name in (one.backend, one.against)),
        ): one.estimate
        for one in run_findings(made)
        if one.kind is not FindingKind.SUITE
    }


@settings(max_examples=30, deadline=None)
@given(st.lists(st.tuples(st.floats(1e-4, 1), st.floats(1e-4, 1)), min_size=1, max_size=8))
def test_exchanged_sides_of_a_comparison_invert_its_ratios(times_s: list[tuple[float, float]]) -> None:
    """Mutation: the ratio is that of the slower side over the other one."""
    base, new = ([make_record(pair[side], repeat) for repeat, pair in enumerate(times_s)] for side in (0, 1))
    [there], [back] = (versus(*sides, Rule()).comparisons for sides in ((base, new), (new, base)))
    assert there.ratio is not None
    assert back.ratio is not None
    assert back.ratio.centre == pytest.approx(1 / there.ratio.centre)
    assert (back.ratio.low is None) == (there.ratio.high is None)
    if back.ratio.low is not None and there.ratio.high is not None:
        assert back.ratio.low == pytest.approx(1 / there.ratio.high)
    assert list(back.logs) == pytest.approx([-log for log in there.logs])

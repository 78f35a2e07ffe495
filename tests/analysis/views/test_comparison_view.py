"""Every output shows the values of a comparison: terminal, Markdown, JSON document and page."""

from __future__ import annotations

import html
import json
import re
from collections.abc import Iterator
from dataclasses import replace

import pytest

from keras_matrix.analysis.comparison.ratios import change_text
from keras_matrix.analysis.comparison.versus import versus
from keras_matrix.analysis.history.sessions import SessionRatio
from keras_matrix.analysis.regression.gate import GateOutcome
from keras_matrix.analysis.stats.blocks import Estimate
from keras_matrix.analysis.views.comparison_view import ACROSS_ADVICE, ACROSS_WIDE, ComparisonView, comparison_view
from keras_matrix.dashboards.report import comparison_page
from keras_matrix.records.identity import cell_id
from keras_matrix.records.schema import Record, Status
from keras_matrix.records.task import Metric, TaskRun
from keras_matrix.records.text import NOTHING, amount, percent_change, percentage_interval
from keras_matrix.runner.cli.render.versus import CAVEATS_SHOWN, as_json, markdown, text
from tests.conftest import make_record, make_settings
from tests.dashboards.report.test_comparison_page import RULE, side

INTERVAL, NO_INTERVAL = Estimate(1.3, 1.2, 1.4, 12), Estimate(1.3, None, None, 12)


def on(backend: str, records: list[Record]) -> list[Record]:
    """Return these records as those of another backend."""
    return [replace(one, cell_id=backend, settings=replace(one.settings, backend=backend)) for one in records]


def command(factor: float) -> list[Record]:
    settings = make_settings(workload="task serve")
    return [
        make_record(
            None,
            repeat,
            settings=settings,
            task=TaskRun("serve", ["true"], "latency", [Metric("latency", factor * (3 + repeat / 100), "ms")]),
        )
        for repeat in range(12)
    ]


def views() -> Iterator[ComparisonView]:
    """Yield comparisons with every outcome, of several backends, of a command, of two sessions, with failures."""
    unstable = [replace(one, status=Status.UNSTABLE, reason="it drifts") for one in side(1.0, 1)]
    failed = [*side(2.0, 1)[:11], make_record(None, 11, Status.CRASH)]
    several = [*side(1.0, 0), *on("torch", side(1.0, 2)), *on("tensorflow", side(1.0, 4))]
    slower = [*side(1.2, 1), *on("torch", side(1.05, 3)), *on("tensorflow", side(1.0, 5))]
    pairs = [
        *((side(1.0, 0), side(factor, 1)) for factor in (1.0, 1.05, 1.2)),
        (several, slower),
        (side(1.0, 0), []),
        (side(1.0, 0, blocks=2), side(1.0, 1, blocks=2)),
        (side(1.0, 0), unstable),
        (side(1.0, 0), failed),
        (command(1.0), command(1.3)),
        ([], []),
    ]
    for base, new in pairs:
        yield comparison_view(versus(base, new, RULE), RULE.threshold, {})
    for estimate in (INTERVAL, NO_INTERVAL):
        found = versus(side(1.0, 0), side(1.3, 1), RULE, lambda base, new, one=estimate: SessionRatio(one))
        yield comparison_view(replace(found, runs=("before", "after"), notes=("a note",)), RULE.threshold, {})


@pytest.fixture(scope="module")
def compared() -> list[ComparisonView]:
    found = list(views())
    cells = [change for view in found for change in view.cells]
    assert {outcome for view in found for outcome in view.outcomes} == set(GateOutcome)
    assert {change.is_step for change in cells} == {True, False}
    assert {change.median_ratio is None for change in cells} == {True, False}
    assert {bool(change.blocks) for change in cells} == {True, False}
    assert {view.versus.paired for view in found} == {True, False}
    assert {len(view.means) for view in found} >= {0, 1, 4}
    assert {view.advice for view in found} >= {"", ACROSS_ADVICE}
    return found


def ratio_cells(ratio: Estimate | None) -> list[str]:
    if ratio is None:
        return [NOTHING, NOTHING]
    bounds = percentage_interval(ratio.low - 1, ratio.high - 1) if ratio.low and ratio.high else "none"
    return [percent_change(ratio.centre), bounds]


def expected_rows(view: ComparisonView) -> list[list[str]]:
    """Return the first table as the view has it."""
    rows = []
    for change in view.cells:
        unit, comparison = change.comparison.either.figure.unit, change.comparison
        blocks = str(len(change.blocks)) if view.versus.paired else NOTHING
        figures = [amount(change.base.value, unit), amount(change.new.value, unit)]
        rows.append([change.title, change.backend, *figures, *ratio_cells(comparison.ratio), blocks, comparison.said])
    for mean in view.means:
        estimate = mean.suite.estimate
        rows.append(["geometric mean", mean.backend or "all", "", "", *ratio_cells(estimate), str(estimate.count), ""])
    return rows


def test_terminal_and_markdown_have_the_values_of_the_view(compared: list[ComparisonView]) -> None:
    for view in compared:
        terminal, comment = text(view), markdown(view)
        assert not re.search(r"% \[[^]]*\] %|- -", terminal), "a change and its interval have one unit"
        printed = [re.split(r" {2,}", line) for line in terminal.splitlines()]
        for row in expected_rows(view):
            assert [word for word in row if word] in [[word for word in line if word] for line in printed]
            assert f"| {' | '.join(row)} |" in comment.splitlines()
        steps = [
            [percent_change(ratio) if ratio else NOTHING for ratio in (change.median_ratio, change.p95_ratio)]
            for change in view.cells
            if change.comparison.facets
        ]
        shown = [line.split(" | ")[2:4] for line in comment.splitlines() if line.startswith("| ")]
        assert [pair for pair in shown if pair in steps] or not steps
        counts = ", ".join(f"{count} {outcome}" for outcome, count in view.outcomes.items())
        for output in (terminal, comment):
            assert f"{view.versus.outcome} ({counts or 'nothing in common'})" in output
            assert (view.advice in output) == bool(view.advice) or not view.advice
            caveats = [(change.name, caveat) for change in view.cells for caveat in change.comparison.caveats]
            assert all(f"caveat: {name}: {caveat}" in output for name, caveat in caveats[:CAVEATS_SHOWN])


def test_json_has_the_values_of_the_view(compared: list[ComparisonView]) -> None:
    for view in compared:
        document = json.loads(as_json(view))
        assert (document["outcome"], document["threshold"]) == (view.versus.outcome, view.threshold)
        for change, cell in zip(view.cells, document["comparisons"], strict=True):
            base, new = change.base, change.new
            assert (cell["base_figure"], cell["new_figure"]) == (base.value, new.value)
            assert (cell["base_median"], cell["new_median"]) == (base.median, new.median)
            assert (cell["base_p95"], cell["new_p95"]) == (base.p95, new.p95)
            step = (base.value, new.value) if change.is_step else (None, None)
            assert (cell["base_step_time_s"], cell["new_step_time_s"]) == step
            ratio = change.comparison.ratio
            assert (cell["ratio"] or {}).get("centre") == (ratio.centre if ratio else None)
            assert len(cell["log_ratios"]) == len(change.blocks)
        means = {mean.backend or "all": mean.suite.estimate.centre for mean in view.means}
        named = {name: mean["estimate"]["centre"] for name, mean in document["by_backend"].items()}
        whole = {"all": document["whole"]["estimate"]["centre"]} if len(named) > 1 else {}
        assert means == named | whole


def test_page_has_the_values_of_the_view(compared: list[ComparisonView]) -> None:
    for view in compared:
        page = html.unescape(comparison_page.page(view)).replace("\u00a0", " ")
        assert f"New against base: {view.versus.outcome}" in page
        for outcome, count in view.outcomes.items():
            assert f"{count} comparison{'s'[: count != 1]} {outcome}" in page
        for change in view.cells:
            assert change.name in page
            assert change.comparison.said in page
            if change.comparison.ratio is not None:
                assert change_text(change.comparison.ratio) in page
            for number, ratio in enumerate(change.blocks, 1):
                assert f"block {number}: {percent_change(ratio)}" in page
        for mean in view.means:
            title = f"geometric mean on {mean.backend}" if mean.backend else "geometric mean of all"
            assert title in page
            assert change_text(mean.suite.estimate) in page


def test_ways_to_call_a_model_stand_side_by_side() -> None:
    """Mutations: cells of two phases are one row; a cell called in one way only has a row; native code comes last."""
    calls = {"model": 1.3, "jit": 1.0, "native": 1.0}

    def cells(factors: dict[str, float]) -> list[Record]:
        kinds = [("torch", "predict", calls), ("torch", "gradient", ("model", "jit")), ("jax", "predict", ("model",))]
        made: list[Record] = []
        for backend, phase, among in kinds:
            for call in among:
                settings = make_settings(backend=backend, phase=phase, call=call)
                for record in side(factors[call], len(made)):
                    made.append(replace(record, settings=settings, cell_id=cell_id(settings)))
        return made

    view = comparison_view(versus(cells(dict.fromkeys(calls, 1.0)), cells(calls), RULE), RULE.threshold, {})
    assert view.calls == ["native", "model", "jit"]
    rows = {(row.title, row.backend): list(row.changes) for row in view.by_call}
    assert len(rows) == 2
    assert {backend for _, backend in rows} == {"torch"}
    assert sorted(map(len, rows.values())) == [2, 3]
    lines = markdown(view).splitlines()
    [head] = [line for line in lines if "native" in line and line.startswith("| workload")]
    assert head == "| workload | backend | native | Keras, eager | Keras, compiled |"
    shown = lines[lines.index(head) + 2 : lines.index(head) + 4]
    [gradient] = [line for line in shown if "phase=gradient" in line]
    [predict] = [line for line in shown if line != gradient]
    changed = next(row for row in view.by_call if len(row.changes) == 3).changes["model"]
    unit = changed.comparison.either.figure.unit
    both = f"{amount(changed.base.value, unit)} → {amount(changed.new.value, unit)}, "
    assert changed.comparison.ratio is not None
    assert f"| {both}{change_text(changed.comparison.ratio)} |" in predict
    assert f"| {NOTHING} |" in gradient, "no native code of the gradient was measured"


def test_the_quantiles_of_a_command_have_no_ratio() -> None:
    """Mutation: `_step_ratio` does not ask whether the figure is the time per step."""
    [change] = comparison_view(versus(command(1.0), command(1.3), RULE), RULE.threshold, {}).cells
    assert change.base.median is not None
    assert (change.median_ratio, change.p95_ratio) == (None, None)


def test_two_sessions_with_a_wide_interval_need_more_sessions() -> None:
    wide = Estimate(1.05, 0.9, 1.2, 12)
    found = versus(side(1.0, 0), side(1.05, 1), RULE, lambda base, new: SessionRatio(wide))
    assert comparison_view(found, RULE.threshold, {}).advice == ACROSS_WIDE

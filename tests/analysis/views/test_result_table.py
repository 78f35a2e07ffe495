"""Every output shows the values of the result table: terminal, report, JSON document and Python API."""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import Any

import pytest
from hypothesis import given, settings

from keras_matrix.analysis.comparison.context import NO_CONTEXT
from keras_matrix.analysis.comparison.table import table
from keras_matrix.analysis.views.result_table import ResultTable, WorkView, result_table
from keras_matrix.dashboards.charts.figure_table import NOT_MEASURED, FigureRow, Value
from keras_matrix.dashboards.report import results
from keras_matrix.records.store import Run as StoredRun
from keras_matrix.records.task import Metric, TaskRun
from keras_matrix.records.text import NOTHING, amount, interval, interval_text, number, ratio_text
from keras_matrix.runner.cli.render.exported import as_document
from keras_matrix.runner.cli.render.findings import table_lines
from keras_matrix.runner.service.cell_rows import cells_of, comparisons_of
from keras_matrix.runner.service.stored import Findings, findings_of
from tests.analysis.views.test_table_properties import RUNS as ANY_RUN
from tests.analysis.views.test_table_properties import Run, records_of
from tests.conftest import make_record, make_settings
from tests.old_results import BY_VERSION, DATA, RUNS
from tests.runner.cli.render.test_exported import assert_csv_has_the_values, assert_markdown_has_the_values
from tests.scan import facts, modules

FOLDERS = sorted(set(BY_VERSION.values()))


def stored() -> Iterator[Findings]:
    """Yield the findings of every stored run: of workloads, of commands, with failures, of one backend and several."""
    for folder in FOLDERS:
        for run in sorted(path for path in (DATA / folder).iterdir() if path.name in RUNS or path.name[:2] == "20"):
            if not run.is_symlink():
                yield findings_of(StoredRun(run))


def works(found: Findings) -> tuple[WorkView, ...]:
    return result_table(found.rows, found.run_context).works


@pytest.fixture(scope="module")
def runs() -> list[Findings]:
    found = list(stored())
    cells = [view for run in found for work in works(run) for view in work.cells]
    assert len(cells) > 20
    assert {view.is_step for view in cells} == {True, False}
    assert {view.value is None for view in cells} == {True, False}
    assert {view.ratio is None for view in cells} == {True, False}
    return found


def test_json_has_the_values_of_the_table(runs: list[Findings]) -> None:
    for run in runs:
        for work, row in zip(works(run), json.loads(as_document({}, run))["rows"], strict=True):
            assert (row["title"], row["verdict"]) == (work.row.title, work.row.verdict)
            for view in work.cells:
                cell = row["cells"][view.backend]
                assert cell["statistics"] == view.statistics
                assert cell["processes"] == view.processes
                assert cell["samples_per_s"] == view.cell.samples_per_s
                assert cell["share_of_peak"] == view.share_of_peak
                if view.compared:
                    step = cell["step_time"]
                    assert (step["centre"], step["low"], step["high"]) == (view.value, view.low, view.high)
            ratios = {ratio["backend"]: ratio["estimate"]["centre"] for ratio in row["ratios"]}
            assert ratios == {view.backend: view.ratio.centre for view in work.cells if view.ratio}


def test_python_has_the_values_of_the_table(runs: list[Findings]) -> None:
    for run in runs:
        assert_python_has_the_values(result_table(run.rows, run.run_context))


def assert_python_has_the_values(made: ResultTable) -> None:
    views = [view for work in made.works for view in work.cells]
    for view, cell in zip(views, cells_of(made), strict=True):
        assert (cell.cell_id, cell.fastest, cell.processes) == (view.cell.cell_id, view.is_fastest, view.processes)
        shown = (cell.step_time_s, cell.step_time_low_s, cell.step_time_high_s)
        metric = (cell.metric_value, cell.metric_low, cell.metric_high)
        assert (shown if view.is_step else metric) == (view.value, view.low, view.high)
        assert (metric if view.is_step else shown) == (None, None, None)
        assert cell.caveats == view.caveats
    for comparison in comparisons_of(made):
        [work] = [one for one in made.works if one.row.title == comparison.name]
        assert (comparison.advice, comparison.same_work) == (work.advice, work.same_work.text)


def test_report_has_the_values_of_the_table(runs: list[Findings]) -> None:
    assert sum(assert_report_has_the_values(result_table(run.rows, run.run_context)) for run in runs) > 20


def assert_report_has_the_values(made: ResultTable) -> int:
    """Return how many cells have been compared."""
    compared = 0
    backends = results.backends([work.row for work in made.works])
    for work, block in zip(made.works, results.blocks(made), strict=True):
        primary = next(line for line in block.lines if line.primary)
        unmeasured = FigureRow("", "", [NOT_MEASURED] * len(backends))  # a line without any figure is left out
        ratios = next((line for line in block.lines if line.name.startswith("relative to the")), unmeasured)
        ended = next(line for line in block.lines if line.name == "processes")
        for place, backend in enumerate(backends):
            view = work.on(backend)
            shown: list[Value] = [line.values[place] for line in (primary, ratios, ended)]
            if view is None:
                assert {value.text for value in shown} == {NOTHING}
                continue
            size = 1e-3 if view.is_step else 1.0
            if view.compared:
                between = interval(view.low, view.high, view.value, size) or "no interval"
                assert (shown[0].aside, shown[0].hint) == (between, "; ".join(view.caveats))
            assert shown[0].text == (NOTHING if view.value is None else number(view.value, size))
            assert shown[0].fastest == view.is_fastest
            assert shown[1].text == (number(view.ratio.centre) if view.ratio else "1" if view.is_lowest else NOTHING)
            assert shown[2].text == ", ".join(
                f"{count} {status}" for status, count in sorted(view.endings.items(), key=order)
            )
            compared += 1
    return compared


def order(ending: tuple[Any, int]) -> int:
    """Return the place of a status in the order of all statuses."""
    return list(type(ending[0])).index(ending[0])


def test_terminal_has_the_values_of_the_table(runs: list[Findings]) -> None:
    for run in runs:
        assert_terminal_has_the_values(result_table(run.rows, run.run_context))


def assert_terminal_has_the_values(made: ResultTable) -> None:
    lines = iter(line.text for line in table_lines(made))
    heading = next(lines)
    assert heading.split()[0] == "backend"
    for work in made.works:
        assert work.row.title in lines
        for view in work.cells:
            line = next(text for text in lines if text[2:].startswith(view.backend))
            assert line.startswith("* ") == view.is_fastest
            shown = amount(view.value, view.cell.figure.unit)
            words = line[len(view.backend) + 2 :].strip()
            assert words.startswith(shown), (line, shown)
            after = words.removeprefix(shown).strip()
            if view.compared and view.low is not None and view.high is not None:
                assert after.startswith(interval_text(view.low, view.high, view.cell.figure.unit)), line
            ratio = "1.00x" if view.is_lowest else ratio_text(view.ratio.centre) if view.ratio else None
            assert (ratio in after.split()) if ratio else "x" not in after.replace("process", ""), line
        assert f"  {work.row.verdict}" in lines


@settings(max_examples=20, deadline=None)
@given(ANY_RUN)
def test_every_output_of_any_run_has_the_values_of_its_table(run: Run) -> None:
    """Mutation: the report marks the backend with the lowest estimate as the fastest."""
    made = result_table(table(records_of(run)))
    assert_terminal_has_the_values(made)
    assert_report_has_the_values(made)
    assert_python_has_the_values(made)
    assert_markdown_has_the_values(made)
    assert_csv_has_the_values(made)


def modules_in(*folders: str) -> list[str]:
    return [path for path in modules() if path.startswith(tuple(f"{folder}/" for folder in folders))]


def test_what_the_table_computes_is_computed_nowhere_else() -> None:
    """A renderer that computed a figure, a caveat or advice itself could disagree with the others."""
    computed = {
        "keras_matrix.analysis.comparison.context": {"cell_caveats", "same_work"},
        "keras_matrix.analysis.comparison.run_summary": {"answer", "summary_lines", "undecided"},
        "keras_matrix.analysis.comparison.starts": {"warm_caches"},
        "keras_matrix.analysis.fc": {"fc_figures", "gap_lines"},
        "keras_matrix.analysis.keras_cost": {"keras_costs"},
        "keras_matrix.analysis.scaling": {"device_scalings"},
        "keras_matrix.analysis.stats.cell_statistics": {"values", "hidden"},
        "keras_matrix.analysis.stats.suite": {"suite"},
        "keras_matrix.analysis.views.call_ladder": {"call_ladders"},
        "keras_matrix.analysis.views.result_table": {"result_table"},
    }
    importers, imports = dict[str, set[str]](), 0
    for path in modules_in("analysis", "dashboards", "runner", "uploader"):
        for statement in (one for one in facts(modules()[path]).imports if one.module):
            imports += 1
            for name in statement.names:
                if name in computed.get(statement.module, ()) or f"{statement.module}.{name}" in computed:
                    importers.setdefault(path, set()).add(f"{statement.module}.{name}")
    assert imports > 4000
    used = importers.pop("analysis/views/result_table.py")
    others = computed.keys() - {"keras_matrix.analysis.views.result_table"}
    assert {module for module in computed if any(f"{name}.".startswith(f"{module}.") for name in used)} == others
    assert importers == {"runner/service/stored.py": {"keras_matrix.analysis.views.result_table.result_table"}}


def test_no_renderer_computes_a_mean_or_a_ratio_of_measurements() -> None:
    """Means of what is no figure of a cell are allowed, of which there are two."""
    computed = {"geometric", "of_logs", "paired_logs", "statistics", "fmean", "median"}
    renderers = modules_in("dashboards", "runner/cli")
    statements = [(path, statement) for path in renderers for statement in facts(modules()[path]).imports]
    found = {path for path, statement in statements if computed.intersection(statement.names)}
    assert len(renderers) > 80
    # The readings of a machine during a run, and the time that is left of one.
    assert found == {"dashboards/report/environment.py", "dashboards/live/session.py"}


def test_a_metric_that_is_not_above_zero_is_shown_without_a_ratio() -> None:
    """Mutation: `_step_value` does not look at `compared`."""
    task = TaskRun("t", ["true"], "gain", [Metric("gain", 0.0)])
    settings = make_settings(workload="task t")
    rows = table([make_record(None, repeat, task=task, settings=settings) for repeat in range(5)])
    [view] = result_table(rows, NO_CONTEXT).cells
    assert (view.value, view.compared, view.ratio) == (0.0, False, None)
    [block] = results.blocks(result_table(rows))
    [value] = next(line for line in block.lines if line.primary).values
    assert (value.text, value.aside, value.hint) == ("0", "not compared", results.NO_RATIO)

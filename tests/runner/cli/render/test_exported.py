"""Markdown, CSV and the lists for other programs show the values of the table, and name what they leave out."""

from __future__ import annotations

import csv
import io
import json
from collections.abc import Callable

import pytest

from keras_matrix.analysis.comparison.table import table
from keras_matrix.analysis.views.result_table import ResultTable, result_table
from keras_matrix.records.store import Run
from keras_matrix.records.task import Goal, Metric, TaskRun
from keras_matrix.records.text import amount
from keras_matrix.runner.cli.render import exported
from keras_matrix.runner.service.stored import findings_of
from tests.conftest import make_record, make_settings
from tests.old_results import BY_VERSION, DATA, RUNS


@pytest.fixture(scope="module")
def tables() -> list[ResultTable]:
    """Return the tables of all stored runs of every version."""
    runs = [path for folder in sorted(set(BY_VERSION.values())) for path in (DATA / folder).iterdir()]
    runs = [path for path in runs if (path.name in RUNS or path.name[:2] == "20") and not path.is_symlink()]
    found = [findings_of(Run(path)).table for path in sorted(runs)]
    views = [view for one in found for view in one.cells]
    assert len(views) > 20
    assert {view.is_step for view in views} == {view.value is None for view in views} == {True, False}
    return found


def test_markdown_has_each_cell_with_the_texts_of_the_terminal(tables: list[ResultTable]) -> None:
    for one in tables:
        lines = [line for line in exported.markdown(one).splitlines() if line.startswith("| ")]
        heading, rule, *rows = [[text.strip() for text in line.strip("|").split(" | ")] for line in lines]
        assert (heading[:2], set("".join(rule))) == (["workload", "backend"], {"-"})
        for view, row in zip(one.cells, rows, strict=True):
            assert len(row) == len(heading)
            assert row[1] == (f"**{view.backend}**" if view.is_fastest else view.backend)
            assert row[2] == (amount(view.value, view.cell.figure.unit) if view.cell.measured else view.failed_with)


def test_csv_has_each_cell_with_the_figures_of_the_python_api(tables: list[ResultTable]) -> None:
    for one in tables:
        rows = list(csv.DictReader(io.StringIO(exported.as_csv(one))))
        for view, row in zip(one.cells, rows, strict=True):
            shown = row["step_time_s"] if view.is_step else row["metric_value"]
            assert (float(shown) if shown else None) == view.value
            assert (row["cell_id"], row["backend"]) == (view.cell.cell_id, view.backend)
            assert row["fastest"] == str(view.is_fastest).lower()


def test_every_list_has_the_figures_of_the_table_and_names_the_others(tables: list[ResultTable]) -> None:
    compared = 0
    for one in tables:
        metrics, entries = json.loads(exported.bencher(one)), json.loads(exported.github_action_benchmark(one))
        by_name = {entry["name"]: entry for entry in entries}
        assert len(by_name) == len(entries)
        for view in one.cells:
            reasons = {form: exported.without_figure(one, form) for form in exported.FORMATS}
            left_out = {form for form, lines in reasons.items() if any(view.name in line for line in lines)}
            assert (view.name not in metrics) == ("bencher" in left_out) == (view.value is None)
            assert (view.name not in by_name) == ("github-action-benchmark" in left_out)
            assert left_out <= {"bencher", "github-action-benchmark"}
            if view.value is None or not view.is_step:
                continue
            ends = {"lower_value": view.low, "upper_value": view.high}
            expected = {"value": view.value, **{name: end for name, end in ends.items() if end is not None}}
            assert metrics[view.name]["latency"] == pytest.approx({key: v * 1e9 for key, v in expected.items()})
            assert by_name[view.name]["value"] == pytest.approx(view.value * 1e3)
            compared += 1
    assert compared > 10


def command(value: float, goal: Goal) -> ResultTable:
    metric = Metric("accuracy" if goal is Goal.HIGHER else "own time/s", value, "%", goal=goal)
    task = TaskRun("train", ["train"], metric.name, [metric])
    return result_table(table([make_record(None, task=task, settings=make_settings(workload="task:train"))]))


def test_metric_of_which_more_is_better_is_left_out_of_a_list_of_the_reverse() -> None:
    shown = command(91.5, Goal.HIGHER)

    assert exported.github_action_benchmark(shown) == "[]\n"
    [line] = exported.without_figure(shown, "github-action-benchmark")
    assert line.endswith("more accuracy is better, customSmallerIsBetter takes the reverse")
    [measures] = json.loads(exported.bencher(shown)).values()
    assert measures["accuracy"] == {"value": pytest.approx(91.5)}


def test_short_name_of_a_metric_has_letters_digits_and_hyphens() -> None:
    [measures] = json.loads(exported.bencher(command(3.5, Goal.LOWER))).values()
    assert "own-time-s" in measures


def test_markdown_of_hostile_names_stays_one_row(make_hostile: Callable[[], ResultTable]) -> None:
    lines = exported.markdown(make_hostile()).splitlines()
    [row] = [line for line in lines if line.startswith("| ") and "jax" in line]
    assert "<script" not in row
    assert row.count(" | ") == lines[2].count(" | ")


@pytest.fixture
def make_hostile() -> Callable[[], ResultTable]:
    settings = make_settings(workload="m:build", params={"a": "x | <script>\n| y |"})
    return lambda: result_table(table([make_record(0.5, settings=settings)]))

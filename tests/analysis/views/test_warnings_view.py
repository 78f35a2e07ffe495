"""Every output shows the same warnings and caveats of a run: terminal and page."""

from __future__ import annotations

from dataclasses import replace

import pytest
from rich.console import Console

from keras_matrix.analysis.comparison.context import NO_CONTEXT
from keras_matrix.analysis.comparison.table import table
from keras_matrix.analysis.views.warnings_view import CellWarning, warnings_by_rule
from keras_matrix.dashboards.report import failures
from keras_matrix.records.schema import Status
from keras_matrix.runner.cli.render.findings import print_problems
from keras_matrix.runner.service.stored import Findings
from tests.conftest import make_record, make_settings

BUSY, STEAL = "busy: other processes used the CPU; stop them", "steal: {} of a CPU were taken; use another machine"


@pytest.fixture(scope="module")
def found() -> Findings:
    """A run of two cells: texts of one rule, of another format, and of an attempt that was measured again."""
    jax, torch = make_settings(backend="jax"), make_settings(backend="torch")
    warned = {0: [BUSY, STEAL.format("2 %")], 1: [STEAL.format("3 %"), STEAL.format("4 %")], 2: ["odd"]}
    records = [
        *(make_record(0.01, repeat, settings=jax, warnings=warned[repeat]) for repeat in range(3)),
        *(make_record(0.02, repeat, settings=torch, warnings=[BUSY]) for repeat in range(3)),
        make_record(None, 3, Status.INFRA, settings=torch, warnings=["lost: the machine went away"]),
        make_record(0.02, 3, settings=torch, attempt=1),
    ]
    [row] = table(records)
    doubtful = replace(row.cells["jax"], caveats=("epochs become faster", "an outlier"))
    return Findings([replace(row, cells={**row.cells, "jax": doubtful})], records, NO_CONTEXT)


def test_warnings_are_grouped_by_rule_with_the_repeats_of_each_text(found: Findings) -> None:
    """Mutation: attempts that do not count are on the page."""
    rules = warnings_by_rule(found.records, found.table)
    title = found.rows[0].title
    assert [(rule.records, rule.cells) for rule in rules] == [
        (4, (f"{title} on jax", f"{title} on torch")),
        (2, (f"{title} on jax",)),
        (1, (f"{title} on jax",)),
        (1, (f"{title} on torch",)),
    ]
    assert set(rules[0].by_cell) == {
        CellWarning("busy", "other processes used the CPU", "stop them", title, "jax", (0,)),
        CellWarning("busy", "other processes used the CPU", "stop them", title, "torch", (0, 1, 2)),
    }
    assert [(one.problem[:3], one.repeats) for one in rules[1].by_cell] == [("2 %", (0,)), ("3 %", (1,)), ("4 %", (1,))]
    assert rules[2].by_cell == (CellWarning("", "odd", "", title, "jax", (2,)),)
    assert rules[3].by_cell == ()


def test_terminal_and_page_show_the_warnings_and_caveats_of_the_view(
    found: Findings, capsys: pytest.CaptureFixture[str]
) -> None:
    rules = warnings_by_rule(found.records, found.table)
    print_problems(Console(highlight=False, width=1000), found)
    terminal = capsys.readouterr().out.splitlines()
    warned = [line for line in terminal if line.startswith("warning ")]
    for rule, line in zip(rules, warned, strict=True):
        assert line == f"warning in {rule.records} of 8 records ({', '.join(rule.cells)}), such as: {rule.example}"
    entries = failures.warnings(rules)
    assert {(one.label, one.texts, one.advice, one.title, one.backend, one.where) for one in entries} == {
        (
            one.rule or "warning",
            (one.problem,),
            one.advice,
            one.title,
            one.backend,
            f"repeat{'s'[: len(one.repeats) > 1]} {', '.join(map(str, one.repeats))}",
        )
        for rule in rules
        for one in rule.by_cell
    }
    assert len(entries) == sum(len(rule.by_cell) for rule in rules) == 6
    doubtful = [view for view in found.table.cells if view.caveats]
    assert len(doubtful) == 1
    assert [f"caveat {view.name}: {'; '.join(view.caveats)}" for view in doubtful] == [
        line for line in terminal if line.startswith("caveat ")
    ]
    assert [one.texts for one in failures.caveats(found.table)] == [view.caveats for view in doubtful]

"""Every output shows of each cell its own figure, under a title that no other work of the page has.

Cells differ in a setting or in a parameter: parameters are named like settings, texts look like numbers, values
contain blanks and the signs of a title. Each cell has a figure of its own. The tests count the pairs of works that
they have compared.
"""

from __future__ import annotations

import html
import json
import random
import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, fields, replace
from functools import cache
from itertools import combinations
from pathlib import Path

import pytest

from keras_matrix.analysis.comparison.context import NO_CONTEXT
from keras_matrix.analysis.comparison.primary_metric import figure_of
from keras_matrix.analysis.comparison.table import Row, table, work_key
from keras_matrix.analysis.comparison.titles import titles
from keras_matrix.analysis.comparison.versus import versus
from keras_matrix.analysis.regression.gate import Rule
from keras_matrix.analysis.regression.reproduction import judge
from keras_matrix.analysis.stalls.analysis import reports
from keras_matrix.analysis.views.comparison_view import comparison_view
from keras_matrix.analysis.views.result_table import result_table
from keras_matrix.dashboards.live.page import panel_of
from keras_matrix.dashboards.live.questions import DashboardFilter, questions
from keras_matrix.dashboards.report import page
from keras_matrix.records.identity import cell_id
from keras_matrix.records.instruments.stall_arms import arms_of, base_of
from keras_matrix.records.schema import Record, Status
from keras_matrix.records.settings import Scalar, Settings
from keras_matrix.records.store import Results, Run
from keras_matrix.records.text import number
from keras_matrix.runner.cli.compare import reproduce
from keras_matrix.runner.cli.inputs.stalls import report_lines
from keras_matrix.runner.cli.main import main
from keras_matrix.runner.cli.render import history_lines
from keras_matrix.runner.cli.render import versus as versus_text
from keras_matrix.runner.cli.render.exported import as_document
from keras_matrix.runner.cli.render.findings import table_lines
from keras_matrix.runner.errors import UsageError
from keras_matrix.runner.matrix.reader import Cell
from keras_matrix.runner.matrix.settings_text import settings_text, title_defaults
from keras_matrix.runner.measure.tensorboard import folder_of
from keras_matrix.runner.plan.largest_batch import Try
from keras_matrix.runner.plan.plan import PlannedRepeat, comparisons
from keras_matrix.runner.progress.lines import cell_name, tried_line
from keras_matrix.runner.progress.time_left import CellNames
from keras_matrix.runner.service import cells as choice
from keras_matrix.runner.service.cell_rows import cells_of, columns
from keras_matrix.runner.service.cells import stored_cell
from keras_matrix.runner.service.histories import assessed_histories, read, views
from keras_matrix.runner.service.stored import Findings, update_findings
from tests.conftest import NIGHTLY, make_record, make_settings
from tests.dashboards.boards import warehouse_of
from tests.sessions import noisy, processes, run_name, store_session

RUNS, CELLS = 8 if NIGHTLY else 4, 30
LEAST_PAIRS = 250 * RUNS
WORKLOADS = ("my_models:build", "other:build", "mnist_mlp")
NAMES = (*(one.name for one in fields(Settings)), "width", "definition", "params.feed", "a b", "a=1")
VALUES: tuple[Scalar, ...] = (
    *("1", 1, 1.0, True, "True", "true", 0, False, "False", "None", "null", "nan", -1, 0.1, "0.1"),
    *(
        "",
        " ",
        "a",
        "b",
        "a b",
        "a  b",
        " a",
        "a, b",
        "a=b",
        "a seed=1",
        'a"',
        "é",
        "\u202ea",
        "a\tb",
        "<b>",
        "*",
        "[a]",
    ),
    *("host_fed", "device_resident", "fit", "jax", "x" * 80),
)
SETTINGS: Mapping[str, Sequence[Scalar]] = {
    "batch_size": (8, 32),
    "samples": (1000, 500),
    "seed": (0, 1),
    "epochs": (4, 2),
    "jit": ("auto", True, False),
    "feed": ("device_resident", "host_fed"),
    "cpus": ("all", 1, "1"),
    "precision": ("float32", "bfloat16"),
}


def one_cell(chance: random.Random) -> Settings:
    """Return a cell whose parameters and settings are drawn, few of each so that many cells are alike."""
    params = {chance.choice(NAMES): chance.choice(VALUES) for _ in range(chance.randrange(3))}
    settings = {name: chance.choice(SETTINGS[name]) for name in chance.sample(sorted(SETTINGS), chance.randrange(3))}
    workload, backend = chance.choice(WORKLOADS), chance.choice(("jax", "torch"))
    by_matrix = ",".join(name for name in ("feed", "samples") if name in settings) if ":" in workload else ""
    return make_settings(workload=workload, backend=backend, params=params, set_by_matrix=by_matrix, **settings)


def changed(settings: Settings, chance: random.Random) -> Settings:
    """Return a cell that differs in one value or in the name of one parameter, or in its backend."""
    params = dict(settings.params)
    if params and chance.random() < 0.7:
        name = chance.choice(sorted(params))
        value = params.pop(name)
        params[name if chance.random() < 0.5 else chance.choice(NAMES)] = chance.choice((*VALUES, value))
    elif chance.random() < 0.5:
        name = chance.choice(("feed", "seed", "batch_size", "jit"))  # the value of a setting as a parameter
        params[name] = getattr(settings, name)
    backend = chance.choice((settings.backend, "jax", "torch"))
    return make_settings(
        **{**{f.name: getattr(settings, f.name) for f in fields(settings)}, "params": params, "backend": backend}
    )


def drawn(seed: int) -> list[Settings]:
    """Return so many different cells of one run, half of them near another one."""
    chance = random.Random(seed)
    cells: dict[str, Settings] = {}
    while len(cells) < CELLS:
        near = cells and chance.random() < 0.6
        settings = changed(chance.choice(list(cells.values())), chance) if near else one_cell(chance)
        cells.setdefault(cell_id(settings), settings)
    return list(cells.values())


@dataclass(frozen=True, slots=True)
class Drawn:
    """The cells of a run, with the time of a step of each by its id, which no other cell of any run has."""

    cells: tuple[Settings, ...]
    times_s: Mapping[str, float]

    @property
    def records(self) -> list[Record]:
        return [make_record(self.times_s[cell_id(one)], settings=one) for one in self.cells]

    @property
    def pairs(self) -> int:
        works = {work_key(one) for one in self.cells}
        return len(works) * (len(works) - 1) // 2


@cache
def runs() -> tuple[Drawn, ...]:
    cells = [drawn(seed) for seed in range(RUNS)]
    ids = dict.fromkeys(cell_id(one) for several in cells for one in several)
    times_s = {name: (100 + number) / 1000 for number, name in enumerate(ids)}
    return tuple(Drawn(tuple(several), times_s) for several in cells)


@cache
def tables() -> tuple[tuple[Drawn, list[Row]], ...]:
    return tuple((one, table(one.records, title_defaults())) for one in runs())


def figure(seconds: float) -> str:
    return f"{number(seconds * 1000)} ms"


def expected(drawn: Drawn, rows: Iterable[Row]) -> dict[str, dict[str, str]]:
    """Return by the title of each row and by backend the figure that belongs to the settings of that cell."""
    return {
        row.title: {name: figure(drawn.times_s[cell_id(cell.settings)]) for name, cell in row.cells.items()}
        for row in rows
    }


def test_titles_of_different_works_differ_in_2000_pairs() -> None:
    compared = 0
    for one, rows in tables():
        assert {row.key for row in rows} == {work_key(settings) for settings in one.cells}
        for row, other in combinations(rows, 2):
            assert row.title != other.title
            compared += 1
        assert len(expected(one, rows)) == len(rows)
        assert all(" ".join(row.title.split()) == row.title for row in rows)  # as a browser shows it
    assert compared == sum(one.pairs for one in runs()) >= LEAST_PAIRS


def test_titles_of_two_works_alone_differ() -> None:
    chance, compared = random.Random(1), 0
    while compared < LEAST_PAIRS:
        one = one_cell(chance)
        other = changed(one, chance)
        if work_key(one) != work_key(other):
            assert len(set(titles([one, other], title_defaults()))) == 2, (one, other)
            compared += 1


def test_terminal_shows_each_cell_its_own_figure() -> None:
    for one, rows in tables():
        known, shown, title = {row.title for row in rows}, dict[str, dict[str, str]](), ""
        for line in (line.text for line in table_lines(result_table(rows))):
            if line in known:
                title = line
            elif found := re.match(r"[* ] (jax|torch) +(\d+ ms) ", line):
                assert found[1] not in shown.setdefault(title, {})
                shown[title][found[1]] = found[2]
        assert shown == expected(one, rows)


def test_json_has_each_cell_with_its_own_figure() -> None:
    for one, rows in tables():
        document = json.loads(as_document({}, Findings(rows, one.records, NO_CONTEXT)))
        shown = {
            row["title"]: {name: figure(cell["step_time"]["centre"]) for name, cell in row["cells"].items()}
            for row in document["rows"]
        }
        assert shown == expected(one, rows)
        found = {
            cell["cell_id"]: cell["step_time"]["centre"] for row in document["rows"] for cell in row["cells"].values()
        }
        assert found == pytest.approx({cell_id(each): one.times_s[cell_id(each)] for each in one.cells})


def test_report_shows_each_cell_its_own_figure() -> None:
    for one, rows in tables():
        text = page.render(one.records, result_table(rows), {})
        sheets = re.findall(r'<div class="sheet" id="work-\d+">(.*?)</table>', text, re.DOTALL)
        shown = {}
        for sheet in sheets:
            [title] = re.findall("<h3>(.*?)</h3>", sheet)
            heads = re.findall(r'<th scope="col" class="s\d">(.*?)</th>', sheet)
            [values] = re.findall(r'<tr class="primary">(.*?)</tr>', sheet, re.DOTALL)
            figures = [re.sub("<.*", "", cell) for cell in re.findall("<td[^>]*>(.*?)</td>", values, re.DOTALL)]
            named = zip(heads, figures, strict=True)
            shown[html.unescape(title)] = {name: f"{number} ms" for name, number in named if number[0].isdigit()}
        assert shown == expected(one, rows)
        pictures = re.findall(r'<h3 class="of">(.*?)</h3>', text)
        assert {row.title for row in rows} >= {html.unescape(title) for title in pictures if "build" in title}


def test_python_values_and_columns_belong_to_their_cells() -> None:
    for one, rows in tables():
        cells = cells_of(result_table(rows))
        assert len({cell.name for cell in cells}) == len(one.cells)
        found = columns(cells)
        by_name = dict(zip(found["name"], found["step_time_s"], strict=True))
        wanted = {f"{row.title} on {name}": cell.cell_id for row in rows for name, cell in row.cells.items()}
        assert by_name == pytest.approx({name: one.times_s[each] for name, each in wanted.items()})
        assert found["seed"] == [cell.settings["seed"] for cell in cells]


def test_comparison_of_base_and_new_shows_each_cell_its_own_figures() -> None:
    for one, _ in tables():
        new = [make_record(2 * one.times_s[cell_id(each)], settings=each) for each in one.cells]
        found = versus(one.records, new, Rule(0.05))
        view = comparison_view(found, 0.05, title_defaults())
        names = {change.comparison.cell_id: change.title for change in view.cells}
        assert len({change.name for change in view.cells}) == len(one.cells)
        rows = [line.split("  ") for line in versus_text.text(view).splitlines() if " ms" in line]
        shown = {(words[0], words[1]): words[2] for line in rows if (words := [w.strip() for w in line if w.strip()])}
        wanted = {(names[cell_id(each)], each.backend): figure(one.times_s[cell_id(each)]) for each in one.cells}
        assert shown == wanted


def test_plan_and_progress_name_each_cell_apart() -> None:
    for one, _ in tables():
        cells = [Cell(each, cell_id(each), 1, 1.0, None) for each in one.cells]
        names = CellNames([PlannedRepeat(cell, 0) for cell in cells])
        assert len({names.of(cell) for cell in cells}) == len(cells)
        assert len(comparisons(cells)) == len({work_key(each) for each in one.cells})
        assert len({(settings_text(each), each.backend) for each in one.cells}) == len(one.cells)


def test_folders_of_tensorboard_differ_by_cell() -> None:
    """Mutation: a part of the cell_id is left out; names of workloads are cut and cleaned."""
    for one, _ in tables():
        assert len({folder_of(record) for record in one.records}) == len(one.cells)
    record = runs()[0].records[0]
    other = replace(record, cell_id=f"{record.cell_id[:8]}{record.cell_id[8:][::-1]}")
    assert folder_of(record) != folder_of(other)


def test_search_of_the_largest_batch_names_each_cell_apart() -> None:
    """Mutation: a line has the workload alone."""
    for one, _ in tables():
        cells = [Cell(replace(each, batch_size=8), cell_id(each), 1, 1.0, None) for each in one.cells]
        works = {cell_id(cell.settings) for cell in cells}
        for texts in ({cell_name(c) for c in cells}, {tried_line(c, Try(8, Status.OK)) for c in cells}):
            assert len(texts) == len(works)


def test_stall_analyses_show_each_cell_its_own_figure() -> None:
    """Mutation: the analyses are grouped by their workload."""
    for one, _ in tables():
        bases = {cell_id(base_of(each)): each for each in one.cells if ":" in each.workload}
        times_s = {name: one.times_s[cell_id(each)] for name, each in bases.items()}
        records = [
            make_record(times_s[name], repeat, settings=arm)
            for name, each in bases.items()
            for arm in arms_of(base_of(each), cold=False)
            for repeat in range(3)
        ]
        found = {report.cell_id: report_lines(report) for report in reports(records, {})}
        assert found.keys() == times_s.keys()
        assert len({lines[0] for lines in found.values()}) == len(found)
        for name, lines in found.items():
            [step] = [line for line in lines if line.startswith("step ")]
            assert figure(times_s[name]) in step


def test_selection_by_id_takes_the_cell_with_its_own_settings() -> None:
    """As `bisect`, `reproduce`, `explain` and `stalls` find a cell; of one workload they ask, with different titles."""
    for one, _ in tables():
        there = {cell_id(each): each for each in one.cells}
        for name, settings in there.items():
            assert choice.one_of(name, there, "run R") == name
            stored = stored_cell([record for record in one.records if record.cell_id == name], 5)
            assert (stored.cell_id, cell_id(stored.settings)) == (name, name)
            assert stored.settings == settings
        with pytest.raises(UsageError) as refused:
            choice.one_of("my_models:build", there, "run R")
        lines = [line for line in str(refused.value).splitlines() if any(name in line for name in there)]
        texts = [re.sub("[0-9a-f]{16}", "", line) for line in lines]
        assert len(set(texts)) == len(lines)


def test_reproduction_names_the_cell_and_shows_its_figures() -> None:
    for one, _ in tables():
        shown = {}
        for record in one.records:
            lines = reproduce.lines(judge([record], [record], None, 0.05), figure_of([record]), [record], [record])
            assert f"cell {record.cell_id}" in lines[0]
            assert all(figure(one.times_s[record.cell_id]) in line for line in lines[1:3])
            shown[record.cell_id] = lines[0].partition(", cell ")[0]
        assert len(set(shown.values())) == len(one.cells)


def test_warehouse_and_history_show_each_cell_its_own_figure(tmp_path: Path) -> None:
    """All runs on one page: a cell of several runs shows the newest, which has the same figure."""
    for night, (one, _) in enumerate(tables()[:3]):
        times_s = {cell_id(each): one.times_s[cell_id(each)] for each in one.cells}
        records = [r for each in one.cells for r in processes(times_s[cell_id(each)], 0.0, 3, settings=each)]
        update_findings(Run(store_session(tmp_path, run_name(night), records)))
    all_times_s = {cell_id(each): one.times_s[cell_id(each)] for one in runs()[:3] for each in one.cells}
    warehouse = warehouse_of(Results(tmp_path))
    heat = panel_of(warehouse, questions()["matrix"], DashboardFilter()).heat
    shown = {cell.cell_id: cell.text for row in heat for cell in row.cells if cell.cell_id}
    assert shown == {name: figure(seconds) for name, seconds in all_times_s.items()}
    assert len({row.title for row in heat}) == len(heat) == len({work_key(e) for o in runs()[:3] for e in o.cells})
    blocks = panel_of(warehouse, questions()["figures"], DashboardFilter()).blocks
    assert {block.title for block in blocks} == {row.title for row in heat}
    series = panel_of(warehouse, questions()["trend"], DashboardFilter()).series
    assert len({one.series.title for one in series}) == len(series)

    histories = views(assessed_histories(read([tmp_path], None)[0], [tmp_path]))
    named = {view.history.cell_id: view.title for view in histories}
    backends = {cell_id(each): each.backend for one in runs()[:3] for each in one.cells}
    assert len({(title, backends[name]) for name, title in named.items()}) == len(named) == len(all_times_s)
    for line in history_lines.overview(histories)[1:]:
        name = line.split()[0]
        assert line.endswith(named[name])
        assert figure(all_times_s[name]) in line


def test_notifications_name_each_cell_with_its_own_change(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    changes = {"a": 1.25, "b": 1.5}
    cells = {value: make_settings(workload="my_models:build", params={"feed": value}) for value in changes}
    for night, noise in enumerate(noisy(1.0, 24)):
        after = night >= 12
        versions = {"keras": "3.16.0" if after else "3.15.0", "jax": "0.10.0"}
        times_s = {value: 0.01 * noise * (changes[value] if after else 1.0) for value in cells}
        records = [r for v, one in cells.items() for r in processes(times_s[v], settings=one, versions=versions)]
        store_session(tmp_path, run_name(night), records)
    place = ["--notify", "webhook:https://hooks.example/x", "--dry-run"]
    assert main(["history", "--results", str(tmp_path), *place]) == 0
    texts = re.split(r"^POST .*\n", capsys.readouterr().out, flags=re.MULTILINE)[1:]
    found = {one["cell"]["id"]: one for one in map(json.loads, texts)}
    for value, settings in cells.items():
        notice = found.pop(cell_id(settings))
        assert notice["text"].startswith(f"my_models:build params.feed={value} batch_size=32 on jax: time per step +")
        assert notice["change"]["ratio"] == pytest.approx(changes[value], rel=0.02)
        assert f"--filter params.feed={value} " in f"{' '.join(notice['reproduce'])} "
    assert not found

"""Works of several runs on one page have titles that differ, and each shows its own figures."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest

from keras_matrix.analysis.comparison.table import work_id
from keras_matrix.dashboards.charts.figure_table import by_work
from keras_matrix.dashboards.charts.stored_charts import worker_scalings
from keras_matrix.dashboards.live.page import panel_of
from keras_matrix.dashboards.live.panels import Panel
from keras_matrix.dashboards.live.questions import DashboardFilter, questions, with_titles
from keras_matrix.records.settings import Settings
from keras_matrix.records.store import Results, Run
from keras_matrix.runner.service.stored import update_findings
from keras_matrix.uploader.local.warehouse import LocalWarehouse
from tests.conftest import make_settings
from tests.dashboards.boards import warehouse_of
from tests.sessions import processes, run_name, store_session

WORKLOAD = "my_models:build"


def pushed(root: Path, works: Sequence[Settings]) -> LocalWarehouse:
    """Store one run for each of these works, whose step takes 10 ms times its number, and push all."""
    for number, settings in enumerate(works):
        records = processes(0.01 * (number + 1), count=5, settings=settings)
        update_findings(Run(store_session(root, run_name(number), records)))
    return warehouse_of(Results(root))


def asked(warehouse: LocalWarehouse, name: str) -> Panel:
    return panel_of(warehouse, questions()[name], DashboardFilter())


def test_works_with_one_title_in_their_runs_are_named_by_what_differs(tmp_path: Path) -> None:
    values: list[dict[str, Any]] = [{"feed": "a"}, {"feed": "b"}, {"feed": "1"}, {"feed": 1}]
    warehouse = pushed(tmp_path, [make_settings(workload=WORKLOAD, params=params) for params in values])
    heat = {row.title: [cell.text for cell in row.cells] for row in asked(warehouse, "matrix").heat}
    assert heat == {
        f"{WORKLOAD} feed=a": ["10.0 ms"],
        f"{WORKLOAD} feed=b": ["20.0 ms"],
        f'{WORKLOAD} feed="1"': ["30.0 ms"],
        f"{WORKLOAD} feed=1": ["40.0 ms"],
    }
    series = [one.series.title for one in asked(warehouse, "trend").series]
    assert sorted(series) == sorted(f"{title} on jax" for title in heat)
    blocks = {one.title: one.lines[0].values[0].text for one in asked(warehouse, "figures").blocks}
    assert {title: [f"{figure} ms"] for title, figure in blocks.items()} == heat


def test_works_that_differ_in_a_setting_or_a_backend_have_different_titles(tmp_path: Path) -> None:
    works = [make_settings(workload=WORKLOAD, batch_size=8), make_settings(workload=WORKLOAD, backend="torch")]
    titles = [row.title for row in asked(pushed(tmp_path, works), "matrix").heat]
    assert sorted(titles) == [f"{WORKLOAD} batch_size=32", f"{WORKLOAD} batch_size=8"]


def test_titles_that_differ_stay_and_no_settings_are_read(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    warehouse = pushed(tmp_path, [make_settings(workload=name) for name in ("gru", "lstm")])
    rows = [{"work": name, "work_id": name, "cell_id": "0", "workload": name, "backend": "jax"} for name in "ab"]
    monkeypatch.setattr(LocalWarehouse, "query", None)
    assert with_titles(warehouse, rows, DashboardFilter()) is rows
    assert with_titles(warehouse, [{"run_id": "1"}], DashboardFilter()) == [{"run_id": "1"}]


def test_works_whose_settings_are_not_known_are_named_by_their_ids(tmp_path: Path) -> None:
    warehouse = pushed(tmp_path, [make_settings(workload="gru")])
    rows = [{"work": "w", "work_id": name, "cell_id": name, "workload": "w", "backend": "jax"} for name in "ab"]
    assert [row["work"] for row in with_titles(warehouse, rows, DashboardFilter())] == ["w (work a)", "w (work b)"]


def test_rows_of_a_work_are_found_by_its_id_whatever_its_title_was() -> None:
    rows = [{"work": title, "work_id": name} for title, name in (("w a=1", "1"), ("w", "2"), ("w", "1"))]
    assert by_work(rows) == [[rows[0], rows[2]], [rows[1]]]


def test_sizes_of_an_fc_mode_have_a_picture_each() -> None:
    row = dict.fromkeys(("low", "high", "communication_share"), None) | {"mode": "fc_data", "backend": "jax"}
    rows = [
        {**row, "divided_work": f"fc weight_size={size}", "divided_work_id": size, "workers": n, "efficiency": share}
        for size, share in (("512", 0.9), ("4096", 0.5))
        for n in (1, 2)
    ]
    shown = {one.title: [strip.figure for strip in one.strips] for one in worker_scalings(rows)}
    assert shown == {"fc weight_size=512": ["90.0 %"], "fc weight_size=4096": ["50.0 %"]}
    assert [one.title for one in worker_scalings(rows[:2])] == ["fc_data"]


def test_work_of_a_finding_is_that_of_its_settings() -> None:
    one, other = (make_settings(workload=WORKLOAD, params={"feed": value}) for value in (1, True))
    assert work_id(one) != work_id(other)

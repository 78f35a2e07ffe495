"""A warehouse that was filled before `times.seed_total_time_s` became `times.suite_total_time_s` stays usable."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

from keras_matrix.dashboards.live.questions import DashboardFilter, answer, questions
from keras_matrix.records.findings import keep
from keras_matrix.records.schema import SCHEMA_VERSION
from keras_matrix.records.store import Results, Run
from keras_matrix.uploader.local.warehouse import LocalWarehouse
from keras_matrix.uploader.outbox import Outbox
from keras_matrix.uploader.push import push
from keras_matrix.uploader.verify import verify
from tests.conftest import make_record
from tests.sessions import run_name, store_session
from tests.uploader.stored import found

OLD, NEW = "times.seed_total_time_s", "times.suite_total_time_s"
TOTALS = f"SELECT metric, value, run_id FROM measurements WHERE metric IN ('{OLD}', '{NEW}') ORDER BY run_id"


def run_with_total(root: Path, number: int, version: int) -> Run:
    """Store a run with one record of a schema version, under the name that the field had in it."""
    record = make_record()
    times = replace(record.times, suite_total_time_s=1.5)
    folder = store_session(root, run_name(number), [replace(record, schema_version=version, times=times)])
    [path] = (folder / "records").glob("*.json")
    data = json.loads(path.read_text())
    if version < 4:
        data["times"]["seed_total_time_s"] = data["times"].pop("suite_total_time_s")
    path.write_text(json.dumps(data))
    run = Run(folder)
    total = replace(found(record.cell_id, 1.5), metric=OLD if version < 4 else NEW)
    keep(run, [found(record.cell_id), total])
    return run


def test_rows_of_older_records_keep_their_metric_so_that_a_filled_warehouse_still_matches(tmp_path: Path) -> None:
    results = Results(tmp_path / "results")
    warehouse, outbox = LocalWarehouse(results.root / "warehouse"), Outbox(tmp_path / "outbox")
    warehouse.create()
    run_with_total(results.root, 0, 3)
    push(results, warehouse, outbox)
    run_with_total(results.root, 1, SCHEMA_VERSION)
    push(results, warehouse, outbox)
    assert warehouse.query(TOTALS).rows == [(OLD, 1.5, run_name(0)), (NEW, 1.5, run_name(1))]
    assert verify(results, warehouse, values=True).problems == ()
    flat = warehouse.query("SELECT metrics.totaltime, steps_per_epoch FROM benchmarks ORDER BY run_id").rows
    assert flat == [(1.5, 32), (1.5, 32)]


def test_dashboards_show_older_findings_under_the_current_name(tmp_path: Path) -> None:
    results = Results(tmp_path / "results")
    warehouse = LocalWarehouse(results.root / "warehouse")
    warehouse.create()
    run_with_total(results.root, 0, 3)
    push(results, warehouse, Outbox(tmp_path / "outbox"))
    figures = answer(warehouse, questions()["figures"], DashboardFilter())
    assert [one["metric"] for one in figures.dicts()] == ["times.step_time_s", NEW]

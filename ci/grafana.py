"""Writes dashboards/grafana/*.json, the Grafana dashboards: `python ci/grafana.py`; a test checks they are current.

Each panel's SQL is a query of `dashboards/queries` with the dataset before its tables and Grafana's variables in place
of its parameters. Grafana inserts the text of a variable into a query, so each is written as `${name:sqlstring}`, which
quotes it. For Grafana 10 or later with its BigQuery data source plugin (grafana-bigquery-datasource).
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from keras_matrix.dashboards.live.questions import DEFAULT_DAYS, Question, questions
from keras_matrix.uploader.schema import TABLES
from keras_matrix.uploader.sql import qualified

FOLDER = Path(__file__).parents[1] / "dashboards" / "grafana"
SOURCE = {"type": "grafana-bigquery-datasource", "uid": "${source}"}
DATASET = "GRAFANA_PROJECT.GRAFANA_DATASET"
SCHEMA_VERSION = 39
WIDE = 24
TALL = 10
AS_TABLE, AS_SERIES = 1, 0
# Grafana's name of the unit of a column, by the suffix of its name.
UNITS = {"_s": "s", "_bytes": "bytes", "_flop_per_s": "flops"}


def dashboards() -> dict[str, dict[str, Any]]:
    """Return the dashboards by the names of their files."""
    overview = [one for one in questions().values() if one.name != "trend"]
    return {
        "overview.json": _dashboard("keras-benchmarks", "Keras benchmarks", [_table(one) for one in overview]),
        "trend.json": _dashboard("keras-benchmarks-trend", "Keras benchmarks: trend", [_trend(questions()["trend"])]),
    }


def text(dashboard: Mapping[str, Any]) -> str:
    """Return a dashboard as the text of its file."""
    return json.dumps(dashboard, indent=2) + "\n"


def sql(question: Question) -> str:
    """Return the query of a question with Grafana's variables."""
    body = qualified(question.sql, DATASET, [table.name for table in TABLES])
    for given in ("workload", "backend", "cell"):
        body = body.replace(f"@{given}", f"${{{given}:sqlstring}}")
    body = body.replace("@since", "'${__from:date:YYYY-MM-DD}'")
    project, dataset = DATASET.split(".")
    return body.replace(project, "${project}").replace(dataset, "${dataset}")


def _dashboard(uid: str, title: str, panels: list[dict[str, Any]]) -> dict[str, Any]:
    for number, one in enumerate(panels):
        one["id"] = number + 1
        one["gridPos"] = {"x": 0, "y": number * TALL, "w": WIDE, "h": TALL}
    return {
        "uid": uid,
        "title": title,
        "tags": ["keras", "benchmark"],
        "schemaVersion": SCHEMA_VERSION,
        "editable": True,
        "time": {"from": f"now-{DEFAULT_DAYS}d", "to": "now"},
        "templating": {"list": _variables()},
        "panels": panels,
    }


def _variables() -> list[dict[str, Any]]:
    source = {"name": "source", "type": "datasource", "query": SOURCE["type"], "label": "BigQuery"}
    texts = [("project", ""), ("dataset", "benchmarks"), ("workload", ""), ("backend", ""), ("cell", "")]
    return [source, *({"name": name, "type": "textbox", "label": name, "query": value} for name, value in texts)]


def _panel(question: Question, kind: str, form: int) -> dict[str, Any]:
    return {
        "type": kind,
        "title": question.title,
        "description": question.asks,
        "datasource": SOURCE,
        "targets": [
            {
                "refId": "A",
                "datasource": SOURCE,
                "editorMode": "code",
                "rawQuery": True,
                "format": form,
                "project": "${project}",
                "dataset": "${dataset}",
                "rawSql": sql(question),
            }
        ],
    }


def _table(question: Question) -> dict[str, Any]:
    overrides = [
        {
            "matcher": {"id": "byRegexp", "options": f"/{end}$/"},
            "properties": [{"id": "unit", "value": unit}],
        }
        for end, unit in UNITS.items()
    ]
    return {**_panel(question, "table", AS_TABLE), "fieldConfig": {"defaults": {}, "overrides": overrides}}


def _trend(question: Question) -> dict[str, Any]:
    panel = _panel(question, "timeseries", AS_SERIES)
    [target] = panel["targets"]
    target["rawSql"] = (
        "SELECT TIMESTAMP(day) AS time, step_time_s AS value, CONCAT(workload, ' ', backend, ' ', cell_id) AS metric\n"
        f"FROM (\n{target['rawSql']}\n) AS sessions\nORDER BY time"
    )
    return {**panel, "fieldConfig": {"defaults": {"unit": "s"}, "overrides": []}}


def main() -> None:
    """Write the files."""
    for name, dashboard in dashboards().items():
        (FOLDER / name).write_text(text(dashboard), encoding="utf-8")


if __name__ == "__main__":
    main()

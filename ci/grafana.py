"""Writes dashboards/grafana/*.json, the Grafana dashboards: `python ci/grafana.py`; a test checks they are current.

Each panel's SQL is a query of `dashboards/queries` with the dataset before its tables and Grafana's variables in place
of its parameters. Grafana inserts the text of a variable into a query, so each is written as `${name:sqlstring}`, which
quotes it. A question about figures is a picture: bars over the rows of its query, or lines over the time of runs. For
Grafana 10 or later with its BigQuery data source plugin (grafana-bigquery-datasource).
"""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any

from keras_matrix.dashboards.live.questions import DEFAULT_DAYS, Question, questions
from keras_matrix.records.backends import BACKENDS
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
# A run's identifier begins with the time when it began.
RUN_TIME = "PARSE_TIMESTAMP('%Y%m%dT%H%M%SZ', SUBSTR(run_id, 1, 16))"


@dataclass(frozen=True, slots=True)
class Picture:
    """How the rows of a question become a picture: its kind, its SQL over the query, the unit of its values.

    Of bars, the column `row` is the text of each row.
    """

    kind: str
    sql: Callable[[str], str]
    unit: str
    row: str = "name"
    logarithmic: bool = False


def by_backend(value: str) -> Callable[[str], str]:
    """Return SQL that gives a row for each work of a run, and a column for each backend.

    Backends that were measured in several runs were not measured alternately: each run has a row of its own.
    """
    columns = ",\n".join(f"  MAX(IF(backend = '{name}', {value}, NULL)) AS {name}" for name in BACKENDS)
    return lambda query: (
        f"SELECT work,\n{columns}\nFROM (\n{query}\n) AS found\nGROUP BY work, work_id, run_id\nORDER BY work, run_id"
    )


def relative(query: str) -> str:
    """Return SQL that gives a row for each work: the backends' ratios to the lowest, which is 1."""
    columns = ",\n".join(
        f"  MAX(IF(backend = '{name}', ratio, IF(against = '{name}', 1.0, NULL))) AS {name}" for name in BACKENDS
    )
    return (
        f"SELECT work,\n{columns}\nFROM (\n{query}\n) AS found\nGROUP BY work, work_id, run_id\nORDER BY work, run_id"
    )


def by_cell(name: str, *values: str) -> Callable[[str], str]:
    """Return SQL that gives a row for each row of the query, with a name, and these values."""
    some = " OR ".join(f"{value} IS NOT NULL" for value in values)
    return lambda query: (
        f"SELECT {name} AS name, {', '.join(values)}\nFROM (\n{query}\n) AS found\nWHERE {some}\nORDER BY name, cell_id"
    )


def over_time(value: str) -> Callable[[str], str]:
    """Return SQL that gives a line for each cell at each machine, over the time of its runs."""
    return lambda query: (
        f"SELECT {RUN_TIME} AS time, {value} AS value, CONCAT(work, ' on ', backend, ' ', cell_id) AS metric\n"
        f"FROM (\n{query}\n) AS found\nWHERE {value} IS NOT NULL\nORDER BY time"
    )


WORK_ON_BACKEND = "CONCAT(work, ' on ', backend)"
PICTURES: Mapping[str, Picture] = {
    "matrix": Picture("barchart", by_backend("step_time_s"), "s", "work", logarithmic=True),
    "comparison": Picture("barchart", relative, "none", "work"),
    "first_epoch": Picture("barchart", by_cell(WORK_ON_BACKEND, "first_epoch_time_s", "steady_epoch_time_s"), "s"),
    "memory": Picture("barchart", by_cell(WORK_ON_BACKEND, "host_bytes", "device_bytes"), "bytes"),
    "calls": Picture(
        "barchart",
        by_cell("CONCAT(ladder, ' on ', backend, ', ', call)", "call_time_p50_s", "call_time_p99_s"),
        "s",
        logarithmic=True,
    ),
    "input_stalls": Picture("timeseries", over_time("stall_share"), "percentunit"),
    "device_scaling": Picture(
        "barchart",
        by_cell(
            "CONCAT(IFNULL(divided_work, work), ' on ', devices, ' devices, ', backend)",
            "efficiency",
            "communication_share",
        ),
        "percentunit",
    ),
    "fc_scaling": Picture(
        "barchart",
        by_cell(
            "CONCAT(IFNULL(divided_work, mode), ' on ', workers, ' workers, ', backend)",
            "efficiency",
            "communication_share",
        ),
        "percentunit",
    ),
    "roofline": Picture("barchart", by_cell(WORK_ON_BACKEND, "share_of_peak"), "percentunit"),
    "trend": Picture("timeseries", over_time("step_time_s"), "s"),
}
# Beside its picture, whose bars have no interval: intervals, verdicts and caveats.
WITH_TABLE = ("comparison", "matrix")


def dashboards() -> dict[str, dict[str, Any]]:
    """Return the dashboards by the names of their files."""
    overview = [panel for question in questions().values() if question.name != "trend" for panel in _panels(question)]
    return {
        "overview.json": _dashboard("keras-benchmarks", "Keras benchmarks", overview),
        "trend.json": _dashboard("keras-benchmarks-trend", "Keras benchmarks: trend", _panels(questions()["trend"])),
    }


def text(dashboard: Mapping[str, Any]) -> str:
    """Return a dashboard as the text of its file."""
    return json.dumps(dashboard, indent=2) + "\n"


@cache
def sql(question: Question) -> str:
    """Return the query of a question with Grafana's variables."""
    body = qualified(question.sql, DATASET, [table.name for table in TABLES])
    for variable in ("workload", "backend", "cell"):
        body = body.replace(f"@{variable}", f"${{{variable}:sqlstring}}")
    body = body.replace("@since", "'${__from:date:YYYY-MM-DD}'")
    project, dataset = DATASET.split(".")
    return body.replace(project, "${project}").replace(dataset, "${dataset}")


def _dashboard(uid: str, title: str, panels: list[dict[str, Any]]) -> dict[str, Any]:
    for number, panel in enumerate(panels):
        panel["id"] = number + 1
        panel["gridPos"] = {"x": 0, "y": number * TALL, "w": WIDE, "h": TALL}
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


def _panels(question: Question) -> list[dict[str, Any]]:
    """Return the picture of a question, and its table if it has no picture or the picture leaves something out."""
    picture = PICTURES.get(question.name)
    if picture is None:
        return [_table(question)]
    table = _table(question)
    table["title"] = f"{question.title}: intervals and verdicts"
    return [_picture(question, picture), *([table] if question.name in WITH_TABLE else [])]


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


def _picture(question: Question, picture: Picture) -> dict[str, Any]:
    panel = _panel(question, picture.kind, AS_SERIES if picture.kind == "timeseries" else AS_TABLE)
    [target] = panel["targets"]
    target["rawSql"] = picture.sql(target["rawSql"])
    defaults: dict[str, Any] = {"unit": picture.unit}
    options: dict[str, Any] = {"legend": {"displayMode": "list", "placement": "bottom", "showLegend": True}}
    options["tooltip"] = {"mode": "multi", "sort": "none"}
    if picture.kind == "barchart":
        # The first column is the text of a bar; every other one is a series.
        options |= {"orientation": "horizontal", "showValue": "auto", "xField": picture.row}
        if picture.logarithmic:
            defaults["custom"] = {"scaleDistribution": {"type": "log", "log": 10}}
    else:
        defaults["custom"] = {"drawStyle": "line", "showPoints": "always", "spanNulls": True}
    return {**panel, "options": options, "fieldConfig": {"defaults": defaults, "overrides": []}}


def main() -> None:
    """Write the files."""
    for name, dashboard in dashboards().items():
        (FOLDER / name).write_text(text(dashboard), encoding="utf-8")


if __name__ == "__main__":
    main()

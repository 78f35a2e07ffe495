"""Titles of works on a page of many runs: those that two works have in common name the settings that differ.

A run's findings name a work by what varies in that run, so that works of two runs may have one title. The settings are
read from the warehouse only then. Promise: after `with_titles` the rows of two works never have one title.
"""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from keras_matrix.analysis.comparison.titles import Labels, titles_of
from keras_matrix.dashboards.live.questions import Choice, Reader
from keras_matrix.records.identity import DEFAULTS
from keras_matrix.records.names import SETTINGS, parameter_key

Row = Mapping[str, Any]
LABELS = tuple(name for name in SETTINGS if name not in ("backend", "workload"))
CELLS = """
SELECT DISTINCT cell_id, workload, IF(params IS NULL, '{}', TO_JSON_STRING(params)) AS params, LABELS
FROM cells
WHERE source IS NULL AND day >= CAST(@since AS DATE) AND (@workload = '' OR workload = @workload)
""".replace("LABELS", ", ".join(LABELS))


def with_titles(warehouse: Reader, rows: Sequence[Row], choice: Choice) -> Sequence[Row]:
    """Return the rows of a question; works that have one title get others. Raises `WarehouseFailure`.

    Rows that are not of a cell, as those of runs, are returned as they are.
    """
    if not rows or not {"cell_id", "workload", "backend"} <= rows[0].keys():
        return rows
    column = "work" if "work" in rows[0] else "workload"
    works = {_identity(row): row for row in rows}
    ambiguous = _ambiguous(works.values(), column)
    if not ambiguous:
        return rows
    found = warehouse.query(CELLS, choice.parameters(CELLS)).dicts()
    labels = {str(row["cell_id"]): _labels(row) for row in found if row["workload"] in ambiguous}
    concerned = {key: row for key, row in works.items() if row["workload"] in ambiguous}
    named = [(str(row["workload"]), labels.get(str(row["cell_id"]), {})) for row in concerned.values()]
    titles = dict(zip(concerned, map(str, titles_of(named, {})), strict=True))
    times = Counter((text, key[1]) for key, text in titles.items())
    titles = {key: text if times[text, key[1]] == 1 else f"{text} ({key[0]})" for key, text in titles.items()}
    return [{**row, column: titles[key]} if (key := _identity(row)) in titles else row for row in rows]


def _identity(row: Row) -> tuple[str, str]:
    """Return the identity of a row's work; without it, of its cell, and the backend that tells it from others."""
    work = row.get("work_id")
    return (f"work {work}", "") if work else (f"cell {row['cell_id']}", str(row["backend"]))


def _ambiguous(works: Iterable[Row], column: str) -> set[str]:
    """Return the workloads of which two works have one title."""
    times = Counter((str(row[column]), _identity(row)[1]) for row in works)
    return {str(row["workload"]) for row in works if times[str(row[column]), _identity(row)[1]] > 1}


def _labels(row: Row) -> Labels:
    """Return the settings and parameters of a cell; a setting that a warehouse does not store has its default."""
    params = {parameter_key(name): value for name, value in json.loads(row["params"]).items()}
    return {**params, **{name: DEFAULTS[name] if row[name] is None else row[name] for name in LABELS}}

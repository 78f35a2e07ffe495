"""`dlbenchmark_result.json`: a task's figures under the keys of the deeplearning-benchmark driver.

    [framework.]task.metric[.suffix]    and also: cpu_memory_usage (KiB), gpu_memory_usage_mean, _std and _max
                                        (MiB), uptime_in_seconds

Of several cells, `task` is followed by the backend and the parameters of each; cells that have one name by their ids.
A figure is the median over the repeats whose command succeeded. A value that was not measured has no key.
"""

from __future__ import annotations

import json
import statistics
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

from keras_matrix.analysis.comparison.primary_metric import completed, metrics_over
from keras_matrix.records.instruments.usage import MemoryUse
from keras_matrix.records.schema import Record
from keras_matrix.records.task import DEFINITION
from keras_matrix.records.text import KIB, MIB

NAME = "dlbenchmark_result.json"


@dataclass(frozen=True, slots=True)
class Labels:
    """The prefix and suffix of each key; may be empty."""

    framework: str = ""
    suffix: str = ""


def document(records: Iterable[Record], labels: Labels) -> dict[str, float]:
    """Return the figures of a run's cells; with several, a key contains the cell after the task."""
    records_by_cell: dict[str, list[Record]] = {}
    for record in completed(records):
        if record.task is not None:
            records_by_cell.setdefault(record.cell_id, []).append(record)
    cells = {
        cell_id: _cell(cell_records[0], several=len(records_by_cell) > 1)
        for cell_id, cell_records in records_by_cell.items()
    }
    count_by_title = Counter(cells.values())
    return {
        _key(labels, cells[cell_id], cell_id if count_by_title[cells[cell_id]] > 1 else "", name): value
        for cell_id, cell_records in records_by_cell.items()
        for name, value in _figures(cell_records).items()
    }


def text(figures: Mapping[str, float]) -> str:
    """Return the file's text."""
    return json.dumps(figures, indent=1, allow_nan=False) + "\n"


def _key(labels: Labels, cell_name: str, cell_id: str, metric: str) -> str:
    return ".".join(part for part in (labels.framework, cell_name, cell_id, metric, labels.suffix) if part)


def _cell(record: Record, *, several: bool) -> str:
    """Return the part of a key that names a cell: its task and, if there are several cells, its values."""
    assert record.task is not None
    params = [str(value) for name, value in record.settings.params.items() if name != DEFINITION]
    return ".".join(
        part for part in (record.task.name, *([record.settings.backend, *params] if several else [])) if part
    )


def _figures(records: Sequence[Record]) -> dict[str, float]:
    figures = {summary.name: summary.value for summary in metrics_over(records)}
    usages = [record.usage for record in records if record.usage]
    host = [usage.host_resident for usage in usages if usage.host_resident]
    gpus = [usage.device_memory for usage in usages if usage.device_memory]
    figures["cpu_memory_usage"] = _middle(host, "mean_bytes", KIB)
    for name in ("mean", "std", "max"):
        figures[f"gpu_memory_usage_{name}"] = _middle(gpus, f"{name}_bytes", MIB)
    return {name: value for name, value in figures.items() if value is not None}


def _middle(uses: Sequence[MemoryUse], name: str, unit: float) -> float | None:
    return statistics.median(getattr(use, name) / unit for use in uses) if uses else None

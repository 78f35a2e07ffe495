"""The table of a run for other programs: JSON, Markdown, CSV, and what two services for continuous benchmarks read.

Texts and figures are those of the terminal's table and of the Python API; here they only get another notation. A cell
without a figure is in no list of figures: `without_figure` names it, so that it does not vanish.
"""

from __future__ import annotations

import csv
import io
import json
import re
import sys
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from keras_matrix.analysis.comparison.context import UnreadFile
from keras_matrix.analysis.cost import COST_METRIC
from keras_matrix.analysis.keras_cost import KerasCost
from keras_matrix.analysis.scaling import DeviceScaling
from keras_matrix.analysis.views.call_ladder import CallLadder, CallRung
from keras_matrix.analysis.views.result_table import CellView, ResultTable, WorkView
from keras_matrix.records import left_out
from keras_matrix.records.codec import to_json
from keras_matrix.records.store import Run
from keras_matrix.records.task import Goal
from keras_matrix.records.text import interval_text, plural, printable
from keras_matrix.runner.cli.render.findings import columns_of
from keras_matrix.runner.cli.render.format import document, markdown_table, markdown_text
from keras_matrix.runner.service.cell_rows import cells_of, columns
from keras_matrix.runner.service.stored import Findings, unread_lines

TABLE, JSON = "table", "json"  # the other formats of `runner report`
NANOSECONDS, MILLISECONDS = 1e9, 1e3
Metric = dict[str, float]


def print_exported(run_findings: Findings, form: str, stray: Sequence[UnreadFile] = ()) -> None:
    """Print the table in one of `FORMATS`; what it leaves out, and files that cannot be read, on standard error."""
    print(FORMATS[form](run_findings.table), end="")
    for line in (*without_figure(run_findings.table, form), *unread_lines((*run_findings.run_context.unread, *stray))):
        print(printable(line), file=sys.stderr)


def markdown(table: ResultTable) -> str:
    """Return the table as Markdown: the answer, a row for each cell, the verdicts."""
    shown_columns = columns_of(table)
    rows = [["workload", "backend", *(column.heading for column in shown_columns)]]
    for work in table.works:
        for view in work.cells:
            backend = f"**{view.backend}**" if view.is_fastest else view.backend
            texts = [column.text(view) for column in shown_columns] if view.cell.measured else [view.failed_with]
            texts += [""] * (len(shown_columns) - len(texts))
            rows.append([work.row.title, backend, *texts])
    verdict_texts = [f"{work.row.title}: {work.row.verdict}" for work in table.works if len(work.cells) > 1]
    caveats = [f"{view.name}: {'; '.join(view.caveats)}" for view in table.cells if view.caveats]
    lines = [f"### {markdown_text(table.answer.text)}", "", *markdown_table(rows), ""]
    return "\n".join([*lines, *(f"- {markdown_text(text)}" for text in (*verdict_texts, *caveats))]) + "\n"


def as_csv(table: ResultTable) -> str:
    """Return the cells as CSV: the columns of `Run.to_frame`, UTF-8, an empty field for what was not measured."""
    values_by_column = columns(cells_of(table))
    buffer = io.StringIO()
    writer = csv.writer(buffer, lineterminator="\n")
    writer.writerow(values_by_column)
    writer.writerows(map(_plain, row) for row in zip(*values_by_column.values(), strict=True))
    return buffer.getvalue()


def bencher(table: ResultTable) -> str:
    """Return the cells in Bencher's metric format: per cell the measures that were taken, with their intervals.

    `latency`, the time per step in nanoseconds, and `throughput`, samples per second, have the units of Bencher's own
    measures of these names; memory is in bytes, a command's metric in its own unit.
    """
    measures = {printable(view.name): cell_measures for view in table.cells if (cell_measures := _measures(view))}
    return json.dumps(measures, indent=1, allow_nan=False) + "\n"


def github_action_benchmark(table: ResultTable) -> str:
    """Return the cells as github-action-benchmark reads them with `tool: customSmallerIsBetter`.

    Times per step are in milliseconds, a command's metric in its own unit; one of which more is better is left out.
    """
    entries = [_smaller_is_better(view) for view in table.cells if view.cell.figure.goal is Goal.LOWER]
    return json.dumps([entry for entry in entries if entry], indent=1, allow_nan=False, ensure_ascii=False) + "\n"


FORMATS: Mapping[str, Callable[[ResultTable], str]] = {
    "markdown": markdown,
    "csv": as_csv,
    "bencher": bencher,
    "github-action-benchmark": github_action_benchmark,
}


def without_figure(table: ResultTable, form: str) -> list[str]:
    """Return a line for each cell that a format cannot show, with the reason; Markdown and CSV show every cell."""
    if form in ("markdown", "csv"):
        return []
    lines = []
    for view in table.cells:
        if view.value is None:
            lines.append(f"left out: {view.name}: no figure{f' ({view.failed_with})' if view.failed_with else ''}")
        elif form == "github-action-benchmark" and view.cell.figure.goal is Goal.HIGHER:
            lines.append(
                f"left out: {view.name}: more {view.cell.figure.name} is better, "
                "customSmallerIsBetter takes the reverse"
            )
    return lines


def _plain(value: Any) -> Any:
    if isinstance(value, bool):
        return str(value).lower()
    return printable(value) if isinstance(value, str) else value


def _measures(view: CellView) -> dict[str, Metric]:
    """Return what was measured of a cell, by Bencher's short names."""
    if view.value is None:
        return {}
    name, scale = ("latency", NANOSECONDS) if view.is_step else (_short(view.cell.figure.name), 1.0)
    others = {
        "throughput": view.cell.samples_per_s if view.is_step else None,
        "peak-host-memory": view.cell.peak_host_memory_bytes,
        "peak-device-memory": view.cell.peak_device_memory_bytes,
    }
    return {name: _metric(view, scale), **{key: {"value": value} for key, value in others.items() if value is not None}}


def _metric(view: CellView, scale: float) -> Metric:
    """Return the figure that a cell is compared by, with the ends of its interval if it has one."""
    values = {"value": view.value, "lower_value": view.low, "upper_value": view.high}
    return {name: value * scale for name, value in values.items() if value is not None}


def _short(name: str) -> str:
    """Return the name of a metric in the form of Bencher's short names: `steps/s` is `steps-s`."""
    return re.sub(r"[^a-z0-9]+", "-", name.lower()).strip("-")[:64] or "metric"


def _smaller_is_better(view: CellView) -> dict[str, Any]:
    if view.value is None:
        return {}
    scale, unit = (MILLISECONDS, "ms/step") if view.is_step else (1.0, view.cell.figure.unit)
    entry = {"name": printable(view.name), "unit": printable(unit), "value": view.value * scale}
    if view.low is not None and view.high is not None:
        entry["range"] = printable(interval_text(view.low, view.high, view.cell.figure.unit))
    return {**entry, "extra": f"{plural(view.processes, 'process', 'processes')}, 95 % interval between them"}


def as_json(store: Run, run_findings: Findings, code: int, stray: Sequence[UnreadFile] = ()) -> str:
    """Return the findings of a run as a JSON document; `stray` are further files that cannot be read."""
    return as_document({"run_id": store.run_id, "folder": str(store.folder), "exit_code": code}, run_findings, stray)


def as_document(head: Mapping[str, object], run_findings: Findings, stray: Sequence[UnreadFile] = ()) -> str:
    """Return findings as a JSON document that begins with these keys."""
    fields = {
        **head,
        "answer": to_json(run_findings.table.answer),
        "statuses": dict(Counter(str(record.status) for record in run_findings.records)),
        "rows": [_row_json(work) for work in run_findings.table.works],
        left_out.KEY: to_json(run_findings.left_out),
        "unread": to_json((*run_findings.run_context.unread, *stray)),
    }
    return document(fields)


def _row_json(work: WorkView) -> dict[str, Any]:
    row_json: dict[str, Any] = to_json(work.row)
    del row_json["labels"]  # the title has them
    row_json["same_work"] = to_json(work.same_work)
    for view in work.cells:
        del row_json["cells"][view.backend]["records"]
        row_json["cells"][view.backend] |= {
            "statistics": view.statistics,
            "metrics": to_json(view.metrics),
            "machines": list(view.cell.machines),
            "processes": view.processes,
            "share_of_peak": view.share_of_peak,
            "achieved_flop_per_s": view.share.achieved_flop_per_s if view.share else None,
            "scaling": _scaling_json(view.scaling),
            "cold_over_warm_first_epoch": to_json(view.warm_cache.estimate) if view.warm_cache else None,
            "keras_cost": _cost_json(view.keras_cost) if view.keras_cost else None,
            "call": _call_json(*view.call) if view.call else None,
            **({"cost": {"metric": COST_METRIC, **to_json(view.cost)}} if view.cost else {}),
        }
    return row_json


def _cost_json(cost: KerasCost) -> dict[str, Any]:
    return {
        "keras_over_native": to_json(cost.estimate),
        "shares": {part.name: to_json(part.share) for part in cost.parts},
        "text": cost.text,
    }


def _call_json(ladder: CallLadder, rung: CallRung) -> dict[str, Any]:
    return {
        "reference": ladder.reference,
        "over_reference": to_json(rung.estimate),
        "p50_s": to_json(rung.p50),
        "p99_s": to_json(rung.p99),
        "first_call_s": rung.first_call_s,
        "outputs_deviation": rung.deviation,
        "outputs": rung.outputs,
        "reason": rung.reason,
        "file": to_json(rung.file),
    }


def _scaling_json(scaling: DeviceScaling | None) -> dict[str, Any] | None:
    """Return what several devices gain; None for a cell on one device."""
    if scaling is None:
        return None
    return {
        "speed_up": to_json(scaling.speed_up),
        "efficiency": to_json(scaling.efficiency),
        "communication_share": scaling.spent.share if scaling.spent else None,
        "communication_method": scaling.spent.method if scaling.spent else None,
        "verdict": scaling.verdict,
        "text": scaling.text,
    }
